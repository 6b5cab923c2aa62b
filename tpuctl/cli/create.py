"""`tpuctl create`; its parameters have the names of the Python function's."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from tpuctl.api import cloud
from tpuctl.cli import output
from tpuctl.cli.options import (
    Argument,
    DryRun,
    Option,
    Project,
    Yes,
    positive_option,
    time_option,
    zone_option,
)
from tpuctl.cli.progress import states
from tpuctl.cloud.create import Choice
from tpuctl.cloud.follow import ZoneAttempt
from tpuctl.cloud.placement import join_zone_options
from tpuctl.cloud.plan import CreatePlan, parse_data_disk
from tpuctl.cloud.ttl import MAX_SCRIPT_BYTES
from tpuctl.codec import open_regular
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.providers.port import HostedPlan
from tpuctl.reporters import changes as report

Name = Annotated[str, Argument(metavar="NAME", help="Name of the new TPU.")]
Type = Annotated[
    str,
    Option("--accelerator-type", metavar="TYPE", help="Accelerator type such as v5e-8."),
]
Zone = Annotated[str | None, zone_option("Zone; auto tries every zone that has the type.")]
Zones = Annotated[
    str | None, zone_option("Zones to try in this order: A,B.", flag="--zones", metavar="ZONE,...")
]
Spot = Annotated[bool, Option("--spot", help="Create a spot TPU: cheaper, but can be preempted.")]
Reserved = Annotated[bool, Option("--reserved", help="Use your reservation.")]
Flex = Annotated[
    bool, Option("--flex", help="Flex-start on Compute Engine: waits for capacity; --ttl.")
]
Reservation = Annotated[
    str | None,
    Option("--reservation", metavar="RESERVATION", help="Reservation on Compute Engine to use."),
]
Setup = Annotated[
    str | None,
    Option(metavar="jax|torch|none", help="Install a framework and check it. Default: none."),
]
Queued = Annotated[bool, Option("--queued", help="Create queued resources, in all zones at once.")]
Ttl = Annotated[
    float | None,
    time_option("Time to live, such as 4h, then it is deleted. Default: none.", "--ttl"),
]
MaxUsd = Annotated[
    float | None, positive_option("USD", "Budget in USD; the TPU is deleted when it is spent.")
]
RuntimeVersion = Annotated[
    str | None, Option(metavar="VERSION", help="Override the default runtime version.")
]
Network = Annotated[str | None, Option("--network", metavar="NETWORK", help="VPC network.")]
Subnetwork = Annotated[
    str | None, Option("--subnetwork", metavar="SUBNETWORK", help="VPC subnetwork.")
]
InternalIp = Annotated[bool, Option("--internal-ip", help="Assign no external addresses.")]
ServiceAccount = Annotated[str | None, Option(metavar="EMAIL", help="Service account of the VMs.")]
Label = Annotated[
    list[str] | None, Option("--label", metavar="K=V", help="Label. Can be repeated.")
]
Tag = Annotated[
    list[str] | None, Option("--tag", metavar="TAG", help="Network tag. Can be repeated.")
]
DataDisk = Annotated[
    list[str] | None,
    Option(
        "--data-disk",
        metavar="DISK",
        help="Existing disk to attach: source=PATH, and mode=read-only after a comma.",
    ),
]
StartupScript = Annotated[
    Path | None, Option(metavar="FILE", help="Script that every VM runs when it starts.")
]
Bucket = Annotated[
    str | None,
    Option(
        "--bucket", metavar="BUCKET", help="Bucket with your data: warn if it is in another region."
    ),
]
Provider = Annotated[
    str | None,
    Option(
        "--provider", metavar="PROVIDER", help="Provider: cloud-tpu, gce, colab, ... Default: auto."
    ),
]
MaxUnits = Annotated[
    float | None, positive_option("UNITS", "Budget in compute units; deleted when it is spent.")
]
Wait = Annotated[bool, Option(help="Wait until all workers are ready.")]
Timeout = Annotated[
    float | None,
    time_option(
        "Maximum wait per zone. Default: 15m; none with --queued.", "--timeout", may_be_zero=True
    ),
]


def create(
    name: Name,
    accelerator_type: Type,
    provider: Provider = None,
    zone: Zone = None,
    zones: Zones = None,
    spot: Spot = False,
    reserved: Reserved = False,
    reservation: Reservation = None,
    flex: Flex = False,
    queued: Queued = False,
    ttl_s: Ttl = None,
    max_usd: MaxUsd = None,
    max_units: MaxUnits = None,
    runtime_version: RuntimeVersion = None,
    network: Network = None,
    subnetwork: Subnetwork = None,
    internal_ip: InternalIp = False,
    service_account: ServiceAccount = None,
    labels: Label = None,
    tags: Tag = None,
    data_disks: DataDisk = None,
    startup_script: StartupScript = None,
    setup: Setup = None,
    bucket: Bucket = None,
    wait: Wait = True,
    timeout_s: Timeout = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    project: Project = None,
) -> None:
    """Create a TPU, and wait until every worker is ready.

    Examples:
        tpuctl create t1 --accelerator-type v5e-8 --zone auto --ttl 4h
        tpuctl create t1 --accelerator-type v5e-8 --zones us-west4-a,us-central1-a --spot
        tpuctl create t1 --provider gce --accelerator-type v6e-4 --zone us-east5-a --flex --ttl 4h
        tpuctl create c1 --provider colab --accelerator-type v5e-1 --ttl 2h
        tpuctl create pod --accelerator-type v5e-64 --zone us-central1-a --queued --dry-run
    """
    options = dict(locals())
    options["zone"] = join_zone_options(zone, options.pop("zones"))
    options["labels"] = _parse_labels(labels or [])
    options["tags"] = tuple(tags or ())
    options["data_disks"] = tuple(map(parse_data_disk, data_disks or ()))
    options["startup_script"] = _read(startup_script) if startup_script else None
    with ExitStack() as display:
        dialogue = _Dialogue(display, yes=options.pop("yes"))
        result = cloud.create(
            **options,
            check=False,
            confirm=dialogue.confirm,
            on_interrupt=dialogue.leave_or_cancel,
            on_progress=dialogue.progress,
            on_attempt=dialogue.attempt,
            on_warning=output.warn,
        )
    output.show(result)


class _Dialogue:
    """The questions and progress of create."""

    def __init__(self, display: ExitStack, *, yes: bool) -> None:
        self._display, self._yes = display, yes
        self._show: OnProgress = silent
        self._is_search = False

    def confirm(self, plan: CreatePlan | HostedPlan) -> None:
        """Show the price and ask whether to spend it; then start the progress display."""
        self._is_search = isinstance(plan, CreatePlan) and len(plan.offers) > 1
        for warning in plan.warnings:
            output.warn(warning)
        if isinstance(plan, HostedPlan) or plan.to_try:
            output.note(report.create_price(plan))
            output.confirm(report.create_question(plan), yes=self._yes)
        self._show = self._display.enter_context(states())

    def progress(self, progress: Progress) -> None:
        self._show(progress)

    def attempt(self, attempt: ZoneAttempt) -> None:
        if self._is_search:
            output.note(report.attempt_line(attempt))

    def leave_or_cancel(self) -> Choice:
        """Ask what to do with the request after Ctrl-C; cancel it without a terminal."""
        self._display.close()
        if not sys.stdin.isatty() or output.as_json():
            return "cancel"
        answers: dict[str, Choice] = {"l": "leave", "c": "cancel", "": "cancel"}
        choice = None
        while choice is None:
            text = output.ask("Leave the request running, or cancel it? [cancel]: ")
            choice = answers.get(text.lower()[:1])
        return choice


def _parse_labels(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(
                f"{pair!r} is not a valid label.", hint="Write it as --label team=vision."
            )
        found[key] = value
    return found


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(
            f"Could not read the startup script {path}: {error.strerror}."
        ) from error
