"""`launch` from Python: here, on workers, on Kaggle, Colab or GKE, or on any available TPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.api.colab import colab_type, launch_on_colab
from tpuctl.api.hosted import (
    AUTO,
    AUTO_TTL_S,
    LaunchRequest,
    confirm_paid,
    is_kaggle,
    launch_auto,
    launch_on_kaggle,
    plan_auto,
    plan_job,
    reach_or_suggest,
)
from tpuctl.api.workers import Pairs, Workers, as_pairs, as_workers, print_output
from tpuctl.errors import NotLoggedInError, StoppedError, UsageError, refuse_unused
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.hosts import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.providers.combined import AutoPlan
    from tpuctl.providers.gke.follow import ClusterRun, StartedClusterRun
    from tpuctl.providers.gke.manifest import GkeOptions
    from tpuctl.providers.gke.runs import ClusterPlan
    from tpuctl.providers.kaggle.follow import HostedRun, StartedRun
    from tpuctl.providers.kaggle.runs import KagglePlan
    from tpuctl.providers.port import HostedPlan
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.jobs import StartedJob
    from tpuctl.remote.logs import Logs
    from tpuctl.remote.output import Sink
    from tpuctl.training.plan import LaunchPlan
    from tpuctl.training.remote_launch import RemotePlan
    from tpuctl.training.run import Training

    Launched = (
        LaunchPlan | RemotePlan | Training | CopyResults | StartedJob | Logs | KagglePlan
        | StartedRun | HostedRun | AutoPlan | HostedPlan | ClusterPlan
        | StartedClusterRun | ClusterRun
    )  # fmt: skip


GKE = "gke"


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    on: str | Workers = LOCAL,
    settings: Pairs = (),
    framework: str = "auto",
    strategy: str = "auto",
    cpu_devices: int | None = None,
    code: Path | None = None,
    env: Pairs = (),
    detach: bool = False,
    job: str | None = None,
    check: bool | None = None,
    include_secrets: bool = False,
    resume: str | None = None,
    ttl_s: float | None = None,
    max_usd: float | None = None,
    gke: GkeOptions | None = None,
    dry_run: bool = False,
    confirm: Callable[[Any], None] = lambda plan: None,
    log: int | None = None,
    sink: Sink = print_output,
    on_progress: OnProgress = silent,
) -> Launched:
    """Train a template or a script with the right strategy: here, on a TPU's workers, on Kaggle.

    Args:
        script: Name of a template, or path of a script.
        arguments: Passed on to the script as they are.
        on: "local", a TPU's name, Workers, "kaggle", "colab", "colab:v6e-1", "gke" or "auto".
        settings: Flags of the script: a dictionary, or words as K=V.
        env: Variables for workers: a dictionary, or words as K=V, or K for its value here.
        include_secrets: Copy files of `code` that may hold keys or passwords, too.
        resume: Folder with checkpoints that the job begins with; on Kaggle also "last" or a run.
        ttl_s: Time limit of the session on Kaggle or of an attempt on GKE, or time to live of the
            runtime on Colab.
        max_usd: With "auto": budget in dollars; without it, only what is free or prepaid is used.
        gke: With "gke": the TPU, and how the cluster runs the job.
        confirm: Called with the plan before units or dollars are spent; raise an exception to stop.
        log: File descriptor for the output of a script on this machine; by default stdout.
        sink: Receives the output of workers.
        on_progress: Called with progress, and the reasons for the plan.
    """
    settings, env = as_pairs(settings), as_pairs(env)
    request = LaunchRequest(**{**locals(), "script": str(script), "workers": as_workers(on)})
    place = None if request.workers.hosts else request.workers.name
    if place == AUTO:
        return _launch_anywhere(request)
    request.refuse("here", "max_usd", hint="It is for --on auto.")
    if place == GKE:
        return _launch_on_gke(request)
    if gke:
        refuse_unused(gke.changed, "here", hint="It is for --on gke.")
    if place and is_kaggle(place):
        return launch_on_kaggle(request)
    if place and colab_type(place):
        return launch_on_colab(request)
    request.refuse("here", "resume", hint="It is for --on kaggle and --on colab.")
    request.refuse("here", "ttl_s", hint="It is for --on kaggle, colab and gke.")
    return _launch_here(request) if place == LOCAL else _launch_on_workers(request)


def _launch_anywhere(request: LaunchRequest) -> Launched:
    workers = request.workers
    refuse_unused({"--detach": request.detach, "--zone": workers.zone}, "with --on auto")
    plan = plan_auto(request.script, max_usd=request.max_usd, project=workers.project)
    if request.dry_run:
        return plan
    confirm_paid(plan, request.confirm)
    same = request.shared(
        "settings", "framework", "strategy", "code", "env", "job", "check", "log",
        "include_secrets", "sink", "on_progress",
    )  # fmt: skip
    return launch_auto(  # type: ignore[no-any-return]
        plan,
        lambda on, alone: launch(
            request.script,
            request.arguments,
            on=on,
            detach=alone,
            ttl_s=AUTO_TTL_S if isinstance(on, str) and colab_type(on) else None,
            **same,
        ),
        request,
    )


def _launch_here(request: LaunchRequest) -> LaunchPlan | Training:
    from tpuctl.diagnosis.diagnose import diagnose
    from tpuctl.runtime.live import live_machine
    from tpuctl.training.plan import plan_training

    if request.detach or request.code or request.env or request.job or request.include_secrets:
        raise UsageError(
            "--detach, --code, --env, --job and --include-secrets need workers.",
            hint="Add --on NAME.",
        )
    request.workers.refuse_login("without --on")
    request.refuse("without --on", "check")
    options = {**request.training, "cpu_devices": request.cpu_devices}
    if not request.dry_run:
        copied = [_with_copy(request, each) for each in request.settings]
        options["settings"] = copied
    plan = plan_training(request.script, diagnose(live_machine()), **options)
    if request.dry_run:
        return plan
    from tpuctl.training.watched import watch_training

    for reason in plan.because:
        request.note(reason)
    return watch_training(plan, log=request.log)


def _launch_on_workers(request: LaunchRequest) -> Launched:
    from tpuctl.training.remote_launch import plan_on_workers, train_on_workers

    if request.cpu_devices:
        raise UsageError("--cpu-devices splits the CPU of this machine.", hint="Leave out --on.")
    variables = request.variables
    hosts, access, node = reach_or_suggest(request.workers)
    plan = plan_on_workers(
        request.script,
        hosts,
        access,
        node=node,
        code=request.code,
        env=variables,
        **request.training,
    )
    if request.dry_run:
        return plan
    for reason in plan.because:
        request.note(reason)
    same = request.shared("job", "detach", "include_secrets", "sink", "on_progress")
    return train_on_workers(plan, access, check=request.checks, note=request.note, **same)


def _with_copy(request: LaunchRequest, setting: str) -> str:
    """Replace a template's shards in a bucket by a copy of them on this machine."""
    from tpuctl.datasets.locations import bucket_of
    from tpuctl.training.plan import find_script

    name, _, place = setting.partition("=")
    address = bucket_of(place) if name.lstrip("-") == "data" else None
    if address is None or not find_script(request.script).reads_shards:
        return setting
    from tpuctl.datasets.local_copies import copy_data_set

    copy = copy_data_set(address, on_progress=request.on_progress)
    request.note(f"Reading {address} from its local copy, {copy.path}.")
    return f"{name}={copy.path}"


