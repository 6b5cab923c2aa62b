"""This machine and the types of TPUs from Python: doctor, explain, types, config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from tpuctl.api.display import Report
    from tpuctl.diagnosis.explain import Explanation
    from tpuctl.hardware.types import AcceleratorType, TypeTable
    from tpuctl.settings import Settings


def doctor(
    *,
    deep: bool = False,
    numerics: bool = False,
    fix: bool = False,
    record: str | PathLike[str] | None = None,
    replay: str | PathLike[str] | None = None,
    confirm: Callable[[str], None] = lambda question: None,
) -> Report:
    """Diagnose this machine: runtime, accelerator, frameworks, problems and how to fix them.

    `deep` and `numerics` use the accelerator, in a child process. `fix` applies the safe fixes;
    `confirm` is called with a description before each one, and raises an exception to stop.
    `record` is a file to write this machine to, with secrets removed; `replay` is one to diagnose.
    """
    from tpuctl.api.display import Report
    from tpuctl.diagnosis.diagnose import examine

    diagnosis = examine(
        deep=deep,
        numerics=numerics,
        record=Path(record) if record else None,
        replay=Path(replay) if replay else None,
        approve=confirm if fix else None,
    )
    return Report(**vars(diagnosis))


def explain(*text: str) -> Explanation:
    """Find known failures in an error message, a code such as F05, or the file with that name."""
    from tpuctl.diagnosis.explain import explain as explain_text

    words = " ".join(text)
    if len(text) == 1 and _is_file(words):
        words = Path(words).read_text(encoding="utf-8", errors="replace")
    elif not words.strip():
        raise UsageError(
            "There is no text to explain.",
            hint="Pass the error, or pipe a log: python train.py 2>&1 | tpuctl explain",
        )
    return explain_text(words)


def _is_file(word: str) -> bool:
    # A long error message is not a path, and the system refuses to look for one of that length.
    return len(word) < 256 and "\n" not in word and "\0" not in word and Path(word).is_file()


def types(accelerator_type: str | None = None) -> AcceleratorType | TypeTable:
    """Describe one accelerator type such as v5e-8, or list all generations."""
    from tpuctl.hardware.types import all_types, describe

    return describe(accelerator_type) if accelerator_type else all_types()


def config() -> Settings:
    """Return every setting, where its value came from, and what was ignored."""
    from tpuctl.settings import load_settings

    return load_settings(quiet=True)
