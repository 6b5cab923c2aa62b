"""Jobs on GKE that this machine starts: checked, on disk, uploaded, and only then created."""

import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpuctl.cloud.error_table import checks_replies
from tpuctl.cloud.lookup import attempt
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    TpuctlError,
    TryAgainError,
    UsageError,
)
from tpuctl.outcome import Outcome
from tpuctl.providers.batch import Run, RunStore
from tpuctl.providers.gke import manifest
from tpuctl.providers.gke.client import CORE, JOB_SETS, KUEUE, Cluster, Json
from tpuctl.providers.gke.manifest import (
    ACCELERATOR,
    KEY,
    NODE_POOL,
    QUEUE,
    TOPOLOGY,
    GkeOptions,
    JobSetSpec,
)
from tpuctl.providers.pack import HostedJob, Packed, pack
from tpuctl.settings import load_settings, state_dir
from tpuctl.storage import open_storage
from tpuctl.units import format_count, format_duration

Note = Callable[[str], None]
OVER = frozenset({"home", "deleted"})
"""The phases of finished runs."""
CONTAINER_KINDS = ("initContainerStatuses", "containerStatuses")

_POOLS = "To start it although its nodes are made on demand: --no-check"


@dataclass(frozen=True)
class ClusterPlan(Outcome):
    """A job before it is created; `adopts` is the one that the same command has started."""

    name: str
    script: str
    provider: str
    context: str | None
    accelerator_type: str
    num_slices: int
    nodes: int
    chips: int
    archive: str
    size_bytes: int
    adopts: str | None
    because: tuple[str, ...]
    manifest: Json
    warnings: tuple[str, ...] = field(default=(), metadata={"internal": True})
    packed: Packed | None = field(default=None, metadata={"internal": True}, repr=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where it runs, and what restarts it."""
        return self.because


def run_store() -> RunStore:
    """Return the records of jobs on GKE."""
    return RunStore(state_dir() / "gke")


def place_of(cluster: Cluster) -> str:
    """Return what a record is about: context, namespace and address."""
    return json.dumps([cluster.context.name, cluster.context.namespace, cluster.context.server])


def plan_run(job: HostedJob, options: GkeOptions, cluster: Cluster | None) -> ClusterPlan:
    """Pack a job, write its JobSet, and check what the cluster has for it; creates nothing."""
    kind = manifest.check_type(options)
    packed = pack(job.work, job.sources)
    bucket, archive = _archive(options.staging, packed.sha256)
    identity: list[Any] = [packed.sha256, job.limit_s, job.job, repr(replace(options, check=True))]
    identity.append(cluster and place_of(cluster))
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    adopted = _open_run(cluster, key) if cluster else None
    suffix = secrets.token_hex(3)
    made = JobSetSpec(
        name="",
        kind=kind,
        options=options,
        archive=(bucket, archive, packed.sha256),
        key=key,
        script=job.script.name,
        limit_s=job.limit_s,
    )
    notes: list[str] = ["not checked against a cluster: there is no kubeconfig"]
    if cluster:
        made, notes = check_cluster(cluster, made, nodes=options.check)
    name = adopted.name if adopted else job.job
    name = name or manifest.name_for(job.script.stem, suffix, made.options.num_slices, made.nodes)
    made = replace(made, name=name)
    document = manifest.job_set(made)
    if cluster and not adopted:
        path = f"{JOB_SETS}/{cluster.namespace}/jobsets"
        _translated(lambda: cluster.create(path, document, dry_run=True), name)
    return ClusterPlan(
        name=name,
        script=str(job.script),
        provider="gke",
        context=cluster.context.name if cluster else None,
        accelerator_type=kind.accelerator_type,
        num_slices=made.options.num_slices,
        nodes=made.options.num_slices * made.nodes,
        chips=made.options.num_slices * kind.chips,
        archive=f"gs://{bucket}/{archive}",
        size_bytes=len(packed.archive),
        adopts=name if adopted else None,
        because=(*_reasons(made, packed), *notes),
        manifest=document,
        warnings=packed.warnings,
        packed=packed,
    )


def _reasons(made: JobSetSpec, packed: Packed) -> tuple[str, ...]:
    slices = format_count(made.options.num_slices, "slice")
    times = made.options.max_restarts
    crashes = f"crashes only {format_count(times, 'time')}" if times else "crashes do not"
    limit = f", and ends each attempt after {format_duration(made.limit_s)}" if made.limit_s else ""
    return (
        f"GKE: {slices} of {made.kind.accelerator_type}, {format_count(made.nodes, 'node')} each, "
        f"{made.provisioning.replace('_', ' ')}",
        f"disruptions restart it, {crashes}{limit}",
        f"{packed.described}, to a bucket",
        "what the job writes to its own disk is lost: write to gs://",
        "the price is unknown: node pools are billed by node, whether a job runs or not",
    )


def _archive(staging: str | None, sha256: str) -> tuple[str, str]:
    place = load_settings({"staging": staging})["staging"]
    if not place or not place.startswith("gs://"):
        raise UsageError(
            "A job on GKE fetches its code from a bucket.",
            hint="--staging gs://BUCKET, which the account of the pods can read",
        )
    bucket, _, prefix = place.removeprefix("gs://").partition("/")
    return bucket, "/".join(filter(None, (prefix.strip("/"), "tpuctl", f"{sha256}.tar.bz2")))


@checks_replies("GKE")
def check_cluster(
    cluster: Cluster, made: JobSetSpec, *, nodes: bool
) -> tuple[JobSetSpec, list[str]]:
    """Raise the error for what the cluster lacks; returns the job as the cluster's nodes need it.

    Nodes that are made on demand, as with flex-start, cannot be seen before.
    """
    name = cluster.context.name
    try:
        cluster.get(JOB_SETS)
    except NotFoundError:
        text = f"The cluster {name} does not have the JobSet API."
        raise NotFoundError(text, hint=manifest.facts()["install_jobset"]) from None
    if made.options.kueue:
        _check_queue(cluster, made.options.kueue)
    if not nodes:
        return made, [f"the nodes of {name} were not checked"]
    try:
        selector = f"{ACCELERATOR}={made.accelerator}"
        found = list(cluster.list(f"{CORE}/nodes", labelSelector=selector))
    except PermissionDeniedError:
        return made, [f"the nodes of {name} were not checked: this account may not list them"]
    slices: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    chips = made.node_chips
    for node in found:
        labels = (node.get("metadata") or {}).get("labels") or {}
        room = str(((node.get("status") or {}).get("allocatable") or {}).get("google.com/tpu", ""))
        slices[str(labels.get(TOPOLOGY))][str(labels.get(NODE_POOL))] += 1
        if made.selector.items() <= labels.items() and room.isdecimal() and int(room):
            chips = int(room)
    made = replace(made, chips_per_node=chips) if made.kind.chips % chips == 0 else made
    ready = sum(
        1
        for node in found
        if made.selector.items() <= ((node.get("metadata") or {}).get("labels") or {}).items()
    )
    have = ready // made.nodes
    if have >= made.options.num_slices:
        return made, [f"{name} has {format_count(have, 'slice')} of that kind"]
    if made.options.flex:
        return made, [f"{name} has no nodes for it yet; flex-start makes them"]
    raise _lacking(cluster, made, have, slices)


def _lacking(
    cluster: Cluster, made: JobSetSpec, have: int, slices: Mapping[str, Mapping[str, int]]
) -> NotFoundError:
    kind, name, topology = made.kind, cluster.context.name, made.kind.topology
    create = (
        f"gcloud container node-pools create POOL --cluster CLUSTER --location LOCATION "
        f"--machine-type {kind.machine_type} --num-nodes {made.nodes}"
    )
    create += f" --tpu-topology {topology}" if made.nodes > 1 else ""
    if not slices:
        text = f"The cluster {name} has no nodes of TPU {kind.generation}."
    elif topology not in slices:
        others = ", ".join(sorted(slices))
        text = (
            f"The cluster {name} has no slices of {topology}; its {kind.generation} are {others}."
        )
    else:
        wanted = f"{made.options.num_slices} of {kind.accelerator_type}"
        how = "" if made.provisioning == "on_demand" else f" ({made.provisioning})"
        text = f"The cluster {name} has nodes for {have} slices{how}, and the job needs {wanted}."
    return NotFoundError(text, hint=f"{create}. {_POOLS}")


def _check_queue(cluster: Cluster, queue: str) -> None:
    name = cluster.context.name
    try:
        group = cluster.get(KUEUE)
    except NotFoundError:
        text = f"The cluster {name} does not have Kueue, so it has no queue {queue}."
        raise NotFoundError(text, hint="Leave out --kueue.") from None
    version = str((group.get("preferredVersion") or {}).get("version"))
    found = cluster.list(f"{KUEUE}/{version}/{cluster.namespace}/localqueues")
    known = [str((each.get("metadata") or {}).get("name")) for each in found]
    if queue not in known:
        text = f"The namespace {cluster.context.namespace} of {name} has no queue {queue}."
        raise NotFoundError(text, hint=f"Its queues: {', '.join(known) or 'none'}.")


@checks_replies("GKE")
def submit(cluster: Cluster, plan: ClusterPlan, job: HostedJob, note: Note) -> Run:
    """Upload the code and create the JobSet, or return the one of the same command."""
    store, key = run_store(), plan.manifest["metadata"]["annotations"][KEY]
    with store.lock(key, wait_s=5.0):
        run = _open_run(cluster, key)
        if run and key_of(find(cluster, run.name)) == key:
            note(f"The same command has started {run.name} before; following that job.")
            return store.write(run, phase="pushed")
        if run and run.name != plan.name:
            text = f"The same command began {run.name} a moment ago, and was interrupted."
            raise TryAgainError(text, hint="Run the command again: it goes on with that job.")
        other = store.find(plan.name)
        if (
            run is None
            and other
            and other.phase not in OVER
            and other.endpoint != place_of(cluster)
        ):
            text = f"A job {plan.name} runs in another cluster, {other.owner}."
            raise AlreadyExistsError(text, hint="Choose another --job.")
        if run is None:
            run = Run(
                name=plan.name,
                key=key,
                script=plan.script,
                endpoint=place_of(cluster),
                owner=cluster.context.name,
                out="",
                asked=cluster.clock.now(),
                limit_s=job.limit_s or 0.0,
            )
            store.write(run)
        try:
            assert plan.packed
            folder, _, name = plan.archive.rpartition("/")
            open_storage(folder).write(name, plan.packed.archive)
            path = f"{JOB_SETS}/{cluster.namespace}/jobsets"
            _translated(lambda: cluster.create(path, plan.manifest), plan.name)
        except TpuctlError as error:
            # A reply may have been lost: then it is ours, and exists once.
            found = attempt(lambda: find(cluster, plan.name))
            if isinstance(found, TpuctlError):
                raise error from None
            if key_of(found) != key:
                if found or not isinstance(error, TryAgainError):
                    store.forget(run)
                raise
        note(f"{run.name} was created in {cluster.context.name}.")
        return store.write(run, phase="pushed")


def find(cluster: Cluster, name: str) -> Json | None:
    """Read a JobSet; None if it does not exist."""
    try:
        return cluster.get(f"{JOB_SETS}/{cluster.namespace}/jobsets/{name}")
    except NotFoundError:
        return None


def workloads(cluster: Cluster, job_set: Json) -> Iterator[tuple[str, Json]]:
    """Yield Kueue's workloads of a JobSet with their paths; none where it is not in a queue."""
    if QUEUE in (job_set["metadata"].get("labels") or {}):
        group = str(cluster.get(KUEUE)["preferredVersion"]["version"])
        place, uid = f"{KUEUE}/{group}/{cluster.namespace}/workloads", job_set["metadata"]["uid"]
        for each in cluster.list(place, labelSelector=f"kueue.x-k8s.io/job-uid={uid}"):
            yield f"{place}/{each['metadata']['name']}", each


def why_suspended(cluster: Cluster, job_set: Json) -> str:
    """Return why a JobSet waits, in the words of its queue; nothing where it is not suspended."""
    if not (job_set.get("spec") or {}).get("suspend"):
        return ""
    try:
        found = [each for _, each in workloads(cluster, job_set)]
    except (NotFoundError, PermissionDeniedError) as error:
        return f"suspended, and its queue cannot be asked why: {error}"
    queue = (job_set["metadata"].get("labels") or {}).get(QUEUE)
    if not queue or any((each.get("spec") or {}).get("active") is False for each in found):
        return "stopped"
    said: dict[str, None] = {}
    for status in (each.get("status") or {} for each in found):
        for each in (*(status.get("admissionChecks") or ()), *(status.get("conditions") or ())):
            is_about = each.get("type", "QuotaReserved") in ("QuotaReserved", "Admitted")
            is_met = each.get("state") == "Ready" or each.get("status") == "True"
            if is_about and not is_met and each.get("message"):
                said[str(each["message"])] = None
    return f"in queue {queue}: {'; '.join(said) or 'Kueue has not said why yet'}"


def why_waiting(cluster: Cluster, job_set: Json, pods: list[Json]) -> str:
    """Return why a job does not run yet: its queue, its nodes or its image."""
    waits = why_suspended(cluster, job_set)
    for status in (pod.get("status") or {} for pod in pods):
        for each in status.get("conditions") or ():
            if each.get("reason") == "Unschedulable":
                waits = str(each.get("message"))
        for kind in CONTAINER_KINDS:
            for each in status.get(kind) or ():
                stuck = (each.get("state") or {}).get("waiting") or {}
                if "Image" in str(stuck.get("reason")) or "Error" in str(stuck.get("reason")):
                    waits = f"{stuck['reason']}: {stuck.get('message')}"
    return waits


def key_of(job_set: Json | None) -> Any:
    """Return the key of the command that created a JobSet."""
    return job_set and (job_set["metadata"].get("annotations") or {}).get(KEY)


def _open_run(cluster: Cluster, key: str) -> Run | None:
    runs = run_store().runs(place_of(cluster))
    return next((run for run in runs if run.key == key and run.phase not in OVER), None)


def _translated(action: Callable[[], Any], name: str) -> None:
    try:
        action()
    except InvalidInputError as error:
        raise InvalidInputError(f"The cluster refuses the job {name}. {error}") from error
    except AlreadyExistsError:
        text = f"There is a JobSet {name} already."
        see = "tpuctl delete" if run_store().find(name) else "kubectl describe jobset"
        hint = f"{see} {name}; or choose another --job"
        raise AlreadyExistsError(text, hint=hint) from None
    except NotFoundError as error:
        error.hint = "kubectl config set-context --current --namespace NAMESPACE"
        raise