def _launch_on_gke(request: LaunchRequest) -> ClusterPlan | StartedClusterRun | ClusterRun:
    """Create the JobSet of a job and follow it; the same command finds the one it has started."""
    from tpuctl.providers.gke.client import Cluster, find_context
    from tpuctl.providers.gke.follow import StartedClusterRun, follow
    from tpuctl.providers.gke.manifest import GkeOptions
    from tpuctl.providers.gke.runs import plan_run, submit

    request.refuse("on GKE", "cpu_devices", "resume", "include_secrets")
    request.workers.refuse_login("on GKE")
    where = replace(request.gke or GkeOptions(), env=request.variables, check=request.checks)
    place = "the bucket and the JobSet, which others can read"
    hint = "Keep it in a Kubernetes secret or in Secret Manager, and read it in the script."
    job = plan_job(request, more=[*where.env.values()], place=place, hint=hint)
    try:
        cluster = Cluster(find_context())
    except NotLoggedInError:
        if not request.dry_run:
            raise
        cluster = None
    plan = plan_run(job, where, cluster)
    if request.dry_run:
        return plan
    assert cluster
    for reason in (*plan.because, *plan.warnings):
        request.note(reason)
    try:
        run = submit(cluster, plan, job, request.note)
        if request.detach:
            return StartedClusterRun(run.name, GKE, cluster.context.name, plan.chips)
    except KeyboardInterrupt:
        raise StoppedError(
            f"Interrupted while {plan.name} was being created in {cluster.context.name}.",
            hint="Run the same command again: it creates the job, or follows it if it exists.",
        ) from None
    return follow(cluster, run.name, sink=request.sink, note=request.note)
