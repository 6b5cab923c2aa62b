"""`tpuctl.doctor()`: the diagnosis as an object that displays itself."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from tpuctl.diagnosis.diagnose import examine
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.notebook.paper import as_text


@dataclass(frozen=True, repr=False)
class Report(Diagnosis):
    """A diagnosis that is a card in a notebook and text everywhere else."""

    def __repr__(self) -> str:
        from tpuctl.reporters.doctor import text

        return as_text(text(self))

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
