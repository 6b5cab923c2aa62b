"""`tpuctl launch`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli import output, workers
from tpuctl.cli.options import Project, Zone
from tpuctl.cli.progress import bars
from tpuctl.datasets.local_copies import copy_data_set
from tpuctl.datasets.places import bucket_of
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.errors import UsageError
from tpuctl.progress import OnProgress
from tpuctl.remote.run import plan_command
from tpuctl.reporters import launch as report
from tpuctl.runtime.live import live_machine
from tpuctl.training.plan import find_script, plan_training
from tpuctl.training.watched import watch_training

app = typer.Typer(add_completion=False)

LOCAL = "local"


@app.command()
def launch(
    script: Annotated[str, typer.Argument(help="A template's name, or a script of yours.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script gets as it is, behind --.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="local|NAME", help="On every worker of a TPU.")
    ] = LOCAL,
    host: workers.Hosts = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A flag of the script, as K=V.")
    ] = None,
    framework: Annotated[str, typer.Option(help="auto, tensorflow, jax or torch.")] = "auto",
    strategy: Annotated[str, typer.Option(help="auto, or one that doctor names.")] = "auto",
    cpu_devices: Annotated[
        int | None, typer.Option(min=1, help="Split the CPU into so many pretended devices.")
    ] = None,
    code: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy this folder, not the script alone.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable, on workers.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it on the workers and let it go on alone.")
    ] = False,
    job: workers.Job = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Look at every worker before.")
    ] = True,
    key: workers.Key = None,
    jump: workers.Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: workers.InternalIp = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the command only.")] = False,
) -> None:
    """Train a template or a script of yours, with the right strategy."""
    what: dict[str, Any] = {
        "framework": framework,
        "strategy": strategy,
        "settings": settings or [],
        "arguments": arguments or [],
    }
    if on == LOCAL and not host:
        if detach or code or env or job:
            raise UsageError(
                "--detach, --code, --env and --job are for workers.", hint="Say which: --on NAME"
            )
        _train_here(script, what, cpu_devices, dry_run=dry_run)
        return
    if cpu_devices:
        raise UsageError("--cpu-devices is for this machine only.", hint="Leave out --on.")
    variables = plan_command(["-"], env=env or []).env
    name = None if on == LOCAL else on
    where = workers.Where(name, host, "all", key, jump, zone, project, internal_ip)
    what |= {"code": code, "env": variables}
    _train_there(script, where, what, {"job": job, "check": check, "detach": detach}, dry_run)


def _train_here(
    script: str, what: dict[str, Any], cpu_devices: int | None, *, dry_run: bool
) -> None:
    if not dry_run:
        what["settings"] = _with_copies(script, what["settings"])
    plan = plan_training(script, diagnose(live_machine()), cpu_devices=cpu_devices, **what)
    if dry_run:
        output.show(plan, report.plan)
    else:
        for reason in plan.because:
            output.note(reason)
        output.show(watch_training(plan, log=output.script_log()), report.training)


def _with_copies(script: str, settings: list[str]) -> list[str]:
    """Let a template read the shards of a bucket from a copy on this machine."""
    if not find_script(script).reads_shards:
        return settings
    with bars() as on_progress:
        return [_with_copy(setting, on_progress) for setting in settings]


def _with_copy(setting: str, on_progress: OnProgress) -> str:
    name, _, place = setting.partition("=")
    address = bucket_of(place) if name.lstrip("-") == "data" else None
    if address is None:
        return setting
    copy = copy_data_set(address, on_progress=on_progress)
    output.note(f"{address} is read from its copy here, {copy.path}.")
    return f"{name}={copy.path}"


def _train_there(
    script: str, where: workers.Where, what: dict[str, Any], how: dict[str, Any], dry_run: bool
) -> None:
    from tpuctl.training.remote_launch import plan_on_workers, train_on_workers

    hosts, access, node = where.reach_of_node()
    plan = plan_on_workers(script, hosts, access, node=node, **what)
    if dry_run:
        output.show(plan, report.remote_plan)
        return
    for reason in plan.because:
        output.note(reason)
    result = train_on_workers(
        plan, access, **how, sink=workers.sink(), note=output.note, progress=bars
    )
    output.show(result, report.on_workers)
