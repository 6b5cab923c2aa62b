"""Sweeps over batch sizes, and their comparison, as tables."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.training.bench import Bench, Comparison, Row


def bench(result: Bench) -> RenderableType:
    """One line for each device and batch size; the first epoch apart."""
    table = Table(box=None, pad_edge=False)
    for name in ("device", "framework", "strategy"):
        table.add_column(name, no_wrap=True)
    for name in ("batch", "first epoch s", "epoch s", "step ms", "us/example", "examples/s"):
        table.add_column(name, justify="right")
    for row in result.rows:
        table.add_row(row.device, row.framework, row.strategy, *_figures(row))
    title = Text(
        f"{result.template} on {result.place}: {result.examples_per_epoch:,} examples an epoch, "
        f"{result.epochs} epochs, the first of which compiles and is not in the means.\n"
    )
    drawn = [Text(f"\nplot: {result.plot}")] if result.plot else []
    return Group(title, table, *drawn)


def comparison(result: Comparison) -> RenderableType:
    """One line for each batch size that both have, and each one's best."""
    table = Table(box=None, pad_edge=False)
    for name in ("batch", "before us/example", "after us/example", "speed-up", "first epoch"):
        table.add_column(name, justify="right")
    for entry in result.speed_ups:
        table.add_row(
            _at(entry.batch_size, entry.before, entry.after),
            f"{entry.before.us_per_example:,.1f}",
            f"{entry.after.us_per_example:,.1f}",
            f"{entry.speed_up:,.2f} x",
            f"{entry.first_epoch_speed_up:,.2f} x",
        )
    title = Text(f"{result.template}\nbefore: {result.before}\nafter:  {result.after}\n")
    return Group(title, table)


def _at(size: int | None, before: Row, after: Row) -> str:
    return f"best ({before.batch_size}, {after.batch_size})" if size is None else f"{size:,}"


def _figures(row: Row) -> tuple[str, ...]:
    return (
        f"{row.batch_size:,}",
        f"{row.first_epoch_s:.2f}",
        f"{row.epoch_s:.2f}",
        f"{row.step_ms:.2f}",
        f"{row.us_per_example:,.1f}",
        f"{row.examples_per_s:,.0f}",
    )
