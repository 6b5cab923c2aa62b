"""The base of every result: status, exit code, warnings, reasons and failures."""

from typing import Literal

from tpuctl.errors import TpuctlError

Status = Literal["ok", "attention", "partial", "error"]


class Outcome:
    """Base of the frozen dataclasses that commands return.

    The fields of the dataclass are the `data` of the JSON envelope; these properties go around it.
    """

    @property
    def status(self) -> Status:
        """The status in the JSON envelope: by default `error` if anything failed."""
        return "error" if self.failures else "ok"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: by default that of the first failure."""
        return self.failures[0].exit_code if self.failures else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader should know besides the result."""
        return ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """What led to the result, shown with `-v`."""
        return ()

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """What went wrong although there is a result."""
        return ()
