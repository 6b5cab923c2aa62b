"""A watch as text: what it will look after, and what came of it."""

import shlex

from rich.console import RenderableType
from rich.table import Table

from tpuctl.supervise.messages import WatchResult
from tpuctl.supervise.models import JobAttempt
from tpuctl.supervise.plan import WatchPlan
from tpuctl.units import format_duration, format_usd


def plan(result: WatchPlan) -> str:
    """What would be looked after, and what would be done when it is taken away."""
    place = f" in {result.zone}" if result.zone else ""
    now = f"is {result.state}{place}" if result.state else "is not there yet"
    lines = [
        f"Would look after {result.name}, which {now}: {promise(result)}",
        f"The job: {shlex.join(result.command)}",
    ]
    if result.folder:
        source = f", a copy of {result.code}" if result.code else ""
        lines.append(f"It runs in the folder {result.folder}{source}.")
    lines.append(f"Given up after {result.max_crashes} crashes; preemptions do not count.")
    if result.goes_on_with:
        lines.append(f"It goes on with the job {result.goes_on_with}.")
    return "\n".join(lines)


def promise(result: WatchPlan) -> str:
    """What is made again, where, at what price."""
    flags = (("spot", result.spot), ("queued", result.queued))
    kind = ", ".join([result.accelerator_type, *(word for word, is_set in flags if is_set)])
    where = ", ".join(result.zones) if result.zones else "the first zone that has one"
    price = "a price that is not known"
    if result.usd_per_hour is not None:
        price = f"{format_usd(result.usd_per_hour)} an hour"
    return f"if it is taken away, {kind} is made again in {where}, for {price}."


def question(result: WatchPlan) -> str:
    """Ask for leave to make the first one."""
    return f"There is no {result.name}. Make it, and again whenever it is taken away?"


def watched(result: WatchResult) -> RenderableType:
    """Every attempt and why it ended; then the last words of a job that failed."""
    table = Table(box=None, pad_edge=False)
    for column in ("attempt", "zone", "ran for", "ended by", "because"):
        table.add_column(column, overflow="fold")
    for attempt in result.attempts:
        seconds = (attempt.ended - attempt.began).total_seconds()
        table.add_row(
            str(attempt.number),
            attempt.zone,
            format_duration(seconds),
            attempt.cause.replace("_", " "),
            attempt.reason or _code(attempt),
        )
    if not result.tail:
        return table
    from rich.console import Group
    from rich.text import Text

    said = Text("\n".join(result.tail))
    return Group(table, "", Text("The last that it said:"), said)


def _code(attempt: JobAttempt) -> str:
    return "" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
