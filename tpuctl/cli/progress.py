"""Progress bars on stderr."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpuctl.cli import output
from tpuctl.printable import printable_result
from tpuctl.progress import MESSAGE, OnProgress, Progress, silent, speed
from tpuctl.reporters import layout
from tpuctl.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_TERMINAL_FORCED = ("FORCE_COLOR", "TTY_COMPATIBLE")


@contextmanager
def bars() -> Iterator[OnProgress]:
    """Show a bar for every task while it runs; without a terminal, a line when it is done."""
    console = _terminal()
    if console is None:
        yield output.note_message if output.as_json() else _Lines()
        return
    live = _live(console)
    try:
        yield _Bars(live)
    finally:
        live.stop()


def _live(console: "Console", get_time: Callable[[], float] = time.monotonic) -> "Bars":
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    texts = ("{task.description}", "{task.fields[amount]}", "{task.fields[note]}")
    name, *rest = (TextColumn(text, markup=False) for text in texts)
    return Bars(name, BarColumn(), *rest, console=console, get_time=get_time, transient=True)


@contextmanager
def states() -> Iterator[OnProgress]:
    """Show the state of what is waited for; without a terminal, a line for each change."""
    console = _terminal()
    if console is None:
        yield silent if output.as_json() else _Changes()
        return
    seen: dict[str, str] = {}
    with console.status("Requested") as status:

        def show(progress: Progress) -> None:
            seen[progress.task] = _state(printable_result(progress))
            status.update(layout.text("; ".join(seen.values())))

        yield show


@contextmanager
def screen(draw: Callable[[Any], Any]) -> Iterator[Callable[[Any], None]]:
    """Redraw something in place, cut to the height of the terminal."""
    from rich.live import Live

    console = layout.console(width=output.terminal_width())
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def show(thing: Any) -> None:
            live.update(layout.Printable(draw(printable_result(thing))), refresh=True)

        yield show


def _terminal() -> "Console | None":
    """Return the terminal on stderr, or None; rich is loaded only for a terminal."""
    if not sys.stderr.isatty() and not any(map(os.environ.get, _TERMINAL_FORCED)):
        return None
    console = layout.console(stderr=True, width=output.terminal_width())
    return console if console.is_terminal else None


class _Bars:
    """Draws bars only while a task is unfinished, so that other output can come between."""

    def __init__(self, live: "Bars") -> None:
        self._live = live
        self._tasks: dict[str, TaskID] = {}
        self._start: dict[str, tuple[float, float]] = {}

    def __call__(self, progress: Progress) -> None:
        progress = printable_result(progress)
        if progress.task == MESSAGE:
            self._live.console.print(progress.note)
            return
        self._live.start()
        if progress.task not in self._tasks:
            self._tasks[progress.task] = self._live.add_task(
                progress.task, total=None, amount="", note=""
            )
        now_s = self._live.get_time()
        start_s, before = self._start.setdefault(progress.task, (now_s, progress.done))
        pace = speed(progress, progress.done - before, now_s - start_s)
        self._live.update(
            self._tasks[progress.task],
            completed=progress.done,
            total=progress.total,
            amount=_amount(progress) + pace,
            note=progress.note,
        )
        if self._live.finished:
            self._live.stop()


class _Lines:
    def __init__(self) -> None:
        self._finished: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        output.note_message(progress)
        finished = progress.total is not None and progress.done >= progress.total
        if finished and progress.task not in self._finished:
            self._finished.add(progress.task)
            output.note(f"{progress.task}: {_amount(progress)}")


class _Changes:
    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __call__(self, progress: Progress) -> None:
        if self._last.get(progress.task) != progress.note:
            self._last[progress.task] = progress.note
            output.note(_state(progress))


def _state(progress: Progress) -> str:
    after = f" ({format_duration(progress.done)})" if progress.done >= 1 else ""
    return f"{progress.task}: {progress.note}{after}"


def _amount(progress: Progress) -> str:
    is_small = progress.unit == "MiB" and (progress.total or progress.done) < 10
    digits = 1 if is_small else 0
    total = "" if progress.total is None else f"/{progress.total:,.{digits}f}"
    return f"{progress.done:,.{digits}f}{total} {progress.unit}".strip()
