"""What every command returns, whatever else it carries."""

from typing import Literal

from tpuctl.errors import TpuctlError

Status = Literal["ok", "attention", "partial", "error"]


class Outcome:
    """Base of the frozen dataclasses that commands return.

    The fields of the dataclass are the `data` of the JSON envelope; these say how it went, and why.
    """

    @property
    def status(self) -> Status:
        """How the command went, in the envelope's words."""
        return "ok"

    @property
    def exit_code(self) -> int:
        """What the shell gets to see."""
        return 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences worth a reader's time that change nothing about the result."""
        return ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """What led to the result, for those who ask with `-v`."""
        return ()

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """What went wrong although there is a result to show."""
        return ()
