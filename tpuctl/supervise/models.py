"""The data of a watch: the job, the saved state, observations, and the steps to take."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tpuctl.cloud.plan import CreateOptions
from tpuctl.errors import TpuctlError

Cause = Literal["preempted", "expired", "crash", "bad_host", "maintenance", "done", "stopped"]

SILENT_S = 900.0
"""After this long without output a worker is named in a note, even without --hang-after."""


@dataclass(frozen=True)
class JobSpec:
    """The job to run, and when to restart it or replace the TPU.

    `hang_after_s` counts seconds in which this program is awake; `bad_host_after_s` those of the
    service's clock. `folder` is where the command runs and where `code` is copied to.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    folder: str | None = None
    max_crashes: int = 3
    hang_after_s: float | None = None
    bad_host_after_s: float = 600.0
    include_secrets: bool = False


@dataclass(frozen=True)
class KnownTpu:
    """The TPU that the job runs on, as last seen usable.

    `made` is whether this watch created it; `proven` whether every worker was reached once.
    """

    id: str
    zone: str
    created: datetime
    seen: datetime
    create_id: str | None = None
    made: bool = False
    proven: bool = False
    usd_per_hour: float | None = None
    expires: datetime | None = None
    units_per_hour: float | None = None

    @property
    def usd_so_far(self) -> float:
        """Its cost until it was last seen; 0 where no price is known."""
        hours = max(0.0, (self.seen - self.created).total_seconds()) / 3600
        return (self.usd_per_hour or 0.0) * hours


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt in progress; `launched` is whether the job is known to run on every worker."""

    number: int
    job: str
    tpu_id: str
    zone: str
    began: datetime
    launched: bool = False


@dataclass(frozen=True)
class JobAttempt:
    """One finished run of the job, and why it ended."""

    number: int
    cause: Cause
    reason: str
    job: str
    tpu_id: str
    zone: str
    began: datetime
    ended: datetime
    exit_code: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class PendingDeletion:
    """A TPU that this watch is deleting, and why; saved before the request is sent."""

    id: str
    reason: str
    is_bad_host: bool = False


@dataclass(frozen=True)
class WatchEnd:
    """How a watch ended; saved before its final deletion, so that nothing is decided twice.

    `tpu_ids` identify what may be deleted. `tail` is the end of the last run's output; `code` and
    the rest are those of the error, if there is one.
    """

    tpu_ids: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    code: str | None = None
    message: str = ""
    hint: str | None = None
    exit_code: int = 1

    @property
    def error(self) -> TpuctlError | None:
        """The error as it was."""
        if self.code is None:
            return None
        error = TpuctlError(self.message, hint=self.hint)
        error.code, error.exit_code = self.code, self.exit_code
        return error


@dataclass(frozen=True)
class WatchState:
    """The state that must survive this process; saved before every step.

    `recipe` creates another such TPU. `open` is the attempt in progress. `serial` numbers the jobs,
    so that their names are unique. `replaced` counts bad hosts in a row, `spent_usd` is the cost of
    this watch's earlier TPUs. `end` is set once the watch has ended, except for its last deletion.
    """

    watch: str
    name: str
    recipe: CreateOptions
    tpu: KnownTpu | None = None
    open: RunningAttempt | None = None
    removing: PendingDeletion | None = None
    creating: bool = False
    seen_leaving: bool = False
    attempts: tuple[JobAttempt, ...] = ()
    serial: int = 0
    replaced: int = 0
    spent_usd: float = 0.0
    end: WatchEnd | None = None

    @property
    def usd_so_far(self) -> float:
        """The cost of all TPUs of this watch, each until it was last seen."""
        return self.spent_usd + (self.tpu.usd_so_far if self.tpu else 0.0)

    @property
    def crashes(self) -> int:
        """How often the job itself has failed."""
        return sum(attempt.cause == "crash" for attempt in self.attempts)

    @property
    def last(self) -> JobAttempt | None:
        """The most recently finished attempt."""
        return self.attempts[-1] if self.attempts else None

    def owns(self, job: str) -> bool:
        """Whether a job on a worker was started by this watch."""
        return job.startswith(job_prefix(self.watch))


_JOB = re.compile(r"watch-[0-9a-f]{8}-\d+")


def job_prefix(watch: str) -> str:
    """Return the prefix of the names of a watch's jobs."""
    return f"watch-{watch[:8]}-"


