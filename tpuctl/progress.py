"""How long work says how far it is, without knowing who is watching."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far one task is. `total` is None while nobody knows."""

    task: str
    done: float
    total: float | None = None
    unit: str = ""
    note: str = ""


TOLD = "told"
"""The task of a sentence that is no progress, but to be read before the work begins."""


def told(sentence: str) -> Progress:
    """Say something once."""
    return Progress(TOLD, 0, None, "", sentence)


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Watch nothing."""
