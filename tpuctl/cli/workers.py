"""`tpuctl run`, `cp`, `logs`, `stop`, `ssh`, `top`, `free`, and the options that they share."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import tpuctl
from tpuctl.api.workers import Workers
from tpuctl.cli import output
from tpuctl.cli.options import Argument, DryRun, Option, Project, Yes, Zone, parser, time_option
from tpuctl.cli.progress import bars, screen
from tpuctl.errors import refuse_unused
from tpuctl.reporters import workers as report
from tpuctl.reporters.training import render_launch
from tpuctl.units import parse_bytes

Name = Annotated[
    str | None, Argument(metavar="[NAME]", help="Name of a TPU; USER@NAME logs in as USER.")
]
NameOrLocal = Annotated[
    str | None, Argument(metavar="[NAME|local]", help="Name of a TPU, or local for this machine.")
]
Words = Annotated[
    list[str] | None,
    Argument(metavar="NAME -- CMD...", help="Name of a TPU, then the command after --."),
]
Host = Annotated[
    str | None, Option("--host", metavar="USER@IP,...", help="Machines to use instead of a TPU.")
]
Worker = Annotated[str, Option(metavar="N", help="Worker numbers such as 0,2-3, or all.")]
Job = Annotated[
    str | None, Option("--job", metavar="JOB", help="Name of the job. Default: newest.")
]
NewJob = Annotated[
    str | None, Option("--job", metavar="JOB", help="Name for the job; implies --detach.")
]
Key = Annotated[
    Path | None,
    Option(metavar="FILE", help="Private SSH key. Default: gcloud's key, or a generated one."),
]
Jump = Annotated[str | None, Option(metavar="USER@HOST", help="SSH jump host.")]
Iap = Annotated[bool, Option("--iap", help="Connect through Identity-Aware Proxy (needs gcloud).")]
InternalIp = Annotated[bool, Option("--internal-ip", help="Connect to internal addresses.")]
Sudo = Annotated[bool, Option("--sudo", help="Act as root, with passwordless sudo.")]
Env = Annotated[
    list[str] | None,
    Option(metavar="K[=V]", help="Variable for the command; K alone: with its value here."),
]
IncludeSecrets = Annotated[
    bool, Option("--include-secrets", help="Copy files that may hold keys or passwords, too.")
]
Chdir = Annotated[
    str | None, Option("--chdir", metavar="DIR", help="Folder to run the command in.")
]
Check = Annotated[
    bool | None,
    Option("--check/--no-check", help="Check every worker before starting a job. Default: check."),
]
Grace = Annotated[
    float, time_option("Time between TERM and KILL, such as 30s. Default: 10s.", may_be_zero=True)
]


def _workers(
    hosts: Host = None,
    worker: Worker = "all",
    key: Key = None,
    jump: Jump = None,
    zone: Zone = None,
    project: Project = None,
    internal_ip: InternalIp = False,
    iap: Iap = False,
) -> None:
    """Carry the options that say which machines, and how to log in."""


def on_workers(
    name: Any = None, *, worker: str | None = "all"
) -> Callable[..., Callable[..., None]]:
    """Give a command these options and perhaps a NAME; it gets them as one argument, first.

    `worker` is the default of --worker; None leaves that option out.
    """
    options = [Parameter("name", Parameter.KEYWORD_ONLY, annotation=name, default=None)] * bool(
        name
    )
    for each in inspect.signature(_workers).parameters.values():
        if each.name != "worker":
            options.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        elif worker:
            options.append(each.replace(kind=Parameter.KEYWORD_ONLY, default=worker))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            known = {each.name: given.pop(each.name) for each in options}
            function(Workers(**known, on_warning=output.warn), **given)

        _, *own = inspect.signature(function).parameters.values()
        parameters = [*(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own), *options]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


@on_workers()
def run(
    where: Workers,
    words: Words = None,
    env: Env = None,
    chdir: Chdir = None,
    detach: Annotated[
        bool, Option("--detach", help="Start a job that keeps running, and return.")
    ] = False,
    job: NewJob = None,
    check: Check = None,
    log_limit: Annotated[
        int | None,
        Option(
            parser=parser(parse_bytes),
            metavar="SIZE",
            help="Maximum log size of a job per worker; 0 for no limit. Default: 1GiB.",
        ),
    ] = None,
) -> None:
    """Run a command on every worker at once.

    Examples:
        tpuctl run my-tpu -- pip install -U "jax[tpu]"
        tpuctl run my-tpu --worker 0 -- nproc
        tpuctl run my-tpu --detach --job train -- python3 train.py
    """
    argv = words or []
    if not where.hosts:
        name, *argv = words or [""]
        where = replace(where, name=name or None)
    options: dict[str, Any] = {"env": env or (), "chdir": chdir, "detach": detach, "job": job}
    options |= {"check": check, "log_bytes": log_limit, "sink": output.worker_sink()}
    result = tpuctl.run(where, argv, **options)
    output.show(result)


@on_workers()
def cp(
    where: Workers,
    source: Annotated[str, Argument(metavar="SRC", help="Local path, or NAME:path.")],
    target: Annotated[str, Argument(metavar="DST", help="NAME:path, or local path.")],
    include_secrets: IncludeSecrets = False,
    dry_run: DryRun = False,
) -> None:
    """Copy files to every worker, or from them; only changes are sent.

    Examples:
        tpuctl cp ./project my-tpu:project
        tpuctl cp ./project my-tpu:project --dry-run
        tpuctl cp my-tpu:logs ./logs
        tpuctl cp --host me@10.0.0.5 ./project :project
    """
    with bars() as on_progress:
        result = tpuctl.cp(**locals())
    output.show(result)


@on_workers(Name)
def logs(
    where: Workers,
    job: Job = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Continue until the job ends.")] = False,
    tail: Annotated[
        int | None, Option(metavar="N", min=0, help="Show only the last N lines per worker.")
    ] = None,
    all_jobs: Annotated[bool, Option("--list", help="List the jobs instead.")] = False,
) -> None:
    """Show the output of a detached job on every worker.

    Examples:
        tpuctl logs my-tpu --follow
        tpuctl logs my-tpu --job train --tail 20
        tpuctl logs my-tpu --list
    """
    if all_jobs:
        given = {"--job": job, "--follow": follow, "--tail": tail}
        refuse_unused(given, "with --list, which shows no output")
        output.show(tpuctl.jobs(where))
        return
    sink, note = output.worker_sink(), output.note
    result = tpuctl.logs(where, job=job, follow=follow, tail=tail, sink=sink, note=note)
    output.show(result, render_launch)


@on_workers(Name)
def stop(where: Workers, job: Job = None, grace: Grace = 10.0) -> None:
    """Stop a detached job on every worker.

    Without --job it is the newest job that is running.

    Examples:
        tpuctl stop my-tpu
        tpuctl stop my-tpu --job train --grace 60s
    """
    result = tpuctl.stop(where, job=job, grace_s=grace)
    output.show(result)


@on_workers(Name, worker="0")
def ssh(where: Workers, dry_run: DryRun = False) -> None:
    """Open a shell on one worker.

    Examples:
        tpuctl ssh my-tpu
        tpuctl ssh my-tpu --worker 3
    """
    result = tpuctl.ssh(where, dry_run=dry_run or output.as_json())
    output.show(result)


@on_workers(NameOrLocal)
def top(
    where: Workers,
    once: Annotated[bool, Option("--once", help="Show it once, as --json and a pipe do.")] = False,
    interval: Annotated[float | None, time_option("Time between updates. Default: 2s.")] = None,
    sudo: Sudo = False,
) -> None:
    """Show the load of vCPUs, memory and chips on every worker.

    Examples:
        tpuctl top my-tpu
        tpuctl top local --once
    """
    if once or output.as_json():
        refuse_unused({"--interval": interval}, "with --once and --json")
    if once or output.as_json() or not sys.stdout.isatty():
        output.show(tpuctl.top(where, sudo=sudo))
        return
    with screen(report.render_live_usage) as show:
        tpuctl.top(where, sudo=sudo, interval_s=interval or 2.0, on_usage=show)


@on_workers(NameOrLocal)
def free(
    where: Workers,
    yes: Yes = False,
    dry_run: DryRun = False,
    sudo: Sudo = False,
    grace: Grace = 10.0,
) -> None:
    """Show which processes hold the chips of workers, and end them.

    Examples:
        tpuctl free local
        tpuctl free my-tpu --dry-run
        tpuctl free my-tpu --yes
    """
    confirm = partial(output.confirm_plan, report.free_question, yes=yes)
    held = tpuctl.free(where, dry_run=dry_run, sudo=sudo, grace_s=grace, confirm=confirm)
    output.show(held)
