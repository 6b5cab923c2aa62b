"""What a watch does outside of its own state: observe, create, delete, copy and run."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tpuctl.cloud.connect import Cloud
from tpuctl.cloud.create import Created, create
from tpuctl.cloud.delete import delete_all, plan_group_deletion
from tpuctl.cloud.follow import ZoneAttempt
from tpuctl.cloud.journal import COLLECTED, DELETED
from tpuctl.cloud.lookup import Resource, find, read_group, read_optional
from tpuctl.cloud.models import LABEL_WATCH, Node, QueuedResource
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import plan_create
from tpuctl.cloud.tpu import known_type
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, Direction
from tpuctl.remote.hosts import Host, workers_of
from tpuctl.remote.iap import through_iap
from tpuctl.remote.jobs import start_job, stop_job
from tpuctl.remote.keys import has_os_login, key_for_tpus, login_user, open_access_to, with_key
from tpuctl.remote.logs import read_logs
from tpuctl.remote.output import Sink
from tpuctl.remote.run import Command
from tpuctl.settings import state_dir
from tpuctl.supervise.follow import FIRST_LINES, FollowResult, JobFollower
from tpuctl.supervise.models import (
    JobAttempt,
    JobSpec,
    LaunchJob,
    TpuObservation,
    WatchState,
    WorkersObservation,
)
from tpuctl.supervise.observe import observe_tpu, observe_workers, resource_id

ATTEMPT, RESUME = "TPUCTL_ATTEMPT", "TPUCTL_RESUME"
"""Variables of the job: the number of the attempt, and from the second on, that it resumes."""

TAIL_LINES = 20


@dataclass(frozen=True)
class Login:
    """How to log in to the workers; `is_given` means that OS Login must not change the user."""

    user: str
    key: Path | None = None
    jump: Host | None = None
    internal_ip: bool = False
    iap: bool = False
    is_given: bool = False


class Actions:
    """The side effects of a watch; raises TpuctlErrors."""

    def __init__(
        self,
        cloud: Cloud,
        login: Login,
        *,
        sink: Sink,
        note: Callable[[str], None],
        progress: Callable[[], AbstractContextManager[OnProgress]] = lambda: nullcontext(silent),
    ) -> None:
        self._api, self._journal, self._login = cloud.api, cloud.journal, login
        self._sink, self._note, self._progress = sink, note, progress
        self._resource: Resource | None = None
        self._queued: QueuedResource | None = None
        self._reached: tuple[str, tuple[Host, ...], Access] | None = None
        self._offsets: dict[str, dict[int, int]] = {}
        self.clock = cloud.api.clock

    def observe(self, state: WatchState) -> TpuObservation:
        """Ask the service about the TPU; an error is an observation too."""
        try:
            self._resource = resource = self._find(state)
            maker = resource.queued_resource if isinstance(resource, Node) else None
            get_queued = self._api.get_queued_resource
            queued = read_optional(get_queued, maker, resource.zone) if resource else None
            self._queued = queued
            was_deleted = self._was_deleted(state) if resource is None else None
        except TpuctlError as error:
            return TpuObservation("unknown", error=error)
        return observe_tpu(resource, queued, state, now=self.clock.now(), was_deleted=was_deleted)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the TPU that was observed last and of the queued resource that made it."""
        return tuple(resource_id(each) for each in (self._resource, self._queued) if each)

    def _find(self, state: WatchState) -> Resource | None:
        """Look in the TPU's zone; during a create, also in every zone of the recipe.

        A TPU that this watch created comes before a namesake in another zone.
        """
        found: list[Resource] = []
        zones: tuple[str | None, ...] = (state.tpu.zone,) if state.tpu else ()
        if not zones or state.creating:
            zones = (*zones, *state.recipe.zones) or (None,)
        for zone in dict.fromkeys(zones):
            with suppress(NotFoundError):
                found.append(find(self._api, state.name, zone))
        found.sort(key=lambda each: each.labels.get(LABEL_WATCH) != state.watch)
        return found[0] if found else None

    def _was_deleted(self, state: WatchState) -> bool | None:
        """Whether a user deleted it while it was alive; None where nothing tells."""
        create_id = state.tpu.create_id if state.tpu else None
        entry = self._journal.find(create_id) if create_id else None
        if entry and entry.outcome in (COLLECTED, DELETED):
            return entry.outcome == DELETED
        if state.tpu is None:
            return None
        known = state.tpu
        gone = self._api.why_gone(state.name, zone=known.zone, since=known.created)
        # A group that was deleted took its VMs along, whoever did it.
        return gone.cause == "deleted" if gone else None

    def ask(self, state: WatchState) -> WorkersObservation:
        """Ask every worker of the TPU that was observed last."""
        hosts, access = self._workers()
        kind = known_type(self._node().accelerator_type)
        chips = kind.chips_per_worker if kind else None
        return observe_workers(hosts, access, state, chips_per_worker=chips)

    def create(self, state: WatchState) -> None:
        """Create a TPU from the recipe, or resume a create; raises why there is none."""
        recipe = state.recipe
        if not has_os_login(recipe.metadata):
            # With our key in its metadata from the start, nothing has to wait for an update.
            pair = key_for_tpus(state_dir(), self._login.key)
            metadata = with_key(recipe.metadata, self._login.user, pair)
            recipe = replace(recipe, metadata=metadata)
        if recipe.max_usd is not None:
            recipe = replace(recipe, max_usd=recipe.max_usd - state.spent_usd)
        plan = complete_plan(self._api, plan_create(replace(recipe, watch=state.watch)))
        attempts: list[ZoneAttempt] = []
        with self._progress() as on_progress:
            result = create(
                self._api,
                plan,
                journal=self._journal,
                on_progress=on_progress,
                on_attempt=attempts.append,
            )
        for attempt in attempts[:-1]:
            self._note(f"{attempt.zone}: {attempt.outcome.replace('_', ' ')}, {attempt.reason}")
        if not isinstance(result, Created):
            raise result.error
        for warning in result.warnings:
            self._note(f"Warning: {warning}")

    def delete(self, state: WatchState) -> None:
        """Delete exactly the TPU that was observed last, and wait until it is gone."""
        if self._resource is None:
            return
        planned = plan_group_deletion(read_group(self._api, self._resource), name=state.name)
        (deletion,) = delete_all(self._api, [planned], journal=self._journal)
        if deletion.error:
            raise deletion.error

    def launch(self, spec: JobSpec, step: LaunchJob) -> None:
        """Copy the code and start the job on every worker."""
        if spec.code is not None:
            self.copy_code(spec.code, spec.folder or "", include_secrets=spec.include_secrets)
        self.start(spec, step)

    def copy_code(self, folder: str, target: str, *, include_secrets: bool = False) -> None:
        """Copy a local folder to every worker."""
        hosts, access = self._workers()
        upload = CopyPlan(Direction.UP, None, target, folder, include_secrets)
        copied = copy(hosts, access, upload)
        for warning in copied.warnings:
            self._note(warning)
        if copied.failed:
            raise copied.failures[0]

    def start(self, spec: JobSpec, step: LaunchJob) -> None:
        """Start the job on every worker, or on none."""
        hosts, access = self._workers()
        told = {ATTEMPT: str(step.number), **({RESUME: "1"} if step.number > 1 else {})}
        command = Command(spec.command, {**spec.env, **told}, spec.folder)
        started = start_job(hosts, command, access, job=step.job, check=False)
        self._offsets[step.job] = {}
        if started.failed:
            raise started.failures[0]

    def stop_jobs(self, jobs: tuple[str, ...]) -> None:
        """Stop jobs on every worker that has them."""
        hosts, access = self._workers()
        for job in jobs:
            stopped = stop_job(hosts, access, job=job)
            for worker in stopped.workers:
                if worker.failure and not isinstance(worker.failure, NotFoundError):
                    raise worker.failure

    def follow(
        self,
        state: WatchState,
        spec: JobSpec,
        *,
        poll_s: float,
        give_up_lost: Callable[[bool], bool],
    ) -> FollowResult:
        """Show the job's output until it ends, fails or hangs, or the TPU is no longer usable."""
        assert state.open
        attempt = state.open
        hosts, access = self._workers()
        seen: datetime | None = None

        def is_usable() -> bool:
            nonlocal seen
            tpu = self.observe(state)
            if tpu.kind == "unknown":
                # A service that does not answer says nothing about the workers either.
                give_up_lost(False)
                return True
            if tpu.kind != "usable" or tpu.id != attempt.tpu_id or tpu.known is None:
                return False
            seen = tpu.known.seen
            return True

        result = JobFollower(
            hosts,
            access,
            attempt.job,
            spec,
            self._offsets.get(attempt.job),
            self.clock,
            poll_s,
            is_usable,
            give_up_lost,
            self._sink,
            self._note,
        ).follow()
        self._offsets[attempt.job] = result.offsets
        result.seen = seen
        return result

    def show_rest(self, job: str) -> None:
        """Show the rest of the log of a job that has ended, where it can be read."""
        try:
            hosts, access = self._workers()
            read = self._offsets.get(job)
            read_logs(
                hosts,
                access,
                sink=self._sink,
                note=lambda _: None,
                job=job,
                offsets=read,
                tail=FIRST_LINES if read is None else None,
            )
        except TpuctlError as error:
            self._note(f"Warning: could not read the end of the job's log: {error}")

    def tail(self, attempt: JobAttempt) -> tuple[str, ...]:
        """Return the last lines of a failed attempt's output, where they can be read."""
        said = bytearray()
        try:
            hosts, access = self._workers()
            one = tuple(host for host in hosts if attempt.worker in (None, host.index))[:1]
            read_logs(
                one,
                access,
                sink=lambda _, data: said.extend(data),
                note=lambda _: None,
                job=attempt.job,
                tail=TAIL_LINES,
            )
        except TpuctlError:
            return ()
        return tuple(said.decode("utf-8", "replace").splitlines())

    def _node(self) -> Node:
        assert isinstance(self._resource, Node), "only a usable TPU is asked"
        return self._resource

    def _workers(self) -> tuple[tuple[Host, ...], Access]:
        """Return the workers of the TPU that was observed last; sends it our key once."""
        node, login = self._node(), self._login
        user = login.user if login.is_given else login_user(node, login.user)
        hosts = workers_of(node, user, internal_ip=login.internal_ip)
        hosts = through_iap(self._api, node, hosts) if login.iap else hosts
        if self._reached is None or self._reached[:2] != (node.id, hosts):
            access = open_access_to(
                self._api, node, user, on_warning=self._note, key=login.key, jump=login.jump
            )
            self._reached = (node.id, hosts, access)
        return hosts, self._reached[2]
