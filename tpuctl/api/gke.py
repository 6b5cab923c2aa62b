"""`launch --on gke`: a JobSet for one job, followed to its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.api.hosted import plan_job
from tpuctl.errors import NotLoggedInError, StoppedError
from tpuctl.progress import OnProgress, message

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.providers.gke.follow import ClusterRun, StartedClusterRun
    from tpuctl.providers.gke.manifest import GkeOptions
    from tpuctl.providers.gke.runs import ClusterPlan
    from tpuctl.remote.output import Sink

GKE = "gke"


def launch_on_gke(
    script: str,
    options: dict[str, Any],
    where: GkeOptions,
    *,
    code: Path | None,
    ttl_s: float | None,
    job: str | None,
    detach: bool,
    dry_run: bool,
    sink: Sink,
    on_progress: OnProgress,
) -> ClusterPlan | StartedClusterRun | ClusterRun:
    """Create the JobSet of a job and follow it; the same command finds the one it has started."""
    from tpuctl.providers.gke.client import Cluster, find_context
    from tpuctl.providers.gke.follow import StartedClusterRun, follow
    from tpuctl.providers.gke.runs import plan_run, submit

    def note(text: str) -> None:
        on_progress(message(text))

    place = "the bucket and the JobSet, which others can read"
    hint = "Keep it in a Kubernetes secret or in Secret Manager, and read it in the script."
    request = plan_job(script, options, code, more=[*where.env.values()], place=place, hint=hint)
    request = replace(request, limit_s=ttl_s, job=job)
    try:
        cluster = Cluster(find_context())
    except NotLoggedInError:
        if not dry_run:
            raise
        cluster = None
    plan = plan_run(request, where, cluster)
    if dry_run:
        return plan
    assert cluster
    for reason in (*plan.because, *plan.warnings):
        note(reason)
    try:
        run = submit(cluster, plan, request, note)
        if detach:
            return StartedClusterRun(run.name, GKE, cluster.context.name, plan.chips)
    except KeyboardInterrupt:
        raise StoppedError(
            f"Interrupted while {plan.name} was being created in {cluster.context.name}.",
            hint="Run the same command again: it creates the job, or follows it if it exists.",
        ) from None
    return follow(cluster, run.name, sink=sink, note=note)
