"""Every exception tpuctl raises on purpose, its exit code and its hint.

    TpuctlError                 1  failed, and we can say why
    ├── InvalidInputError       1  a file or a value cannot be used
    │   ├── TargetError         1  the user's own code failed
    │   ├── DamagedError        1  a data set does not match its manifest
    │   ├── InvalidArgumentError 2  an argument or an option cannot be read
    │   └── SourceChangedError  1  an image changed while it was being presized
    ├── NotFoundError           1  the named object does not exist
    ├── AlreadyExistsError      1  the target exists, and replacing it was not requested
    ├── WriteError              1  the destination is full, read-only or missing
    ├── LimitPassedError        1  a figure exceeds a --fail-if limit
    ├── ScriptFailedError       1  a training script failed
    ├── CompilerError           1  the TPU compiler rejected a program
    ├── ServiceFailedError      1  a tf.data server keeps exiting
    ├── MissingExtraError       1  an optional part of tpuctl is not installed
    ├── NotLoggedInError        1  no credentials for Google Cloud
    ├── PermissionDeniedError   1  the account may not do this
    │   └── ZoneHiddenError     1  the project may not use this zone
    ├── ApiDisabledError        1  the Cloud TPU API is disabled in the project
    ├── QuotaExceededError      1  not enough quota; waiting does not help
    ├── WrongStateError         1  the object's state does not allow this
    ├── WorkerError             1  a worker could not do what was requested
    │   ├── WorkerAuthError     1  a worker accepts none of our keys
    │   │   └── UnknownLoginError 1  the login name for the workers is unknown
    │   ├── HostKeyError        1  a worker's host key has changed
    │   ├── WorkerLostError     1  the connection to a worker broke
    │   ├── NotStartedError     1  not started, because another worker is unreachable
    │   ├── WorkerDiskFullError 1  a worker's disk is full
    │   ├── WorkerUnfitError    1  a worker is unfit for a job, or differs from the others
    │   ├── ChipsHeldError      1  a process still holds chips of a worker
    │   ├── JobLostError        1  a job is gone without an exit code
    │   ├── CommandFailedError  1  a command failed with its own exit code
    │   │   └── CommandNotFoundError 127  a worker does not have the command
    │   └── CommandKilledError  1  a command was killed by a signal
    ├── UsageError              2  the command line is wrong
    │   └── UnsupportedError    2  a provider of TPUs does not offer this
    ├── StoppedError          130  Ctrl-C, after cleaning up
    └── TryAgainError           3  nothing is broken: the same command may work later
        ├── NoCapacityError     3  the zone has no free TPU of this type right now
        ├── RateLimitedError    3  too many requests per minute
        ├── UnavailableError    3  the service did not answer in time
        ├── WorkerUnreachableError 3  no SSH connection to a worker
        ├── DeadlineError       3  the time limit was reached
        └── PreemptedError      3  the TPU was preempted while it was being created

A message says what we were doing, to which object, where; the hint is the next command.
Ctrl-C with nothing to clean up is Python's own KeyboardInterrupt, and exits with 130 as well.
"""

from collections.abc import Iterable, Mapping

EXIT_INTERRUPTED = 130


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type's name if that is empty.

    Exceptions of Google's libraries keep the message in `args[0]` and add details to `str()`.
    """
    text = str(error.args[0] if error.args else error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence with the name that was probably meant, and a space; or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), known, 1, 0.75)
    return f"Did you mean {near[0]}? " if near else ""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived; unlike any other SystemExit, it is not one of the user's code."""


class TpuctlError(Exception):
    """Base of everything tpuctl raises on purpose. `hint` names the next command."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InvalidInputError(TpuctlError):
    """A file or a value cannot be used."""

    code = "invalid"


class TargetError(InvalidInputError):
    """The user's own code raised, hung or returned something unusable."""

    code = "target_failed"


class DamagedError(InvalidInputError):
    """A data set does not match its manifest."""

    code = "damaged"


class InvalidArgumentError(InvalidInputError):
    """An argument or an option has a value that cannot be used: the command line is wrong."""

    exit_code = 2
    code = "usage"


class SourceChangedError(InvalidInputError):
    """An image has changed since the plan was made."""

    code = "source_changed"


class NotFoundError(TpuctlError):
    """The named file, folder or object does not exist."""

    code = "not_found"


class AlreadyExistsError(TpuctlError):
    """The target exists, and replacing it was not requested."""

    code = "already_exists"


class WriteError(TpuctlError):
    """The destination is full, read-only or missing."""

    code = "write_failed"


