"""The actions of a watch on the workers of a TPU, with any provider."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime

from tpuctl.clock import Clock
from tpuctl.cloud.tpu import known_type
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.progress import OnProgress, silent
from tpuctl.providers.port import Login, Reached
from tpuctl.remote.access import Access
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, Direction
from tpuctl.remote.hosts import Host
from tpuctl.remote.jobs import start_job, stop_job
from tpuctl.remote.logs import read_logs
from tpuctl.remote.output import Sink
from tpuctl.remote.run import Command
from tpuctl.supervise.follow import FIRST_LINES, FollowResult, JobFollower
from tpuctl.supervise.models import (
    JobAttempt,
    JobSpec,
    LaunchJob,
    TpuObservation,
    WatchState,
    WorkersObservation,
)
from tpuctl.supervise.observe import observe_workers

ATTEMPT, RESUME = "TPUCTL_ATTEMPT", "TPUCTL_RESUME"
"""Variables of the job: the number of the attempt, and from the second on, that it resumes."""

TAIL_LINES = 20


def attempt_variables(number: int) -> dict[str, str]:
    """Return the variables that tell a job about its attempt."""
    return {ATTEMPT: str(number), **({RESUME: "1"} if number > 1 else {})}


class WorkerActions:
    """The side effects of a watch; raises TpuctlErrors. A subclass adds those at the provider."""

    clock: Clock

    def __init__(
        self,
        login: Login,
        *,
        sink: Sink,
        note: Callable[[str], None],
        progress: Callable[[], AbstractContextManager[OnProgress]] = lambda: nullcontext(silent),
    ) -> None:
        self._login = replace(login, on_warning=note)
        self._sink, self._note, self._progress = sink, note, progress
        self._offsets: dict[str, dict[int, int]] = {}
        self._reached: tuple[object, Reached] | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of what was observed last and may be deleted at the end."""
        raise NotImplementedError

    def observe(self, state: WatchState) -> TpuObservation:
        """Ask the service about the TPU; an error is an observation too."""
        raise NotImplementedError

    def create(self, state: WatchState) -> None:
        """Create a TPU from the recipe, or resume a create; raises why there is none."""
        raise NotImplementedError

    def delete(self, state: WatchState) -> None:
        """Delete exactly the TPU that was observed last, and wait until it is gone."""
        raise NotImplementedError

    def _type(self) -> str:
        raise NotImplementedError

    def _workers_key(self) -> object:
        """Return a key that changes when the workers change."""
        raise NotImplementedError

    def _reach(self) -> Reached:
        raise NotImplementedError

    def _workers(self) -> tuple[tuple[Host, ...], Access]:
        """Return the workers of the TPU that was observed last; sends them our key once."""
        place = self._workers_key()
        if self._reached is None or self._reached[0] != place:
            self._reached = (place, self._reach())
        return self._reached[1][:2]

    def ask(self, state: WatchState) -> WorkersObservation:
        """Ask every worker of the TPU that was observed last."""
        hosts, access = self._workers()
        kind = known_type(self._type())
        chips = kind.chips_per_worker if kind else None
        return observe_workers(hosts, access, state, chips_per_worker=chips)

    def variables(self, step: LaunchJob) -> Mapping[str, str]:
        """Return the variables that tell the job about its attempt."""
        return attempt_variables(step.number)

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
        command = Command(spec.command, {**spec.env, **self.variables(step)}, spec.folder)
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
        on_seen: Callable[[datetime], None],
    ) -> FollowResult:
        """Show the job's output until it ends, fails or hangs, or the TPU is no longer usable."""
        assert state.open
        attempt = state.open
        hosts, access = self._workers()

        def is_usable() -> bool:
            tpu = self.observe(state)
            if tpu.kind == "unknown":
                # A service that does not answer says nothing about the workers either.
                give_up_lost(False)
                return True
            if tpu.kind != "usable" or tpu.id != attempt.tpu_id or tpu.known is None:
                return False
            on_seen(tpu.known.seen)  # in another thread
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
