"""Workers from Python, one or 256: run, copy, follow and stop over SSH."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

from tpuctl.errors import UsageError, refuse_unused
from tpuctl.printable import printable, worker_text
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.hosts import (
    LOCAL,
    Host,
    parse_hosts,
    parse_workers,
    pick_workers,
    split_user,
    this_machine,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tpuctl.cloud.models import Node
    from tpuctl.cloud.tpu import Tpu
    from tpuctl.providers.batch import BatchProvider
    from tpuctl.providers.gke.follow import ClusterRun
    from tpuctl.providers.kaggle.follow import HostedRun
    from tpuctl.remote.access import Access
    from tpuctl.remote.copy_plan import CopyPreview, CopyResults
    from tpuctl.remote.free import Holders
    from tpuctl.remote.jobs import Jobs, StartedJob, StoppedJob
    from tpuctl.remote.logs import Logs
    from tpuctl.remote.output import Sink
    from tpuctl.remote.run import RunResults
    from tpuctl.remote.ssh import Shell
    from tpuctl.remote.top import Usage

Pairs = Mapping[str, object] | Sequence[str]


def python_warning(text: str) -> None:
    """Issue a Python warning: the default for `on_warning`."""
    warnings.warn(printable(text, lines=True), stacklevel=4)


def print_output(stream: int, data: bytes) -> None:
    """Write the output of workers to stdout and stderr: the default for `sink`."""
    worker_text(sys.stderr if stream == 2 else sys.stdout).write(data)


@dataclass(frozen=True)
class Workers:
    """Which machines, and how to log in to them.

    Either `name`, a TPU as NAME or user@NAME, or `hosts`, addresses as user@ip,... `free` and `top`
    also take the name `local` for this machine.
    """

    name: str | None = None
    hosts: str | None = None
    worker: str = "all"
    key: Path | None = None
    jump: str | None = None
    zone: str | None = None
    project: str | None = None
    internal_ip: bool = False
    on_warning: Callable[[str], None] = python_warning
    iap: bool = False

    def reach(self) -> tuple[tuple[Host, ...], Access, Node | None]:
        """Find the workers and the way to reach them, and the TPU unless addresses are given.

        A TPU that does not know our SSH key is given it.
        """
        from tpuctl.providers.port import Login
        from tpuctl.providers.registry import open_provider, owner_of

        jump = parse_hosts(self.jump)[0] if self.jump else None
        parse_workers(self.worker)
        if self.hosts and self.name:
            raise UsageError("Both a NAME and --host were given.", hint="Give one of them.")
        if not self.hosts and not self.name:
            raise UsageError("Which machines? Give a NAME or --host.", hint="tpuctl list")
        user, name = split_user(self.name) if self.name and "@" in self.name else ("", self.name)
        login = Login(user, self.zone, self.key, jump, self.internal_ip, self.iap, self.on_warning)
        if self.hosts or not name:
            given = {"--zone": self.zone, "--project": self.project, "--iap": self.iap or None}
            refuse_unused({**given, "--internal-ip": self.internal_ip}, "with --host")
            reached = open_provider("hosts").reach(self.hosts or "", login)
        else:
            owner = owner_of(name, zone=self.zone, project=self.project, on_warning=self.on_warning)
            reached = owner.reach(name, login)
        found = pick_workers(reached.hosts, self.worker)
        return self._with_options(found), reached.access, reached.node

    def reach_or_here(self) -> tuple[tuple[Host, ...], Access | None]:
        """Do the same as `reach`, or return this machine alone, which needs no access."""
        if self.name == LOCAL and not self.hosts:
            self.refuse_login("on this machine")
            return (this_machine(),), None
        return self.reach()[:2]

    def refuse_login(self, where: str) -> None:
        """Raise UsageError for options that only workers elsewhere need."""
        given = {
            "--worker": None if self.worker == "all" else self.worker,
            "--key": self.key,
            "--jump": self.jump,
            "--zone": self.zone,
            "--project": self.project,
            "--internal-ip": self.internal_ip,
            "--iap": self.iap,
        }
        refuse_unused(given, where)

    def _with_options(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        """Name the workers in hints so that the next command reaches them in the same way."""
        given = {"--project": self.project, "--key": self.key, "--jump": self.jump}
        words = [str(word) for pair in given.items() if pair[1] for word in pair]
        options = shlex.join([*words, *["--internal-ip"] * self.internal_ip, *["--iap"] * self.iap])
        user = self.name.rpartition("@")[0] if self.name else ""
        prefix = f"{user}@" if user else ""
        return tuple(
            replace(host, target=f"{prefix}{host.target} {options}".rstrip()) for host in hosts
        )


def as_words(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command; text is split as a shell splits it."""
    return shlex.split(command) if isinstance(command, str) else list(command)


