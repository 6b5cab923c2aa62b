"""`tpuctl launch`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.diagnosis import diagnose
from tpuctl.launch.run import run_training
from tpuctl.reporters import launch as report
from tpuctl.runtime import live_machine
from tpuctl.training.planning import plan_training

app = typer.Typer(add_completion=False)


@app.command()
def launch(
    script: Annotated[str, typer.Argument(help="A template's name, or a script of yours.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script gets as it is, behind --.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A flag of the script, as K=V.")
    ] = None,
    framework: Annotated[str, typer.Option(help="auto, tensorflow, jax or torch.")] = "auto",
    strategy: Annotated[str, typer.Option(help="auto, or one that doctor names.")] = "auto",
    cpu_devices: Annotated[
        int | None, typer.Option(min=1, help="Split the CPU into so many pretended devices.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command only.")] = False,
) -> None:
    """Train a template or a script of yours, with the right strategy."""
    plan = plan_training(
        script,
        diagnose(live_machine()),
        framework=framework,
        strategy=strategy,
        settings=settings or [],
        arguments=arguments or [],
        cpu_devices=cpu_devices,
    )
    if dry_run:
        output.show(plan, report.plan)
    else:
        for reason in plan.because:
            output.note(reason)
        output.show(run_training(plan, log=output.script_log()), report.training)
