"""What a watch is told, what it remembers, and what it can see."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tpuctl.cloud.plan import CreateOptions
from tpuctl.errors import TpuctlError

Cause = Literal["preempted", "crash", "bad_host", "maintenance", "done", "stopped"]

SILENT_S = 900.0
"""After so long a worker that has fallen silent is named, even where nothing is to follow."""


@dataclass(frozen=True)
class Order:
    """What to run, and how patient to be.

    `hang_after_s` is counted here, while this program is awake; `bad_host_after_s` by the service.
    `folder` is where the command runs and, with `code`, where that folder is copied to.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    folder: str | None = None
    max_crashes: int = 3
    hang_after_s: float | None = None
    bad_host_after_s: float = 600.0


@dataclass(frozen=True)
class Known:
    """The TPU that the job runs on, as it was last seen alive.

    `made` is whether this watch made it; `proven` is whether every worker was reached once.
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

    @property
    def usd_so_far(self) -> float:
        """What it has cost until it was last seen; nothing where no price is known."""
        hours = max(0.0, (self.seen - self.created).total_seconds()) / 3600
        return (self.usd_per_hour or 0.0) * hours


@dataclass(frozen=True)
class Running:
    """An attempt under way; `launched` is whether the job is known to have begun everywhere."""

    number: int
    job: str
    tpu_id: str
    zone: str
    began: datetime
    launched: bool = False


@dataclass(frozen=True)
class Attempt:
    """One run of the job from its launch to its end, and why it ended."""

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
class Removing:
    """A TPU that is being deleted by us, and why; on the disk before the request is sent."""

    id: str
    reason: str
    is_bad_host: bool = False


@dataclass(frozen=True)
class Memory:
    """Everything that must survive this program: on the disk before every act.

    `recipe` makes another such TPU. `serial` numbers the jobs, so that no name comes twice.
    `replaced` counts the bad hosts in a row, `spent_usd` what earlier TPUs of this watch have cost.
    """

    watch: str
    name: str
    recipe: CreateOptions
    tpu: Known | None = None
    open: Running | None = None
    removing: Removing | None = None
    creating: bool = False
    seen_leaving: bool = False
    attempts: tuple[Attempt, ...] = ()
    serial: int = 0
    replaced: int = 0
    spent_usd: float = 0.0

    @property
    def crashes(self) -> int:
        """How often the job itself has failed."""
        return sum(attempt.cause == "crash" for attempt in self.attempts)

    @property
    def last(self) -> Attempt | None:
        """The attempt that ended last."""
        return self.attempts[-1] if self.attempts else None

    def owns(self, job: str) -> bool:
        """Whether a job on a worker was started by this watch."""
        return job.startswith(job_prefix(self.watch))


_JOB = re.compile(r"watch-[0-9a-f]{8}-\d+")


def job_prefix(watch: str) -> str:
    """How the names of a watch's own jobs begin."""
    return f"watch-{watch[:8]}-"


def is_watched(job: str) -> bool:
    """Whether a job was started by a watch, whichever."""
    return _JOB.fullmatch(job) is not None


TpuKind = Literal["unknown", "none", "coming", "usable", "dead", "leaving", "stopped"]


@dataclass(frozen=True)
class TpuSight:
    """What the service says of the TPU.

    `unknown`: it could not be asked. `leaving`: somebody deletes it. `on_purpose`: one that is
    gone was deleted by somebody while it lived. `healthy` is whether the service finds nothing
    wrong with it. `past_s` is for how long it has been so.
    """

    kind: TpuKind
    state: str = ""
    id: str = ""
    zone: str = ""
    known: Known | None = None
    is_ours: bool = False
    in_line: bool = False
    healthy: bool = True
    on_purpose: bool = False
    expired: bool = False
    past_s: float = 0.0
    error: TpuctlError | None = None


@dataclass(frozen=True)
class JobSight:
    """The job of the open attempt on one worker; `failure` is set where it ended badly."""

    state: str
    exit_code: int | None = None
    failure: TpuctlError | None = None


@dataclass(frozen=True)
class WorkersSight:
    """What the workers say: who cannot be asked, who is unfit, and which jobs there are.

    `job` is the open attempt's on each worker that has it. `remains` are running jobs of this
    watch that nobody needs any more, `strangers` those of another watch.
    """

    count: int
    errors: Mapping[int, TpuctlError] = field(default_factory=dict)
    unfit: Mapping[int, TpuctlError] = field(default_factory=dict)
    job: Mapping[int, JobSight] = field(default_factory=dict)
    remains: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Silence:
    """Workers that have said nothing for so long, the first to fall silent first."""

    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Sight:
    """Everything that was seen since the last act.

    `trouble_s` is for how long the service has called the TPU usable while its workers were not;
    `failing_s` for how long the job has been seen to have failed. `refused` is what the last act
    failed with, `refusals` how many have failed in a row.
    """

    tpu: TpuSight
    workers: WorkersSight | None = None
    trouble_s: float = 0.0
    failing_s: float = 0.0
    hung: Silence | None = None
    refused: TpuctlError | None = None
    refusals: int = 0


@dataclass(frozen=True)
class Wait:
    """Look again after a while; `why` is said when it is news."""

    seconds: float
    why: str


@dataclass(frozen=True)
class Ask:
    """Ask the workers what they are like and which jobs they have."""


@dataclass(frozen=True)
class Delete:
    """Delete the TPU that is seen now."""

    reason: str
    is_bad_host: bool = False


@dataclass(frozen=True)
class Forget:
    """The TPU that was to be deleted is gone."""


@dataclass(frozen=True)
class Create:
    """Make a TPU, or go on with making it."""


@dataclass(frozen=True)
class Launch:
    """Copy the code and start the job on every worker."""

    number: int
    job: str


@dataclass(frozen=True)
class StopJobs:
    """End jobs of ours that nobody needs any more."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Follow:
    """Show what the job prints until something changes."""


@dataclass(frozen=True)
class Close:
    """The open attempt has ended."""

    cause: Cause
    reason: str
    exit_code: int | None = None
    worker: int | None = None


@dataclass(frozen=True)
class End:
    """There is nothing more to do: the job is done, or `error` says why it is given up."""

    error: TpuctlError | None = None


Step = Wait | Ask | Delete | Forget | Create | Launch | StopJobs | Follow | Close | End