def as_pairs(given: Pairs) -> list[str]:
    """Return the K=V words of a dictionary, of several words or of one."""
    if isinstance(given, Mapping):
        return [f"{name}={value}" for name, value in given.items()]
    return [given] if isinstance(given, str) else list(given)


def as_workers(where: str | Workers) -> Workers:
    """Turn the name of a TPU into all of its workers."""
    return Workers(where) if isinstance(where, str) else where


def run(
    where: str | Workers,
    command: str | Sequence[str],
    *,
    env: Pairs = (),
    chdir: str | None = None,
    detach: bool = False,
    job: str | None = None,
    check: bool | None = None,
    log_bytes: int | None = None,
    sink: Sink = print_output,
) -> RunResults | StartedJob:
    """Run a command on every worker at once; exit codes and failures are in the result.

    `env` is a dictionary of variables, or words: K=V, or K for its value here. With `detach` or a
    name for the `job`, it keeps running: see `logs` and `stop`; unless `check` is False, every
    worker is checked first, and each keeps the last `log_bytes` of its log (default 1 GiB; 0: all
    of it). `sink` receives the output.
    """
    from tpuctl.remote.jobs import check_job, start_job
    from tpuctl.remote.run import plan_command, run_command

    if not (detach or job):
        unused = {"--check": check, "--no-check": check is False, "--log-limit": log_bytes}
        refuse_unused(unused, "without a job", hint="Add --detach.")
    check_job(job)
    planned = plan_command(as_words(command), env=as_pairs(env), folder=chdir)
    hosts, access, _ = as_workers(where).reach()
    if detach or job:
        size = 1 << 30 if log_bytes is None else log_bytes
        return start_job(hosts, planned, access, job=job, check=check is not False, log_bytes=size)
    return run_command(hosts, planned, access, sink=sink)


def cp(
    source: str | Path,
    target: str | Path,
    *,
    where: Workers | None = None,
    include_secrets: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress = silent,
) -> CopyResults | CopyPreview:
    """Copy a file or folder to every worker, or from them; unchanged files are not sent again.

    One of the two is NAME:path, or :path where `where` says which machines. Files in a folder that
    may hold keys or passwords are left out unless `include_secrets`. `dry_run` returns what would
    be copied and left out.
    """
    from tpuctl.remote.copy import copy, preview_copy
    from tpuctl.remote.copy_plan import Direction, plan_copy

    workers = where or Workers()
    is_given = workers.hosts is not None or workers.name is not None
    plan = plan_copy(str(source), str(target), has_hosts=is_given, include_secrets=include_secrets)
    workers = replace(workers, name=plan.name or workers.name)
    if batch := _batch_run(workers):
        provider, run = batch
        if plan.direction is Direction.UP or dry_run:
            what = "cp --dry-run" if dry_run else "cp to a run"
            raise provider.abilities.refuse(what, key="cp", name=run)
        return provider.fetch(run, plan.remote, plan.local_path)
    hosts, access, _ = workers.reach()
    if dry_run:
        return preview_copy(hosts, access, plan)
    return copy(hosts, access, plan, on_progress=on_progress)


