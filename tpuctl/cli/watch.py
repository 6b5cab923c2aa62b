"""`tpuctl watch`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpuctl.cli import output, workers
from tpuctl.cli.options import DryRun, Project, Yes
from tpuctl.cli.progress import states
from tpuctl.cli.workers import Chdir, Env, split_name
from tpuctl.cloud.connect import chosen_zone, open_cloud
from tpuctl.cloud.zones import AUTO
from tpuctl.errors import UsageError
from tpuctl.remote.hosts import parse_hosts, split_user
from tpuctl.reporters import changes as report
from tpuctl.supervise.act import Edge, Login
from tpuctl.supervise.loop import watch as watch_planned
from tpuctl.supervise.memory import Store
from tpuctl.supervise.messages import Watched
from tpuctl.supervise.plan import WatchPlan, Wishes, plan_order, plan_watch
from tpuctl.units import parse_duration_s

Words = Annotated[
    list[str] | None, Argument(metavar="NAME -- CMD...", help="Which TPU, what to run.")
]
Code = Annotated[Path | None, Option(metavar="DIR", help="Copy this folder first, and run in it.")]
MaxCrashes = Annotated[
    int,
    Option(metavar="K", min=1, help="Give up when the job itself has failed K times."),
]
HangAfter = Annotated[
    str | None,
    Option(metavar="TIME", help="Start again when a worker is silent for so long."),
]
BadHostAfter = Annotated[
    str, Option(metavar="TIME", help="Replace the TPU when a worker is lost for so long.")
]
Type = Annotated[
    str | None,
    Option("--accelerator-type", "--type", help="Type to create if needed."),
]
Zone = Annotated[str | None, Option(help="Where it is, and is made again; auto is anywhere.")]
Zones = Annotated[str | None, Option(help="Where it may be made again: A,B.")]
Spot = Annotated[bool | None, Option("--spot/--no-spot", help="Like the one that there is.")]
Queued = Annotated[bool | None, Option("--queued/--no-queued", help="Like the one that there is.")]
Ttl = Annotated[str | None, Option(help="Delete each one this long after: 4h.")]
MaxUsd = Annotated[float | None, Option(help="What all of them may cost.")]
RuntimeVersion = Annotated[str | None, Option(help="If not the same.")]
Delete = Annotated[
    bool, Option("--delete", help="Delete the TPU when the job is done or given up.")
]
Fresh = Annotated[bool, Option("--fresh", help="Do not go on with what an earlier watch began.")]


def watch(
    words: Words = None,
    code: Code = None,
    chdir: Chdir = None,
    env: Env = None,
    max_crashes: MaxCrashes = 3,
    hang_after: HangAfter = None,
    bad_host_after: BadHostAfter = "10m",
    kind: Type = None,
    zone: Zone = None,
    zones: Zones = None,
    spot: Spot = None,
    queued: Queued = None,
    ttl: Ttl = None,
    max_usd: MaxUsd = None,
    runtime_version: RuntimeVersion = None,
    delete: Delete = False,
    fresh: Fresh = False,
    key: workers.Key = None,
    jump: workers.Jump = None,
    internal_ip: workers.InternalIp = False,
    project: Project = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run a job and keep it alive, also when its TPU is preempted.

    Examples:
        tpuctl watch my-tpu -- python3 train.py
        tpuctl watch my-tpu --accelerator-type v5e-8 --spot --code . -- python3 train.py
    """
    name, argv = split_name(words)
    if not name:
        raise UsageError("Which TPU? There is no NAME.", hint="tpuctl watch NAME -- CMD...")
    is_given = "@" in name
    user, name = split_user(name)
    order = plan_order(
        argv,
        env=env or [],
        code=code,
        folder=chdir,
        max_crashes=max_crashes,
        hang_after_s=parse_duration_s(hang_after) if hang_after else None,
        bad_host_after_s=parse_duration_s(bad_host_after),
    )
    look_in, made_in = _zones(zone, zones)
    ttl_s = parse_duration_s(ttl) if ttl else None
    wishes = Wishes(look_in, made_in, kind, spot, queued, ttl_s, max_usd, runtime_version)
    login = Login(user, key, parse_hosts(jump)[0] if jump else None, internal_ip, is_given)
    cloud = open_cloud(project)
    for warning in cloud.warnings:
        output.warn(warning)
    store = Store(cloud.api, name)
    if dry_run:
        plan = plan_watch(cloud, name, wishes, order, store=store, fresh=fresh)
        output.show(plan, report.render_watch_plan)
        return
    with store.alone():
        plan = plan_watch(cloud, name, wishes, order, store=store, fresh=fresh)
        _announce(plan, yes=yes)
        edge = Edge(cloud, login, sink=output.worker_sink(), note=output.note, progress=states)
        result = _watch(edge, plan, store, delete_at_end=delete)
    output.show(result, report.render_watched)


def _watch(edge: Edge, plan: WatchPlan, store: Store, *, delete_at_end: bool) -> Watched:
    return watch_planned(
        edge, plan.memory, plan.order, store=store, note=output.note, delete_at_end=delete_at_end
    )


def _announce(plan: WatchPlan, *, yes: bool) -> None:
    """Say what it may cost; ask where something is to be made right now."""
    for warning in plan.warnings:
        output.warn(warning)
    promise = report.watch_promise(plan)
    output.note(promise[0].upper() + promise[1:])
    if plan.state is None and not plan.memory.attempts:
        output.confirm(report.watch_question(plan), yes=yes)


def _zones(zone: str | None, zones: str | None) -> tuple[str | None, tuple[str, ...] | None]:
    """Where to look for the TPU, and where another may be made (None: where this one is)."""
    if zone and zones:
        raise UsageError("--zone and --zones exclude each other.", hint="Give one of them.")
    if zones:
        return None, tuple(name.strip() for name in zones.split(","))
    chosen = chosen_zone(zone)
    if chosen == AUTO:
        return None, ()
    return chosen, (chosen,) if chosen else None
