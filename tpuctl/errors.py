"""Every exception tpuctl raises on purpose, its exit code and its hint.

    TpuctlError                 1  failed, and we can say why
    ├── InvalidInputError       1  a file or a value we were given cannot be used
    │   └── TargetError         1  the user's own code failed, not ours
    ├── NotFoundError           1  the named thing does not exist
    ├── AlreadyExistsError      1  the target is there and we were not told to replace it
    ├── WriteError              1  the place we must write to is full, read-only or gone
    ├── LimitPassedError        1  a figure is beyond what the caller allowed with --fail-if
    ├── ScriptFailedError       1  a training script ended with an error of its own
    ├── MissingExtraError       1  a part of tpuctl that is not installed
    ├── UsageError              2  the command line itself is wrong
    └── TryAgainError           3  nothing is broken: the same command may work later

A message says what we were doing, to which object, where; the hint is the next command.
130 (Ctrl-C) has no class: it is Python's own KeyboardInterrupt.
"""

EXIT_INTERRUPTED = 130


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


class MissingExtraError(TpuctlError):
    """A part of tpuctl that is not installed is needed."""

    code = "missing_extra"

    def __init__(self, what: str, *, extra: str, module: str) -> None:
        super().__init__(
            f"{what} needs the Python module {module}, which is not installed here.",
            hint=f"pip install 'tpuctl[{extra}]'",
        )
        self.extra = extra


class UsageError(TpuctlError):
    """The command line is wrong."""

    exit_code = 2
    code = "usage"


class TryAgainError(TpuctlError):
    """Nothing is broken; the same command may work later."""

    exit_code = 3
    code = "try_again"
