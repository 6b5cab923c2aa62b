"""What a watch can do next."""

from dataclasses import dataclass

from tpuctl.errors import TpuctlError
from tpuctl.watch.models import Cause


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
