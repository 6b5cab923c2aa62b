"""`tpuctl create`."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from tpuctl.cli import output
from tpuctl.cli.options import DryRun, Project, Yes
from tpuctl.cli.progress import states
from tpuctl.cloud.connect import Cloud, open_cloud
from tpuctl.cloud.create import Choice, Created, NotCreated
from tpuctl.cloud.create import create as create_planned
from tpuctl.cloud.follow import Attempt
from tpuctl.cloud.placement import read_disk
from tpuctl.cloud.plan import CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.ttl import MOST_BYTES
from tpuctl.cloud.zones import plan_with_service, with_traffic, zones_to_try
from tpuctl.compile.conclude import warn_before_create
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.remote.hosts import split_user
from tpuctl.remote.keys import first_key
from tpuctl.reporters import changes as report
from tpuctl.settings import state_dir
from tpuctl.storage.local import open_regular
from tpuctl.units import parse_duration_s

Name = Annotated[str, Argument(metavar="NAME", help="What to call it.")]
Type = Annotated[
    str,
    Option("--accelerator-type", "--type", help="Type such as v5e-8 or v4-32."),
]
Zone = Annotated[str | None, Option(help="Where; auto tries every zone that has the type.")]
Zones = Annotated[str | None, Option(help="Zones to try in this order: A,B.")]
Spot = Annotated[bool, Option("--spot", help="Cheap, and may be taken away.")]
Reserved = Annotated[bool, Option("--reserved", help="From your reservation.")]
Queued = Annotated[bool, Option("--queued", help="Wait in line, in all zones at once.")]
Ttl = Annotated[str | None, Option(help="Delete it this long after: 4h.")]
MaxUsd = Annotated[float | None, Option(help="Delete it when it has cost this.")]
RuntimeVersion = Annotated[str | None, Option(help="If not the usual one.")]
Network = Annotated[str | None, Option(help="VPC network.")]
Subnetwork = Annotated[str | None, Option(help="Subnetwork.")]
InternalIp = Annotated[bool, Option("--internal-ip", help="No external addresses.")]
ServiceAccount = Annotated[str | None, Option(help="E-mail; its VMs act as this.")]
Label = Annotated[list[str] | None, Option(help="A label, as K=V.")]
Tag = Annotated[list[str] | None, Option(help="A network tag.")]
DataDisk = Annotated[
    list[str] | None,
    Option(metavar="source=...,mode=...", help="A disk that is there already."),
]
StartupScript = Annotated[Path | None, Option(help="Run on every VM at its start.")]
Bucket = Annotated[str | None, Option(help="Warn when the TPU is far from it.")]
Wait = Annotated[bool, Option(help="Until all workers are ready.")]
Timeout = Annotated[str | None, Option(help="Longest wait in each zone.")]


def create(
    name: Name,
    kind: Type,
    zone: Zone = None,
    zones: Zones = None,
    spot: Spot = False,
    reserved: Reserved = False,
    queued: Queued = False,
    ttl: Ttl = None,
    max_usd: MaxUsd = None,
    runtime_version: RuntimeVersion = None,
    network: Network = None,
    subnetwork: Subnetwork = None,
    internal_ip: InternalIp = False,
    service_account: ServiceAccount = None,
    label: Label = None,
    tag: Tag = None,
    data_disk: DataDisk = None,
    startup_script: StartupScript = None,
    bucket: Bucket = None,
    wait: Wait = True,
    timeout: Timeout = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    project: Project = None,
) -> None:
    """Create a TPU, and wait until every worker is ready.

    Examples:
        tpuctl create my-tpu --accelerator-type v5e-8 --zone us-central1-a --ttl 4h
        tpuctl create my-tpu --accelerator-type v5e-8 --zone auto --spot --max-usd 20
        tpuctl create my-tpu --accelerator-type v4-32 --dry-run
    """
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
    cloud = open_cloud(project)
    for warning in cloud.warnings:
        output.warn(warning)
    plan = with_traffic(cloud.api, plan_with_service(cloud.api, options), bucket=bucket)
    plan = plan.warned(*warn_before_create(plan.accelerator_type))
    if dry_run:
        output.show(plan, report.render_create_plan)
    else:
        _announce(plan, yes=yes)
        metadata = first_key(state_dir(), split_user(name)[0])
        plan = replace(plan, options=replace(plan.options, metadata=metadata))
        output.show(_create(cloud, plan, wait=wait, timeout_s=timeout_s), report.render_created)


def _announce(plan: CreatePlan, *, yes: bool) -> None:
    """Say what it costs and what to beware of, and ask for leave to spend that."""
    for warning in plan.warnings:
        output.warn(warning)
    if plan.to_try:
        output.note(report.create_price(plan))
        output.confirm(report.create_question(plan), yes=yes)


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
            on_attempt=lambda attempt: _note_attempt(attempt) if several else None,
        )


def _note_attempt(attempt: Attempt) -> None:
    output.note(report.attempt_line(attempt))


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
