"""`tpuctl watch`; its parameters have the names of the Python function's."""

from pathlib import Path
from typing import Annotated, Any

from tpuctl.api.watch import watch as run_watch
from tpuctl.cli import output, workers
from tpuctl.cli.options import (
    Argument,
    Command,
    DryRun,
    Option,
    Project,
    Yes,
    parsed_by,
    positive_option,
    time_option,
    zone_option,
)
from tpuctl.cli.progress import states
from tpuctl.cli.workers import Chdir, Env
from tpuctl.cloud.placement import join_zone_options
from tpuctl.errors import UsageError, refuse_unused
from tpuctl.reporters import changes as report
from tpuctl.reporters.display import text_of
from tpuctl.supervise.plan import WatchPlan
from tpuctl.supervise.relay import RelayPlan

Words = Annotated[
    list[str] | None,
    Argument(
        metavar="[NAME] -- CMD...", help="Name of the TPU (not with --on), and the command to run."
    ),
]
On = Annotated[
    str | None,
    Option(
        metavar="P,P:TYPE,...",
        help="Providers in this order, some with a type: kaggle,colab:v5e-1.",
    ),
]
CheckpointsIn = Annotated[
    str | None,
    Option(
        "--checkpoints",
        metavar="DIR|gs://...",
        help="With --on: where checkpoints are kept; the job finds them in $TPUCTL_CHECKPOINTS.",
    ),
]
MaxUnits = Annotated[
    float | None, positive_option("UNITS", "With --on: compute units for each Colab runtime.")
]
Code = Annotated[
    Path | None, Option(metavar="DIR", help="Copy this folder to the workers, and run in it.")
]
MaxCrashes = Annotated[
    int, Option(metavar="K", min=1, help="Give up after the job has failed K times.")
]
HangAfter = Annotated[
    float | None,
    time_option("Restart if a worker prints nothing for this long: 15m.", "--hang-after"),
]
BadHostAfter = Annotated[
    float,
    time_option(
        "Replace the TPU if a worker is lost for this long. Default: 10m.", "--bad-host-after"
    ),
]
Type = Annotated[
    str | None,
    Option(
        "--accelerator-type",
        metavar="TYPE",
        help="Accelerator type to create if there is no TPU yet, such as v5e-8.",
    ),
]
Zone = Annotated[str | None, zone_option("Zone of the TPU; auto recreates it in any zone.")]
Zones = Annotated[
    str | None,
    zone_option("Zones to recreate the TPU in: A,B.", flag="--zones", metavar="ZONE,..."),
]
Spot = Annotated[
    bool | None,
    Option("--spot/--no-spot", help="Create spot TPUs. Default: unchanged."),
]
Queued = Annotated[
    bool | None,
    Option("--queued/--no-queued", help="Create queued resources. Default: unchanged."),
]
Provider = Annotated[
    str | None,
    Option(
        "--provider", metavar="PROVIDER", help="Provider: cloud-tpu, gce, colab. Default: auto."
    ),
]
Flex = Annotated[
    bool | None,
    Option("--flex/--no-flex", help="Create by flex-start, with --ttl. Default: unchanged."),
]
Reservation = Annotated[
    str | None,
    Option(
        "--reservation",
        metavar="RESERVATION",
        help="Reservation on Compute Engine. Default: unchanged.",
    ),
]
Setup = Annotated[
    str | None,
    Option(metavar="jax|torch|none", help="Framework to install on each. Default: unchanged."),
]
Ttl = Annotated[
    float | None, time_option("Time to live of each TPU: 4h. Default: unchanged.", "--ttl")
]
MaxUsd = Annotated[float | None, positive_option("USD", "Total budget in USD for all TPUs.")]
RuntimeVersion = Annotated[
    str | None, Option(metavar="VERSION", help="Override the runtime version.")
]
Delete = Annotated[
    bool, Option("--delete", help="Delete the TPU when the job is done or given up.")
]
Fresh = Annotated[
    bool, Option("--fresh", help="Start over instead of resuming an interrupted watch.")
]


class _WatchCommand(Command):
    """Finds a NAME beside --on, which would become the first word of the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Compare what was read with what follows --."""
        command = args[args.index("--") + 1 :] if "--" in args else None
        rest = super().parse_args(ctx, args)
        words = ctx.params["words"] or []
        if ctx.params["on"] is not None and command is not None and len(words) > len(command):
            refuse_unused({words[0]: True}, "with --on", hint="The command follows --.")
        return rest


@parsed_by(_WatchCommand)
def watch(
    words: Words = None,
    on: On = None,
    checkpoints: CheckpointsIn = None,
    code: Code = None,
    folder: Chdir = None,
    env: Env = None,
    max_crashes: MaxCrashes = 3,
    hang_after_s: HangAfter = None,
    bad_host_after_s: BadHostAfter = 600.0,
    accelerator_type: Type = None,
    provider: Provider = None,
    zone: Zone = None,
    zones: Zones = None,
    spot: Spot = None,
    queued: Queued = None,
    flex: Flex = None,
    reservation: Reservation = None,
    setup: Setup = None,
    ttl_s: Ttl = None,
    max_usd: MaxUsd = None,
    max_units: MaxUnits = None,
    runtime_version: RuntimeVersion = None,
    include_secrets: workers.IncludeSecrets = False,
    delete_at_end: Delete = False,
    fresh: Fresh = False,
    key: workers.Key = None,
    jump: workers.Jump = None,
    internal_ip: workers.InternalIp = False,
    iap: workers.Iap = False,
    project: Project = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run a job and keep it alive, even if its TPU is preempted.

    Examples:
        tpuctl watch t1 --code . -- python train.py
        tpuctl watch t1 --accelerator-type v5e-8 --zone auto --spot --code . -- python train.py
        tpuctl watch t1 --accelerator-type v6e-16 --zone auto --flex --ttl 24h --code . -- sh run.sh
        tpuctl watch t1 --code . --hang-after 15m --delete -- python train.py
        tpuctl watch --on kaggle,colab --checkpoints training -- python train.py
    """
    options = dict(locals())
    words, yes = options.pop("words") or [], options.pop("yes")
    name, *command = words or [""] if on is None else ["", *words]
    if on is None and not name:
        raise UsageError("No TPU is named.", hint="tpuctl watch NAME -- CMD...")
    options |= {"on": on or (), "env": env or []}
    options["zone"] = join_zone_options(zone, options.pop("zones"))
    result = run_watch(
        name or None,
        command,
        **options,
        confirm=lambda plan: _confirm(plan, yes=yes),
        show=output.show,
        sink=output.worker_sink(),
        note=output.note,
        progress=states,
        on_warning=output.warn,
    )
    if on is not None or dry_run:
        output.show(result)


def _confirm(plan: WatchPlan | RelayPlan, *, yes: bool) -> None:
    """Show what it may cost; ask where a TPU is created right away."""
    for warning in plan.warnings:
        output.warn(warning)
    if isinstance(plan, RelayPlan):
        for line in text_of(plan, output.terminal_width()).splitlines():
            output.note(line)
        if any(each.provisioning != "free" for each in plan.offers):
            output.confirm("Run it there, in this order, until it is done?", yes=yes)
        return
    promise = report.watch_promise(plan)
    output.note(promise[0].upper() + promise[1:])
    if plan.creates_now:
        output.confirm(report.watch_question(plan), yes=yes)
