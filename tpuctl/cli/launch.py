"""`tpuctl launch`."""

from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.diagnosis import diagnose
from tpuctl.launch.plan import LaunchPlan, find_script, pick_choice, plan_launch
from tpuctl.launch.run import run_training
from tpuctl.reporters import launch as report
from tpuctl.runtime import live_machine

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command only.")] = False,
) -> None:
    """Train a template or a script of yours, with the right strategy."""
    plan = _plan(script, framework, strategy, settings or [], arguments or [])
    if dry_run:
        output.show(plan, report.plan)
    else:
        output.show(run_training(plan, log=output.script_log()), report.training)


def _plan(
    target: str, framework: str, strategy: str, settings: list[str], arguments: list[str]
) -> LaunchPlan:
    script, here = find_script(target), diagnose(live_machine())
    choice = pick_choice(
        script,
        here.strategies,
        preferred=here.recommended.framework,
        framework=framework,
        strategy=strategy,
    )
    devices = here.devices or here.gpus or 1
    return plan_launch(script, choice, settings, arguments, devices=devices)
