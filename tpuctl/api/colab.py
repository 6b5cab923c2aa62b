"""`launch --on colab[:TYPE]`: a runtime for one job, deleted when its output is here."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.api.hosted import LaunchRequest, with_data
from tpuctl.errors import NotFoundError, StoppedError, TpuctlError
from tpuctl.units import slug

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.providers.port import HostedPlan
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.jobs import StartedJob
    from tpuctl.remote.logs import Logs

_NAME = re.compile(r"colab(?::(.+))?")
_TYPE = "v5e-1"
_UNTIL = "until its job has ended"


def colab_type(on: str | None) -> str | None:
    """Return the type of `--on colab[:TYPE]`; None for any other place."""
    match = _NAME.fullmatch(on or "")
    return (match[1] or _TYPE) if match else None


def launch_on_colab(request: LaunchRequest) -> HostedPlan | CopyResults | StartedJob | Logs:
    """Create a runtime, run the job there, fetch its folder, and delete the runtime.

    The same command resumes: it adopts the runtime of an interrupted one, and follows its job. If
    this process ends early, the guard does the rest.
    """
    from tpuctl.api import cloud
    from tpuctl.providers.colab.job import finish
    from tpuctl.providers.port import HostedPlan
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.reporters.changes import create_price
    from tpuctl.training.plan import find_script

    request.refuse("on Colab", "cpu_devices")
    request.workers.refuse_login("on Colab")
    script, on_warning = request.script, request.workers.on_warning
    find_script(script)
    if request.resume and not Path(request.resume).is_dir():
        raise NotFoundError(
            f"The folder {request.resume} to resume from does not exist.", hint="--resume DIR"
        )
    name, job = runtime_name(script), request.job or "launch"
    wanted = name, str(colab_type(request.workers.name))
    where: dict[str, Any] = {"provider": "colab", "ttl_s": request.ttl_s, "on_warning": on_warning}
    if request.dry_run:
        plan = cloud.create(*wanted, dry_run=True, **where)
        assert isinstance(plan, HostedPlan)
        plan = replace(plan, until=_UNTIL)
        then = f"runs {script} there, fetches its folder to {name}-output, deletes the runtime"
        return replace(plan, reasons=(create_price(plan), *plan.reasons, then))

    def announce(plan: Any) -> None:
        for warning in plan.warnings:
            on_warning(warning)
        plan = replace(plan, until=_UNTIL)
        request.note(create_price(plan))
        request.confirm(plan)

    cloud.create(*wanted, confirm=announce, on_progress=request.on_progress, **where)
    with _runtime_deleted_on_failure(name, job):
        result = _run_job(name, job, request)
    if not request.detach and not isinstance(result, CopyResults):
        request.note(finish(name))
    return result


@contextmanager
def _runtime_deleted_on_failure(name: str, job: str) -> Iterator[None]:
    """Delete the runtime when the block fails before the job has started."""
    from tpuctl.providers.colab.job import delete_unused

    try:
        yield
    except (TpuctlError, KeyboardInterrupt) as error:
        with suppress(TpuctlError):
            delete_unused(name, job)
        if isinstance(error, TpuctlError):
            raise
        raise StoppedError(
            f"Interrupted; a job on {name} was stopped, and the guard of that runtime deletes it "
            "once the output is here.",
            hint=f"See it: tpuctl list --provider colab. To delete it now: tpuctl delete {name}",
        ) from None


def _run_job(name: str, job: str, request: LaunchRequest) -> CopyResults | StartedJob | Logs:
    """Start the job on the runtime, or follow the one that an interrupted command has started."""
    from tpuctl.providers.colab.job import delete_unused, expect_job, has_job
    from tpuctl.providers.port import Login
    from tpuctl.providers.registry import owner_of
    from tpuctl.remote.copy_plan import CopyResults
    from tpuctl.remote.logs import read_logs
    from tpuctl.training.remote_launch import plan_on_workers, train_on_workers

    note = request.note
    hosts, access, node = owner_of(name).reach(name, Login(on_warning=note))
    if has_job(name, job):
        follow = not request.detach
        return read_logs(hosts, access, sink=request.sink, note=note, job=job, follow=follow)
    # Beside the folder of the job, so that they do not come back with its output.
    settings, data = with_data(request.settings, "../")
    options = {**request.training, "settings": settings}
    options |= {"code": request.code, "env": request.variables}
    plan = plan_on_workers(request.script, hosts, access, node=node, **options)
    more = [(str(path), place + "/" * path.is_file()) for path, place in data]
    if request.resume:
        more.append((request.resume, plan.folder))
    plan = replace(plan, copies=(*plan.copies, *more))
    expect_job(name, job, plan.folder, str(Path.cwd() / f"{name}-output"))
    same = request.shared("detach", "include_secrets", "sink", "on_progress")
    result = train_on_workers(plan, access, job=job, check=request.checks, note=note, **same)
    if isinstance(result, CopyResults):
        delete_unused(name, job)
    return result


def runtime_name(script: str) -> str:
    """Name the runtime after the script, so that the same command finds it again."""
    return f"launch-{slug(Path(script).stem)}"[:60].rstrip("-")
