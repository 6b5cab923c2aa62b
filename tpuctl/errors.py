"""Every exception tpuctl raises on purpose, its exit code and its hint.

    TpuctlError                 1  failed, and we can say why
    ├── InvalidInputError       1  a file or a value we were given cannot be used
    │   ├── TargetError         1  the user's own code failed
    │   ├── DamagedError        1  a data set does not match its manifest
    │   └── SourceChangedError  1  a picture changed while it was being presized
    ├── NotFoundError           1  the named thing does not exist
    ├── AlreadyExistsError      1  the target is there and we were not told to replace it
    ├── WriteError              1  the place we must write to is full, read-only or gone
    ├── LimitPassedError        1  a figure is beyond what the caller allowed with --fail-if
    ├── ScriptFailedError       1  a training script ended with an error of its own
    ├── ServiceFailedError      1  a tf.data server keeps ending
    ├── MissingExtraError       1  a part of tpuctl that is not installed
    ├── NotLoggedInError        1  there are no credentials for Google Cloud here
    ├── PermissionDeniedError   1  the account may not do this
    │   └── ZoneHiddenError     1  the project may not see this zone
    ├── ApiDisabledError        1  the Cloud TPU API is switched off in the project
    ├── QuotaExceededError      1  the project may not have that many chips: waiting does not help
    ├── WrongStateError         1  the object is in a state in which this cannot be done
    ├── WorkerError             1  a worker did not do what we asked of it
    │   ├── WorkerAuthError     1  a worker does not accept any of our keys
    │   │   └── UnknownLoginError 1  nothing here tells by which name the workers know us
    │   ├── HostKeyError        1  a worker shows another host key than it did before
    │   ├── WorkerLostError     1  the connection to a worker broke in the middle of something
    │   ├── NotStartedError     1  nothing was begun there, for another worker cannot be reached
    │   ├── WorkerDiskFullError 1  a worker has no space left
    │   ├── WorkerUnfitError    1  a worker is not fit for a job, or not like the others
    │   ├── JobLostError        1  a job is gone and left no exit code
    │   ├── CommandFailedError  1  a command ended with an exit code of its own, not 0
    │   │   └── CommandNotFoundError 127  a worker has no such command
    │   └── CommandKilledError  1  a command was ended by a signal: by the kernel, or by somebody
    ├── UsageError              2  the command line itself is wrong
    ├── StoppedError          130  Ctrl-C, and what was under way has been settled
    └── TryAgainError           3  nothing is broken: the same command may work later
        ├── NoCapacityError     3  the zone has no free TPU of this type right now
        ├── RateLimitedError    3  too many requests a minute
        ├── UnavailableError    3  the service did not answer, or not in time
        ├── WorkerUnreachableError 3  no SSH connection to a worker came about
        ├── DeadlineError       3  it took longer than we were told to wait
        └── PreemptedError      3  the TPU was taken away while it was being created

A message says what we were doing, to which object, where; the hint is the next command.
Ctrl-C that leaves nothing to say is Python's own KeyboardInterrupt, and 130 as well.
"""

EXIT_INTERRUPTED = 130


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says, or the name of its type if it says nothing.

    Exceptions of Google's libraries keep the message in `args[0]` and add details to `str()`.
    """
    text = str(error.args[0] if error.args else error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


class TpuctlError(Exception):
    """Base of everything tpuctl raises on purpose. `hint` names the next command."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidInputError(TpuctlError):
    """A file or a value we were given cannot be used."""

    code = "invalid"


class TargetError(InvalidInputError):
    """Code that the user pointed us to raised, hung or returned something unusable."""

    code = "target_failed"


class DamagedError(InvalidInputError):
    """A data set does not match its manifest."""

    code = "damaged"


class SourceChangedError(InvalidInputError):
    """A picture has changed since the plan was made."""

    code = "source_changed"


class NotFoundError(TpuctlError):
    """The named file, folder or object does not exist."""

    code = "not_found"


class AlreadyExistsError(TpuctlError):
    """The target exists and we were not told to replace it."""

    code = "already_exists"


class WriteError(TpuctlError):
    """The place we must write to is full, read-only or gone."""

    code = "write_failed"


class LimitPassedError(TpuctlError):
    """A figure is beyond what the caller allowed."""

    code = "limit_passed"


