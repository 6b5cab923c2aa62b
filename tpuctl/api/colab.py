"""`launch --on colab[:TYPE]`: a runtime for one job, deleted when its output is here."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.errors import StoppedError, TpuctlError, UsageError
from tpuctl.progress import OnProgress, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.cloud.plan import CreatePlan
    from tpuctl.providers.port import HostedPlan
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.jobs import StartedJob
    from tpuctl.remote.logs import Logs
    from tpuctl.remote.output import Sink
    from tpuctl.training.remote_launch import RemotePlan

_NAME = re.compile(r"colab(?::(.+))?")
_TYPE = "v5e-1"


def colab_type(on: str | None) -> str | None:
    """Return the type of `--on colab[:TYPE]`; None for any other place."""
    match = _NAME.fullmatch(on or "")
    return (match[1] or _TYPE) if match else None


def launch_on_colab(
    script: str,
    options: dict[str, Any],
    *,
    accelerator_type: str,
    ttl_s: float | None,
    detach: bool,
    job: str | None,
    dry_run: bool,
    on_warning: Callable[[str], None],
    on_progress: OnProgress,
    **others: Any,
) -> RemotePlan | CopyResults | StartedJob | Logs:
    """Create a runtime, run the job there, fetch its folder, and delete the runtime.

    The same command resumes: it adopts the runtime of an interrupted one, and follows its job. What
    is left to do when this process ends, its guard does. `others` are options of `_run_job`.
    """
    from tpuctl.providers.colab.job import finish
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.training.plan import find_script

    if dry_run:
        price = f"tpuctl create NAME --provider colab --type {accelerator_type} --dry-run"
        raise UsageError(
            "The plan of a job depends on what is installed on the runtime, which does not exist.",
            hint=f"The price: {price}",
        )
    find_script(script)
    name, job = runtime_name(script), job or "launch"
    _create(name, accelerator_type, ttl_s, on_warning, on_progress)
    with _without_waste(name, job):
        result = _run_job(
            name, script, options, job=job, detach=detach, on_progress=on_progress, **others
        )
    if not detach and not isinstance(result, CopyResults):
        on_progress(message(finish(name)))
    return result


def _create(
    name: str,
    accelerator_type: str,
    ttl_s: float | None,
    on_warning: Callable[[str], None],
    on_progress: OnProgress,
) -> None:
    from tpuctl.api import cloud
    from tpuctl.reporters.changes import create_price

    def announce(plan: CreatePlan | HostedPlan) -> None:
        for warning in plan.warnings:
            on_warning(warning)
        on_progress(message(create_price(plan)))

    cloud.create(
        name,
        accelerator_type,
        provider="colab",
        ttl_s=ttl_s,
        confirm=announce,
        on_warning=on_warning,
        on_progress=on_progress,
    )


@contextmanager
def _without_waste(name: str, job: str) -> Iterator[None]:
    """Delete the runtime when the block fails before the job has started."""
    from tpuctl.providers.colab.job import give_up

    try:
        yield
    except (TpuctlError, KeyboardInterrupt) as error:
        with suppress(TpuctlError):
            give_up(name, job)
        if isinstance(error, TpuctlError):
            raise
        raise StoppedError(
            f"Interrupted; a job on {name} was stopped, and the guard of that runtime deletes it "
            "once the output is here.",
            hint=f"See it: tpuctl list --provider colab. To delete it now: tpuctl delete {name}",
        ) from None


def _run_job(
    name: str,
    script: str,
    options: dict[str, Any],
    *,
    code: Path | None,
    env: Mapping[str, str],
    job: str,
    detach: bool,
    sink: Sink,
    on_progress: OnProgress,
    **others: bool,
) -> CopyResults | StartedJob | Logs:
    """Start the job on the runtime, or follow the one that an interrupted command has started."""
    from tpuctl.providers.colab.job import expect_job, give_up, has_job
    from tpuctl.providers.port import Login
    from tpuctl.providers.registry import owner_of
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.logs import read_logs
    from tpuctl.training.remote_launch import plan_on_workers, train_on_workers

    def note(text: str) -> None:
        on_progress(message(text))

    hosts, access, node = owner_of(name).reach(name, Login(on_warning=note))
    if has_job(name, job):
        return read_logs(hosts, access, sink=sink, note=note, job=job, follow=not detach)
    plan = plan_on_workers(script, hosts, access, node=node, code=code, env=env, **options)
    expect_job(name, job, plan.folder, str(Path.cwd() / f"{name}-output"))
    options = {"job": job, "detach": detach, "sink": sink, "on_progress": on_progress, **others}
    result = train_on_workers(plan, access, note=note, **options)
    if isinstance(result, CopyResults):
        give_up(name, job)
    return result


def runtime_name(script: str) -> str:
    """Name the runtime after the script, so that the same command finds it again."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")
    return f"launch-{stem}"[:60].rstrip("-")
