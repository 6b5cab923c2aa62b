"""Progress of long work, reported without knowing who displays it."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from tpuctl.printable import printable
from tpuctl.units import format_duration, format_rate

MESSAGE = "message"
"""The task name of a message: a sentence to show, not progress."""
LEAST_S = 2.0
"""Work that has taken less has no rate yet."""


@dataclass(frozen=True)
class Progress:
    """How far one task is; `total` is None while it is unknown."""

    task: str
    done: float
    total: float | None = None
    unit: str = ""
    note: str = ""


OnProgress = Callable[[Progress], None]


def message(sentence: str) -> Progress:
    """Wrap a sentence that is to be shown once."""
    return Progress(MESSAGE, 0, note=sentence)


def silent(progress: Progress) -> None:
    """Show nothing."""


def speed(progress: Progress, done: float, seconds: float) -> str:
    """Return the rate and the time left in words, after two seconds; empty before."""
    if seconds < LEAST_S or done <= 0:
        return ""
    rate = f", {format_rate(done / seconds, progress.unit)}"
    if progress.total is None:
        return rate
    left_s = max(1.0, (progress.total - progress.done) * seconds / done)
    return f"{rate}, {format_duration(left_s)} left"


@dataclass
class StderrProgress:
    """Shows progress on stderr, for Python code that may not expect the work to take long.

    Work that ends within `delay_s` shows nothing.
    """

    what: str
    out: TextIO = field(default_factory=lambda: sys.stderr)
    now_s: Callable[[], float] = time.monotonic
    delay_s: float = 2.0
    _due_s: float | None = None
    _has_shown: bool = False
    _start: tuple[float, float] = (0.0, 0.0)

    def __call__(self, progress: Progress) -> None:
        """Show a line when it is due; a terminal shows it in place of the last one."""
        now_s = self.now_s()
        if self._due_s is None:
            self._due_s, self._start = now_s + self.delay_s, (now_s, progress.done)
        is_over = progress.total is not None and progress.done >= progress.total
        if now_s < self._due_s and not (self._has_shown and is_over):
            return
        is_terminal = self.out.isatty()
        self._due_s = now_s + (0.2 if is_terminal else 10.0)
        self._has_shown = not is_over
        total = "" if progress.total is None else f" of {progress.total:,.0f}"
        amount = f"{progress.done:,.0f}{total} {progress.unit}" if progress.unit else progress.note
        start_s, before = self._start
        if progress.unit and not is_over:
            amount += speed(progress, progress.done - before, now_s - start_s)
        line = printable(f"{self.what}: {amount}")
        start, end = ("\r\x1b[K", "\n" if is_over else "") if is_terminal else ("", "\n")
        self.out.write(f"{start}{line}{end}")
        self.out.flush()