def logs(
    where: str | Workers,
    *,
    job: str | None = None,
    follow: bool = False,
    tail: int | None = None,
    sink: Sink = print_output,
    note: Callable[[str], None] = lambda text: None,
) -> Logs | HostedRun | ClusterRun | Tpu:
    """Write the log of a job, by default the newest, to `sink`.

    `follow` continues until the job ends, across broken connections; the result then has its exit
    code. `tail` is how many of the last lines to begin with.
    """
    from tpuctl.remote.jobs import check_job
    from tpuctl.remote.logs import read_logs

    check_job(job)
    if batch := _batch_run(where):
        refuse_unused({"--job": job, "--tail": tail}, f"on {batch[0].abilities.title}")
        return batch[0].logs(batch[1], to_end=follow, sink=sink, note=note)
    hosts, access, _ = as_workers(where).reach()
    return read_logs(hosts, access, sink=sink, note=note, job=job, follow=follow, tail=tail)


def _batch_run(where: str | Workers) -> tuple[BatchProvider, str] | None:
    """Return the provider and the name of a run that has no workers; None for anything else."""
    workers = as_workers(where)
    if workers.hosts or not workers.name or workers.zone or workers.project:
        return None
    from tpuctl.providers.batch import BatchProvider
    from tpuctl.providers.registry import owner_of

    owner = owner_of(workers.name)
    return (owner, workers.name) if isinstance(owner, BatchProvider) else None


def jobs(where: str | Workers) -> Jobs:
    """List the jobs of some workers, and their state on each."""
    from tpuctl.remote.jobs import list_jobs

    hosts, access, _ = as_workers(where).reach()
    return list_jobs(hosts, access)


def stop(where: str | Workers, *, job: str | None = None, grace_s: float = 10.0) -> StoppedJob:
    """Stop a job and all its processes: TERM, then KILL after `grace_s`.

    The default is the newest job that is running.
    """
    from tpuctl.remote.jobs import check_job, stop_job

    check_job(job)
    if batch := _batch_run(where):
        refuse_unused({"--job": job}, f"on {batch[0].abilities.title}")
        return batch[0].stop(batch[1])
    hosts, access, _ = as_workers(where).reach()
    return stop_job(hosts, access, job=job, grace_s=grace_s)


def free(
    where: str | Workers,
    *,
    dry_run: bool = False,
    sudo: bool = False,
    grace_s: float = 10.0,
    confirm: Callable[[Holders], None] = lambda held: None,
) -> Holders:
    """End the processes that hold the chips of workers: TERM, then KILL after `grace_s`.

    `confirm` is called before, with what was found; it raises an exception to stop. `dry_run`
    returns what was found.
    """
    from tpuctl.remote.free import find_holders, free_chips

    workers = as_workers(where)
    if not workers.name and not workers.hosts:
        raise UsageError("Whose chips? Give a NAME, local or --host.", hint="tpuctl free local")
    hosts, access = workers.reach_or_here()
    held = find_holders(hosts, access, as_root=sudo)
    if dry_run or not held.needs_work:
        return held
    confirm(held)
    return free_chips(held, hosts, access, as_root=sudo, grace_s=grace_s)


@overload
def top(where: str | Workers = LOCAL, *, sudo: bool = False) -> Usage: ...
@overload
def top(
    where: str | Workers = LOCAL,
    *,
    sudo: bool = False,
    interval_s: float = 2.0,
    on_usage: Callable[[Usage], None],
) -> None: ...
def top(
    where: str | Workers = LOCAL,
    *,
    sudo: bool = False,
    interval_s: float = 2.0,
    on_usage: Callable[[Usage], None] | None = None,
) -> Usage | None:
    """Read what every worker is doing: vCPUs, memory, and each chip's load, memory and holder.

    With `on_usage`, which is called every `interval_s`, it continues until Ctrl-C.
    """
    from tpuctl.remote.top import follow_usage, read_usage

    workers = as_workers(where)
    if not workers.name and not workers.hosts:
        workers = replace(workers, name=LOCAL)
    hosts, access = workers.reach_or_here()
    if on_usage is None:
        return read_usage(hosts, access, as_root=sudo)
    follow_usage(hosts, access, on_usage, as_root=sudo, interval_s=interval_s)
    return None


def ssh(where: str | Workers, *, dry_run: bool = False) -> Shell:
    """Replace this process by an ssh session on one worker; `dry_run` returns the command."""
    from tpuctl.remote.ssh import open_shell, plan_shell

    hosts, access, _ = as_workers(where).reach()
    shell = plan_shell(hosts, access)
    return shell if dry_run else open_shell(shell)
