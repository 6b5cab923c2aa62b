"""`tpuctl demo`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.progress import bars
from tpuctl.demo.demo import Watcher, run_day
from tpuctl.reporters import day as report

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    images: Annotated[
        Path | None,
        typer.Option(help="Your photographs, 8 or more; without it, about 200 are made."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where shards, profiles and the report go.")] = Path(
        "tpuctl-demo"
    ),
) -> None:
    """Run the whole day on this machine in minutes, and write a report."""
    with bars() as on_progress:
        result = run_day(images, out, Watcher(output.step, on_progress, output.STDERR))
    report.write(result)
    output.show(result, report.text)
