"""GKE behind the port: jobs that can be listed, followed, stopped and deleted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Literal

from tpuctl.cloud.delete import DeleteResult, TpuDeletion
from tpuctl.cloud.error_table import checks_replies
from tpuctl.cloud.gc import GcResult
from tpuctl.cloud.list import TpuList
from tpuctl.cloud.lookup import attempt
from tpuctl.cloud.retry import Polling
from tpuctl.cloud.tpu import Tpu, Worker, type_facts
from tpuctl.errors import NotFoundError, WrongStateError
from tpuctl.progress import OnProgress, message
from tpuctl.providers.batch import BatchProvider, Run, delete_each, plan_deletions
from tpuctl.providers.gke.client import JOB_SETS, Cluster, Json, find_context
from tpuctl.providers.gke.follow import (
    ClusterRun,
    follow,
    log_lines,
    pods_of,
    terminal_state,
    worker_of,
)
from tpuctl.providers.gke.manifest import CODE, OURS, PROVISIONING, TYPE
from tpuctl.providers.gke.runs import (
    OVER,
    Note,
    find,
    key_of,
    place_of,
    run_store,
    why_suspended,
    why_waiting,
    workloads,
)
from tpuctl.providers.port import Abilities, ProviderOffer
from tpuctl.remote.jobs import StoppedJob, StoppedWorker
from tpuctl.remote.output import Sink
from tpuctl.units import format_count

NAME = "gke"
_LAUNCH = "tpuctl launch SCRIPT.py --on gke --accelerator-type v6e-16"


@checks_replies("GKE")
class Gke(BatchProvider):
    """Jobs on the cluster of the user's kubeconfig."""

    abilities = Abilities(
        NAME,
        "GKE",
        reachable="batch",
        instead={
            "create": f"GKE runs jobs only: {_LAUNCH}",
            "offers": "Its node pools cost the same with and without a job. To see whether the "
            f"cluster has nodes for one: {_LAUNCH} --dry-run",
            "SSH": "tpuctl logs NAME --follow, or kubectl exec",
            "cp": "What a job needs is sent by launch (--code DIR); results go to a bucket.",
            "watch": "The cluster itself restarts a job; to follow it: tpuctl logs NAME --follow",
        },
    )

    def __init__(self, project: str | None, on_warning: Callable[[str], None]) -> None:
        """Take what every provider takes; the kubeconfig says which cluster."""
        self.store = run_store()
        self._context: str | None = None

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster of the current context, or of the requested job."""
        return Cluster(find_context(self._context))

    def why_unusable(self) -> str | None:
        """Say that nothing runs there, so that its login plugin is not run for every list."""
        if self.is_used():
            return None
        return f"no job that was started on GKE from here is open. To start one: {_LAUNCH}"

    def _open_runs(self) -> Sequence[Run]:
        runs = (self.store.find(path.stem) for path in self.store.folder.glob("*.json"))
        return [run for run in runs if run and run.phase not in OVER]

    def is_recorded(self, name: str) -> bool:
        """Whether this machine has started the job; commands about it mean its cluster."""
        run = self.store.find(name)
        self._context = run.owner if run else None
        return run is not None and run.phase != "deleted"

    def is_used(self) -> bool:
        """Whether a job that was started here may still be there."""
        return bool(self._open_runs())

    def was_deleted(self, name: str) -> bool:
        """Whether this machine has deleted the job that it had started."""
        return not self.is_recorded(name) and self.store.find(name) is not None

    def list(self, zone: str | None) -> TpuList:
        """List the jobs that have not ended, from wherever they were started."""
        found = [self._tpu(each) for each in self._job_sets()]
        alive = tuple(tpu for tpu in found if not tpu.is_dead)
        text = "{0} was started in another cluster or namespace, as {1}: tpuctl show {0}"
        away = (run for run in self._open_runs() if run.endpoint != place_of(self.cluster))
        return TpuList(
            None,
            alive,
            unpriced=len(alive),
            emulated=self.cluster.emulated,
            place="on GKE",
            notes=tuple(text.format(run.name, run.owner) for run in away),
        )

    def get(self, name: str, zone: str | None) -> Tpu:
        """Read a job, also one that has ended."""
        return self._tpu(self._found(name))

    def plan_delete(self, names: Sequence[str] | None, zone: str | None) -> DeleteResult:
        """Find jobs by name; one that was started here and is gone is not an error."""
        found = (each for each in self._job_sets() if names is None or not self._is_another(each))
        job_sets = {str(each["metadata"]["name"]): each for each in found}
        return plan_deletions(
            names,
            job_sets,
            lambda name: self._deletion(job_sets[name]),
            was_ours=self._note_deleted,
            missing=self._missing,
        )

    def _note_deleted(self, name: str) -> bool:
        """Note that a job is gone that was started here on this cluster."""
        run = self.store.find(name)
        if run is None or run.endpoint != place_of(self.cluster):
            return False
        self.store.write(run, phase="deleted")
        return True

    def delete(
        self, plan: DeleteResult, *, timeout_s: float, on_progress: OnProgress
    ) -> DeleteResult:
        """Delete jobs, each only while it is the one that was planned."""
        for each in plan.tpus:
            found = attempt(partial(find, self.cluster, each.name))
            notes = found["metadata"].get("annotations") if isinstance(found, dict) else None
            if code := (notes or {}).get(CODE):
                text = f"The code of {each.name} stays in its bucket, where other jobs may use it."
                on_progress(message(f"{text} To delete it: gcloud storage rm {code}"))
        return delete_each(plan, partial(self._delete, timeout_s))

    def find_orphans(self, zone: str | None) -> GcResult:
        """Name jobs that were stopped: only those that have ended are deleted by the cluster."""
        # Records first: a job that is created meanwhile is not in the list, and not gone.
        runs = self.store.runs(place_of(self.cluster))
        job_sets = {str(each["metadata"]["name"]): each for each in self._job_sets()}
        for run in runs:
            if run.phase == "pushed" and run.name not in job_sets:
                self.store.write(run, phase="deleted")
        text = "{0} on GKE is stopped, and stays until you delete it: tpuctl delete {0}"
        stopped = (name for name, each in job_sets.items() if self._is_stopped(each))
        return GcResult((), unproven=tuple(text.format(name) for name in stopped)).summed()

    def _is_stopped(self, job_set: Json) -> bool:
        return why_suspended(self.cluster, job_set) == "stopped"

    def delete_orphans(self, found: GcResult, on_progress: OnProgress) -> GcResult:
        """Delete nothing."""
        return replace(found, acted=True)

    def offers(self, accelerator_type: str | None) -> Sequence[ProviderOffer]:
        """Offer nothing: its node pools cost the same without a job."""
        return ()

    def balance(self) -> None:
        """Return nothing: GKE bills in dollars."""

    def logs(self, name: str, *, to_end: bool, sink: Sink, note: Note) -> ClusterRun | Tpu:
        """Pass on the logs of all pods; `to_end` follows the job to its end."""
        job_set = self._found(name)
        if to_end:
            return follow(self.cluster, name, sink=sink, note=note)
        pods = pods_of(self.cluster, name)
        for pod in pods:
            prefix = b"[%d] " % worker_of(pod) if len(pods) > 1 else b""
            container = str(pod["spec"]["containers"][0]["name"])
            for line in log_lines(self.cluster, pod, container, follow=False, note=note):
                sink(1, prefix + line)
        if not pods:
            note(f"{name} has no pods now, and the logs of earlier ones are gone with them.")
        return self._tpu(job_set)

    def stop(self, name: str) -> StoppedJob:
        """Suspend a job, which ends its pods, and its queued workload, which would restart it."""
        job_set = self._found(name)
        workers = self._tpu(job_set).workers
        was, _ = terminal_state(job_set)
        is_stopped = self._is_stopped(job_set)
        if not was:
            for path, _ in workloads(self.cluster, job_set):
                self.cluster.patch(path, {"spec": {"active": False}})
            self.cluster.patch(self._path(name), {"spec": {"suspend": True}})
        states = (was or ("suspended" if is_stopped else "running"), was or "suspended")
        indices = [each.index for each in workers] or [0]
        stopped = (
            StoppedWorker(index=i, address="", was=states[0], state=states[1]) for i in indices
        )
        return StoppedJob(job=name, workers=tuple(stopped))

    def _path(self, name: str) -> str:
        return f"{JOB_SETS}/{self.cluster.namespace}/jobsets/{name}"

    def _found(self, name: str) -> Json:
        run = self.store.find(name)
        is_here = run is None or run.endpoint == place_of(self.cluster)
        job_set = find(self.cluster, name) if is_here else None
        if job_set and not self._is_another(job_set):
            return job_set
        raise self._missing(name)

    def _is_another(self, job_set: Json) -> bool:
        """Whether a JobSet has only the name of one that was started here, and is gone."""
        run = self.store.find(job_set["metadata"]["name"])
        is_open = run and run.phase not in OVER and run.endpoint == place_of(self.cluster)
        return bool(run and is_open and key_of(job_set) != run.key)

    def _missing(self, name: str) -> NotFoundError:
        context, run = self.cluster.context, self.store.find(name)
        text = f"Job {name} not found in {context.namespace} of {context.name}."
        if run and run.endpoint == place_of(self.cluster):
            text += " It was deleted, as the cluster does a day after the end of a job."
        elif run:
            text = f"{name} was started in another cluster or namespace, as {run.owner}."
        return NotFoundError(text, hint="tpuctl list --provider gke")

    def _job_sets(self) -> Sequence[Json]:
        path = f"{JOB_SETS}/{self.cluster.namespace}/jobsets"
        return tuple(self.cluster.list(path, labelSelector=f"{OURS}=tpuctl"))

    def _tpu(self, job_set: Json) -> Tpu:
        cluster, meta = self.cluster, job_set["metadata"]
        labels = {str(k): str(v) for k, v in (meta.get("labels") or {}).items()}
        jobs = (job_set.get("spec") or {}).get("replicatedJobs") or ()
        slices = sum(int(each.get("replicas") or 1) for each in jobs)
        over, why = terminal_state(job_set)
        pods = [] if over else pods_of(cluster, str(meta["name"]))
        phases = [str((pod.get("status") or {}).get("phase")) for pod in pods]
        state = "READY" if phases and set(phases) <= {"Running", "Succeeded"} else "CREATING"
        if (job_set.get("spec") or {}).get("suspend"):
            state = "SUSPENDED" if self._is_stopped(job_set) else "PENDING"
        restarts = int((job_set.get("status") or {}).get("restarts") or 0)
        notes = (
            f"{over}: {why}" if over else why_waiting(cluster, job_set, pods),
            format_count(restarts, "restart") if restarts else "",
        )
        provisioning: Any = labels.get(PROVISIONING, "on_demand")
        return Tpu(
            name=str(meta["name"]),
            zone=None,
            accelerator_type=labels.get(TYPE, "unknown"),
            **type_facts(labels.get(TYPE, ""), slices),
            workers=tuple(
                Worker(worker_of(pod), (pod.get("status") or {}).get("hostIP"), None, phase)
                for pod, phase in zip(pods, phases, strict=True)
            ),
            state="TERMINATED" if over else state,
            spot=provisioning == "spot",
            created=datetime.fromisoformat(str(meta["creationTimestamp"]).replace("Z", "+00:00")),
            labels=labels,
            usd_per_hour=0.0 if over else None,
            emulated=cluster.emulated,
            id=str(meta["uid"]),
            as_of=cluster.clock.now(),
            health_description=", ".join(filter(None, notes)),
            provider=NAME,
            provisioning=provisioning,
            reachable="batch",
        )

    def _deletion(self, job_set: Json) -> TpuDeletion:
        tpu = self._tpu(job_set)
        kind = tpu.accelerator_type
        return TpuDeletion("job", tpu.name, None, tpu.state, kind, provider=NAME, id=tpu.id)

    def _delete(self, timeout_s: float, planned: TpuDeletion) -> TpuDeletion:
        outcome: Literal["deleted", "already_deleted"] = "deleted"
        try:
            self.cluster.delete(self._path(planned.name), planned.id)
            polling = Polling(self.cluster.clock, timeout_s=timeout_s)
            while (left := find(self.cluster, planned.name)) and (
                left["metadata"]["uid"] == planned.id
            ):
                polling.pause(f"{planned.name} is still there", hint="tpuctl list")
        except NotFoundError:
            outcome = "already_deleted"
        except WrongStateError:
            return replace(planned, outcome="replaced")
        self._note_deleted(planned.name)
        return replace(planned, outcome=outcome)
