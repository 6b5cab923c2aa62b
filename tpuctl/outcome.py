"""The base of every result: how it shows itself, status, exit code, warnings and failures."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from tpuctl.errors import TpuctlError

Status = Literal["ok", "attention", "partial", "error"]


class Outcome:
    """Base of the frozen dataclasses that commands return.

    The fields of the dataclass are the `data` of the JSON envelope; these properties go around it.
    A result shows itself: one line as `repr`, the report of the command with `print`, and a card in
    a notebook.
    """

    def __init_subclass__(cls) -> None:
        # Found in the class itself, it is not replaced by that of the dataclass.
        cls.__repr__ = Outcome.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return str(_reports().display.line_of(self))

    def __str__(self) -> str:
        return str(_reports().display.text_of(self))

    def _repr_html_(self) -> str:
        return str(_reports().display.card(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the `data` that the command prints with `--json`."""
        from tpuctl.codec import to_plain, utc  # not needed to show a result

        return dict(to_plain(self, moment=utc))

    def save(self, path: str | Path) -> Path:
        """Write the result as the command's JSON (.json) or HTML (.html); a profile as .tpuprof."""
        saved: Path = _reports("pages").pages.save(self, path)
        return saved

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


def _reports(name: str = "display") -> Any:
    # By name, because the reporters import the results.
    import_module(f"tpuctl.reporters.{name}")
    return import_module("tpuctl.reporters")
