"""`tpuctl bench`, `tpuctl bench compare`."""

from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output, progress
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.reporters import bench as report
from tpuctl.runtime.live import live_machine
from tpuctl.training import bench as comparing
from tpuctl.training.bench import draw, parse_batches, run_bench

app = typer.Typer(add_completion=False, invoke_without_command=True)

Sweep = Annotated[Path, typer.Argument(help="What tpuctl bench --json printed, in a file.")]


@app.callback()
def bench(
    ctx: typer.Context,
    template: Annotated[str, typer.Option(help="What to train, on fake data.")] = "mnist-cnn",
    batch: Annotated[str, typer.Option(help="Global batch sizes.")] = "256,512,1024",
    epochs: Annotated[int, typer.Option(help="Epochs; the first is reported apart.")] = 4,
    examples: Annotated[int | None, typer.Option(min=1, help="Examples in an epoch.")] = None,
    framework: Annotated[str, typer.Option(help="auto, tensorflow or jax.")] = "auto",
    cpu_devices: Annotated[
        int | None, typer.Option(min=2, help="Measure the CPU split into so many, too.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw us/example as a PNG.")] = None,
) -> None:
    """Measure how fast this machine trains at several batch sizes; compare two machines."""
    if ctx.invoked_subcommand is not None:
        return
    with progress.bars() as on_progress:
        result = run_bench(
            diagnose(live_machine()),
            template=template,
            batch_sizes=parse_batches(batch),
            epochs=epochs,
            examples=examples,
            framework=framework,
            cpu_devices=cpu_devices,
            on_progress=on_progress,
        )
    if plot:
        result = draw(result, plot)
    output.show(result, report.bench)


@app.command()
def compare(before: Sweep, after: Sweep) -> None:
    """Say how many times as fast the second machine is as the first."""
    output.show(comparing.compare(comparing.load(before), comparing.load(after)), report.comparison)