class LimitPassedError(TpuctlError):
    """A figure exceeds a limit that the caller set."""

    code = "limit_passed"


class ScriptFailedError(TpuctlError):
    """A training script failed."""

    code = "script_failed"


class CompilerError(TpuctlError):
    """The TPU compiler rejected a program."""

    code = "compile_failed"


class ServiceFailedError(TpuctlError):
    """A tf.data server exited again after each restart."""

    code = "service_failed"


class MissingExtraError(TpuctlError):
    """An optional part of tpuctl is needed and not installed."""

    code = "missing_extra"

    def __init__(self, what: str, *, extra: str, module: str) -> None:
        super().__init__(
            f"{what} needs the Python module {module}, which is not installed.",
            hint=f"pip install 'tpuctl[{extra}]'",
        )
        self.extra = extra


class NotLoggedInError(TpuctlError):
    """This machine has no credentials for Google Cloud."""

    code = "not_logged_in"


class PermissionDeniedError(TpuctlError):
    """The account may not do this in the project."""

    code = "permission_denied"


class ZoneHiddenError(PermissionDeniedError):
    """The zone does not exist, or the project is not on its allow-list."""

    code = "zone_hidden"


class ApiDisabledError(TpuctlError):
    """The Cloud TPU API is disabled in the project."""

    code = "api_disabled"


class QuotaExceededError(TpuctlError):
    """The project does not have enough quota; waiting does not help."""

    code = "quota_exceeded"


class WrongStateError(TpuctlError):
    """The state of the object does not allow this."""

    code = "wrong_state"


class WorkerError(TpuctlError):
    """A worker could not do what was requested."""

    code = "worker_failed"


class WorkerAuthError(WorkerError):
    """A worker accepts none of our keys."""

    code = "worker_auth"


class UnknownLoginError(WorkerAuthError):
    """The login name for the workers cannot be determined on this machine."""


class HostKeyError(WorkerError):
    """A worker's host key has changed: it may be another machine."""

    code = "host_key_changed"


class WorkerLostError(WorkerError):
    """The connection to a worker broke; whether the request was carried out is unknown."""

    code = "worker_lost"


class NotStartedError(WorkerError):
    """Nothing was started on a worker, because another one is unreachable."""

    code = "not_started"


class WorkerDiskFullError(WorkerError):
    """A worker's disk is full."""

    code = "worker_disk_full"


class WorkerUnfitError(WorkerError):
    """A worker is unfit for a job, or differs from the others in its slice."""

    code = "worker_unfit"


class ChipsHeldError(WorkerError):
    """A process still holds chips of a worker, and could not or must not be killed."""

    code = "chips_held"


class JobLostError(WorkerError):
    """A job is gone without an exit code: its machine restarted, or its supervisor was killed."""

    code = "job_lost"


class CommandFailedError(WorkerError):
    """A command on a worker failed with its own exit code."""

    code = "command_failed"


class CommandNotFoundError(CommandFailedError):
    """A worker does not have the command; the exit code is the one that shells use."""

    exit_code = 127
    code = "command_not_found"


class CommandKilledError(WorkerError):
    """A command on a worker was killed by a signal that we did not send."""

    code = "command_killed"


class UsageError(TpuctlError):
    """The command line is wrong."""

    exit_code = 2
    code = "usage"


def refuse_unused(options: Mapping[str, object], where: str, *, hint: str = "") -> None:
    """Raise UsageError for options that were given and have no effect."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        have = "has" if len(given) == 1 else "have"
        hint = hint or f"Leave {'it' if len(given) == 1 else 'them'} out."
        raise UsageError(f"{', '.join(given)} {have} no effect {where}.", hint=hint)


class UnsupportedError(UsageError):
    """A provider of TPUs does not offer this; the hint names the closest thing that it does."""

    code = "unsupported"


class StoppedError(TpuctlError):
    """Ctrl-C; the message says what was cancelled and what was kept."""

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
    """Too many requests per minute; `retry_after_s` is the wait that the service requested."""

    code = "rate_limited"

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class UnavailableError(TryAgainError):
    """The service did not answer in time; whether it did the work is unknown."""

    code = "unavailable"


class DeadlineError(TryAgainError):
    """The time limit was reached."""

    code = "deadline"


class PreemptedError(TryAgainError):
    """The TPU was preempted, or vanished, while it was being created."""

    code = "preempted"


class WorkerUnreachableError(TryAgainError):
    """No SSH connection to a worker: refused, timed out, or an unknown address."""

    code = "worker_unreachable"