class ScriptFailedError(TpuctlError):
    """A training script ended with an error of its own."""

    code = "script_failed"


class ServiceFailedError(TpuctlError):
    """A server of the tf.data service ended, again after each restart."""

    code = "service_failed"


class MissingExtraError(TpuctlError):
    """A part of tpuctl that is not installed is needed."""

    code = "missing_extra"

    def __init__(self, what: str, *, extra: str, module: str) -> None:
        super().__init__(
            f"{what} needs the Python module {module}, which is not installed here.",
            hint=f"pip install 'tpuctl[{extra}]'",
        )
        self.extra = extra


class NotLoggedInError(TpuctlError):
    """There are no credentials for Google Cloud on this machine."""

    code = "not_logged_in"


class PermissionDeniedError(TpuctlError):
    """The account may not do this in the project."""

    code = "permission_denied"


class ZoneHiddenError(PermissionDeniedError):
    """The zone does not exist, or the project is not on its allow-list."""

    code = "zone_hidden"


class ApiDisabledError(TpuctlError):
    """The Cloud TPU API is switched off in the project."""

    code = "api_disabled"


class QuotaExceededError(TpuctlError):
    """The project may not have that many chips there; waiting does not help."""

    code = "quota_exceeded"


class WrongStateError(TpuctlError):
    """The object is in a state in which this cannot be done."""

    code = "wrong_state"


class WorkerError(TpuctlError):
    """A worker did not do what we asked of it."""

    code = "worker_failed"


class WorkerAuthError(WorkerError):
    """A worker does not accept any of the keys that we have."""

    code = "worker_auth"


class UnknownLoginError(WorkerAuthError):
    """Nothing on this machine tells by which name the workers know us."""


class HostKeyError(WorkerError):
    """A worker shows another host key than it did before, so it may be somebody else."""

    code = "host_key_changed"


class WorkerLostError(WorkerError):
    """The connection to a worker broke; whether what we asked for was done is not known."""

    code = "worker_lost"


class NotStartedError(WorkerError):
    """Nothing was begun on a worker, because another cannot be reached."""

    code = "not_started"


class WorkerDiskFullError(WorkerError):
    """A worker has no space left where it must write."""

    code = "worker_disk_full"


class WorkerUnfitError(WorkerError):
    """A worker is not fit for a job, or is not like the others of its slice."""

    code = "worker_unfit"


class ChipsHeldError(WorkerError):
    """A process still has chips of a worker, and could not or must not be ended."""

    code = "chips_held"


class JobLostError(WorkerError):
    """A job is gone and left no exit code: its machine was restarted, or its supervisor killed."""

    code = "job_lost"


class CommandFailedError(WorkerError):
    """A command on a worker ended with an exit code of its own, not 0."""

    code = "command_failed"


class CommandNotFoundError(CommandFailedError):
    """A worker has no such command; the exit code is a shell's for that."""

    exit_code = 127
    code = "command_not_found"


class CommandKilledError(WorkerError):
    """A command on a worker was ended by a signal that we did not send."""

    code = "command_killed"


class UsageError(TpuctlError):
    """The command line is wrong."""

    exit_code = 2
    code = "usage"


class StoppedError(TpuctlError):
    """Ctrl-C ended it; the message says what was cancelled and what was left."""

    exit_code = EXIT_INTERRUPTED
    code = "interrupted"


class TryAgainError(TpuctlError):
    """Nothing is broken; the same command may work later."""

    exit_code = 3
    code = "try_again"


class NoCapacityError(TryAgainError):
    """The zone has no free TPU of this type right now."""

    code = "no_capacity"


class RateLimitedError(TryAgainError):
    """Too many requests a minute; `retry_after_s` is what the service asked for, if it did."""

    code = "rate_limited"

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class UnavailableError(TryAgainError):
    """The service did not answer, or not in time; whether it did the work is not known."""

    code = "unavailable"


class DeadlineError(TryAgainError):
    """It took longer than we were told to wait."""

    code = "deadline"


class PreemptedError(TryAgainError):
    """The TPU was taken away, or vanished, while it was being created."""

    code = "preempted"


class WorkerUnreachableError(TryAgainError):
    """No SSH connection to a worker came about: refused, unanswered, or no such address."""

    code = "worker_unreachable"
