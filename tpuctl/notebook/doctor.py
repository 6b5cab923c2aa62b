"""`tpuctl.doctor()`: the diagnosis as an object that displays itself."""

import io
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from tpuctl.diagnosis import Diagnosis, examine


@dataclass(frozen=True, repr=False)
class Report(Diagnosis):
    """A diagnosis that is a card in a notebook and text everywhere else."""

    def __repr__(self) -> str:
        from rich.console import Console

        from tpuctl.reporters.doctor import text

        paper = io.StringIO()
        # Inside a kernel rich would otherwise display at once instead of writing.
        Console(file=paper, width=100, color_system=None, force_jupyter=False).print(text(self))
        return "\n".join(line.rstrip() for line in paper.getvalue().splitlines())

    def _repr_html_(self) -> str:
        from tpuctl.reporters.doctor_html import card

        return card(self)


def doctor(
    *,
    deep: bool = False,
    numerics: bool = False,
    record: str | PathLike[str] | None = None,
    replay: str | PathLike[str] | None = None,
) -> Report:
    """Say where you are, what accelerator is here, what is wrong and what mends it.

    `deep` and `numerics` use the accelerator, in a child process; the rest never touches it.
    """
    diagnosis = examine(
        deep=deep,
        numerics=numerics,
        record=Path(record) if record else None,
        replay=Path(replay) if replay else None,
    )
    return Report(**vars(diagnosis))
