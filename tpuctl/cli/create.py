"""`tpuctl create`."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import output
from tpuctl.cli.opening import opened
from tpuctl.cli.options import DryRun, Project, Yes
from tpuctl.cli.progress import states
from tpuctl.cloud.creating import Choice, Created, NotCreated
from tpuctl.cloud.creating import create as create_planned
from tpuctl.cloud.disks import read_disk
from tpuctl.cloud.guard import MOST_BYTES
from tpuctl.cloud.opening import Cloud
from tpuctl.cloud.plan import CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.searching import plan_with_service, with_traffic, zones_to_try
from tpuctl.compile.warning import warn_before_create
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.remote.find import split_user
from tpuctl.remote.keys import first_key
from tpuctl.reporters import create as report
from tpuctl.settings import state_dir
from tpuctl.storage.local import open_regular
from tpuctl.units import parse_duration_s

app = typer.Typer(add_completion=False)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    kind: Annotated[
        str,
        typer.Option("--type", help="Such as v5e-8 or v4-32."),
    ],
    zone: Annotated[
        str | None, typer.Option(help="Where; auto tries every zone that has the type.")
    ] = None,
    zones: Annotated[str | None, typer.Option(help="Zones to try in this order: A,B.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Cheap, and may be taken away.")] = False,
    reserved: Annotated[bool, typer.Option("--reserved", help="From your reservation.")] = False,
    queued: Annotated[
        bool, typer.Option("--queued", help="Wait in line, in all zones at once.")
    ] = False,
    ttl: Annotated[str | None, typer.Option(help="Delete it this long after: 4h.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Delete it when it has cost this.")] = None,
    runtime_version: Annotated[str | None, typer.Option(help="If not the usual one.")] = None,
    network: Annotated[str | None, typer.Option(help="VPC network.")] = None,
    subnetwork: Annotated[str | None, typer.Option(help="Subnetwork.")] = None,
    internal_ip: Annotated[
        bool, typer.Option("--internal-ip", help="No external addresses.")
    ] = False,
    service_account: Annotated[
        str | None, typer.Option(help="E-mail; its VMs act as this.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label, as K=V.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A network tag.")] = None,
    data_disk: Annotated[
        list[str] | None,
        typer.Option(metavar="source=...,mode=...", help="A disk that is there already."),
    ] = None,
    startup_script: Annotated[
        Path | None, typer.Option(help="Run on every VM at its start.")
    ] = None,
    bucket: Annotated[str | None, typer.Option(help="Warn when the TPU is far from it.")] = None,
    wait: Annotated[bool, typer.Option(help="Until all workers are ready.")] = True,
    timeout: Annotated[str | None, typer.Option(help="Longest wait in each zone.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    project: Project = None,
) -> None:
    """Create a TPU in the first zone that has one, and wait until every worker is ready."""
    options = CreateOptions(
        name=name,
        accelerator_type=kind,
        zones=zones_to_try(zone, zones.split(",") if zones is not None else ()),
        spot=spot,
        reserved=reserved,
        queued=queued,
        ttl_s=parse_duration_s(ttl) if ttl else None,
        max_usd=max_usd,
        runtime_version=runtime_version,
        network=network,
        subnetwork=subnetwork,
        internal_ip=internal_ip,
        service_account=service_account,
        labels=_labels(label or []),
        tags=tuple(tag or ()),
        startup_script=_read(startup_script) if startup_script else None,
        data_disks=tuple(map(read_disk, data_disk or ())),
    )
    timeout_s = parse_duration_s(timeout) if timeout else None
    plan_create(options)
    cloud = opened(project)
    plan = with_traffic(cloud.api, plan_with_service(cloud.api, options), bucket=bucket)
    plan = plan.warned(*warn_before_create(plan.accelerator_type))
    if dry_run:
        output.show(plan, report.plan)
    else:
        _announce(plan, yes=yes)
        metadata = first_key(state_dir(), split_user(name)[0])
        plan = replace(plan, options=replace(plan.options, metadata=metadata))
        output.show(_create(cloud, plan, wait=wait, timeout_s=timeout_s), report.created)


def _announce(plan: CreatePlan, *, yes: bool) -> None:
    """Say what it costs and what to beware of, and ask for leave to spend that."""
    for warning in plan.warnings:
        output.note(f"Warning: {warning}")
    if plan.to_try:
        output.note(report.price(plan))
        output.confirm(report.question(plan), yes=yes)


def _create(
    cloud: Cloud, plan: CreatePlan, *, wait: bool, timeout_s: float | None
) -> Created | NotCreated:
    several = len(plan.offers) > 1
    with ExitStack() as display:
        return create_planned(
            cloud.api,
            plan,
            journal=cloud.journal,
            wait=wait,
            timeout_s=timeout_s,
            on_interrupt=lambda: _leave_or_cancel(display),
            on_progress=display.enter_context(states()),
            on_attempt=lambda attempt: output.note(report.attempt(attempt)) if several else None,
        )


def _leave_or_cancel(display: ExitStack) -> Choice:
    """Ask what to do with the request after Ctrl-C; where nobody can answer it is cancelled."""
    display.close()
    if not sys.stdin.isatty() or output.as_json():
        return "cancel"
    answers: dict[str, Choice] = {"l": "leave", "c": "cancel"}
    try:
        while True:
            text = typer.prompt("Leave the request, or cancel it?", default="cancel", err=True)
            if choice := answers.get(str(text).strip().lower()[:1]):
                return choice
    except typer.Abort:
        raise KeyboardInterrupt from None


def _labels(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"{pair!r} is no label.", hint="Write it as --label team=vision.")
        found[key] = value
    return found


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(
            f"Could not read the startup script {path}: {error.strerror}."
        ) from error
