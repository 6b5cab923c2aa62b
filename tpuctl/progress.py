"""How long work says how far it is, without knowing who is watching."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO


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


@dataclass
class Spoken:
    """Says on stderr how far work is whose caller in Python may not know that it is long.

    Work that ends within `patience_s` says nothing.
    """

    what: str
    out: TextIO = field(default_factory=lambda: sys.stderr)
    now_s: Callable[[], float] = time.monotonic
    patience_s: float = 2.0
    _due_s: float | None = None
    _has_spoken: bool = False

    def __call__(self, progress: Progress) -> None:
        """Say a line when it is time; on a terminal in the place of the last one."""
        now_s = self.now_s()
        if self._due_s is None:
            self._due_s = now_s + self.patience_s
        is_over = progress.total is not None and progress.done >= progress.total
        if now_s < self._due_s and not (self._has_spoken and is_over):
            return
        is_terminal = self.out.isatty()
        self._due_s = now_s + (0.2 if is_terminal else 10.0)
        self._has_spoken = not is_over
        total = "" if progress.total is None else f" of {progress.total:,.0f}"
        amount = f"{progress.done:,.0f}{total} {progress.unit}" if progress.unit else progress.note
        start, end = ("\r\x1b[K", "\n" if is_over else "") if is_terminal else ("", "\n")
        self.out.write(f"{start}{self.what}: {amount}{end}")
        self.out.flush()