def is_watched(job: str) -> bool:
    """Whether a job was started by any watch."""
    return _JOB.fullmatch(job) is not None


TpuKind = Literal["unknown", "none", "coming", "usable", "dead", "leaving", "stopped"]


@dataclass(frozen=True)
class TpuObservation:
    """The state of the TPU according to the service.

    `unknown`: the service did not answer. `leaving`: something else is deleting it.
    `on_purpose`: it or a VM of it is gone because a user or a guard deleted it while it was alive.
    `why_gone`: why it is gone, if that is known. `healthy`: the service reports no problem.
    `past_s`: for how long it has been coming up or under repair.
    """

    kind: TpuKind
    state: str = ""
    id: str = ""
    zone: str = ""
    known: KnownTpu | None = None
    is_ours: bool = False
    in_line: bool = False
    healthy: bool = True
    on_purpose: bool = False
    expired: bool = False
    why_gone: str = ""
    past_s: float = 0.0
    error: TpuctlError | None = None


@dataclass(frozen=True)
class JobObservation:
    """The job of the open attempt on one worker; `failure` is set where it failed."""

    state: str
    exit_code: int | None = None
    failure: TpuctlError | None = None


@dataclass(frozen=True)
class WorkersObservation:
    """The state of the workers: errors by worker, unfit workers, and jobs.

    `job` is the open attempt's job on each worker that has it. `remains` are obsolete jobs of this
    watch that still run, `strangers` jobs of another watch.
    """

    count: int
    errors: Mapping[int, TpuctlError] = field(default_factory=dict)
    unfit: Mapping[int, TpuctlError] = field(default_factory=dict)
    job: Mapping[int, JobObservation] = field(default_factory=dict)
    remains: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Silence:
    """Workers without output for some time, the first to fall silent first."""

    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Observation:
    """All observations since the last step.

    `trouble_s`: for how long the service has called the TPU usable while its workers were not.
    `failing_s`: for how long the job has been seen as failed. `refused`: the error of the last
    step. `refusals`: how many steps have failed in a row.
    """

    tpu: TpuObservation
    workers: WorkersObservation | None = None
    trouble_s: float = 0.0
    failing_s: float = 0.0
    hung: Silence | None = None
    refused: TpuctlError | None = None
    refusals: int = 0


@dataclass(frozen=True)
class Wait:
    """Wait, then observe again; `why` is shown when it changes."""

    seconds: float
    why: str


@dataclass(frozen=True)
class AskWorkers:
    """Ask the workers about their fitness and their jobs."""


@dataclass(frozen=True)
class DeleteTpu:
    """Delete the TPU that was just observed."""

    reason: str
    is_bad_host: bool = False


@dataclass(frozen=True)
class ForgetTpu:
    """Record that the TPU being deleted is gone."""


@dataclass(frozen=True)
class CreateTpu:
    """Create a TPU, or resume a create."""


@dataclass(frozen=True)
class LaunchJob:
    """Copy the code and start the job on every worker."""

    number: int
    job: str


@dataclass(frozen=True)
class StopJobs:
    """Stop obsolete jobs of this watch."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class FollowJob:
    """Show the job's output until something changes."""


@dataclass(frozen=True)
class CloseAttempt:
    """Record the end of the open attempt."""

    cause: Cause
    reason: str
    exit_code: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class EndWatch:
    """End the watch: the job is done, or `error` says why it is given up."""

    error: TpuctlError | None = None


Step = (
    Wait
    | AskWorkers
    | DeleteTpu
    | ForgetTpu
    | CreateTpu
    | LaunchJob
    | StopJobs
    | FollowJob
    | CloseAttempt
    | EndWatch
)
