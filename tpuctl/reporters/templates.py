"""Templates as text."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuctl.training.catalog import Catalog, Template, Written


def catalog(result: Catalog) -> RenderableType:
    """One line for each template."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for entry in result.templates:
        table.add_row(entry.name, entry.summary)
    return Group(
        table,
        Text("\nTry one: tpuctl launch NAME --set data=fake --set steps=20"),
        Text("What else it trains on: tpuctl templates show NAME"),
    )


def template(result: Template) -> RenderableType:
    """What a template does, and its flags."""
    flags = Table(box=None, pad_edge=False, show_header=False)
    flags.add_column(style="bold", no_wrap=True)
    flags.add_column()
    for flag in result.flags:
        flags.add_row(flag.name, flag.help)
    return Group(
        Text(f"{result.name}: {result.summary}\n", style="bold"),
        Text(result.usage + "\n"),
        Padding(flags, (0, 0, 0, 2)),
        Text(f"\n{result.path}"),
    )


def written(result: Written) -> RenderableType:
    """Where the copy is and how to try it."""
    return Text(f"Wrote {result.path}\n  → {result.next_command}")
