"""Jobs: commands that outlive the connection. Start, list and stop them."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import find
from tpuctl.cloud.models import Node, shared
from tpuctl.cloud.tpu import QueuedTpu, Tpu, describe_node, describe_queued
from tpuctl.errors import NotStartedError, TpuctlError, UsageError, WorkerError
from tpuctl.outcome import Outcome, Status
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.agent.joblog import LOG_BYTES
from tpuctl.remote.agent.jobs import NAME, RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.connection import REPLY_S, Connection, Timeouts, call_agent
from tpuctl.remote.fleet import Answers, Fleet, on_every_worker, open_fleet, run_async
from tpuctl.remote.hosts import Host, split_user, workers_of
from tpuctl.remote.keys import has_os_login, known_key, login_user, private_keys
from tpuctl.remote.results import CommandResult, ExitReport, Results, summarize, with_failures
from tpuctl.remote.run import Command

STOP_GRACE_S = 10.0
# `show` must not wait long for the jobs of a TPU that does not answer.
_SHOW_TIMEOUTS = Timeouts(connect_s=4.0)
_YEAR_10000_S = 253_402_300_800


@dataclass(frozen=True)
class StartedJob(Results):
    """A job that was started; `target` names its workers in suggested commands."""

    job: str
    command: tuple[str, ...]
    target: str


@dataclass(frozen=True, kw_only=True)
class StoppedWorker(CommandResult):
    """A job's state on one worker before and after it was stopped."""

    was: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class StoppedJob(Results):
    """A job that was stopped."""

    job: str
    workers: tuple[StoppedWorker, ...]


@dataclass(frozen=True)
class JobState:
    """A job on one worker."""

    index: int
    state: str
    pid: int | None
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True)
class Job:
    """A job, and its state on every worker that has it; `started` is in UTC (ISO 8601)."""

    job: str
    command: tuple[str, ...]
    started: str
    workers: tuple[JobState, ...]


@dataclass(frozen=True)
class Jobs(Outcome):
    """The jobs of some workers, oldest first."""

    jobs: tuple[Job, ...]
    unreachable: tuple[int, ...]
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """Partial when some workers could not be reached."""
        return "partial" if self.unreachable else "ok"


@dataclass(frozen=True)
class JobReport:
    """A job's state as its worker's agent reports it."""

    state: Literal["running", "finished", "stopped", "lost"]
    pid: int | None
    exit: ExitReport | None


@dataclass(frozen=True)
class JobRecord(JobReport):
    """A job as its worker's agent lists it."""

    job: str
    argv: tuple[str, ...]
    started_s: float

    def __post_init__(self) -> None:
        # Later than this is not a datetime, and one worker must not fail the list of all jobs.
        if not 0 <= self.started_s < _YEAR_10000_S:
            raise ValueError(f"job {self.job} started at {self.started_s}")


@dataclass(frozen=True)
class _JobList:
    jobs: tuple[JobRecord, ...]


@dataclass(frozen=True)
class _StopReport:
    job: str
    was: str
    state: JobReport


def check_job(name: str | None) -> str | None:
    """Return a valid job name unchanged; raises UsageError."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"--job {name!r} is not a valid job name.",
            hint="Use up to 64 letters, digits, dots, dashes and underscores.",
        )
    return name


def start_job(
    hosts: tuple[Host, ...],
    command: Command,
    access: Access,
    *,
    job: str | None = None,
    check: bool = True,
    log_bytes: int = LOG_BYTES,
) -> StartedJob:
    """Start a command that keeps running without us, on all workers or on none.

    With `check`, nothing is started if a worker is unfit (see `barrier.check_workers`). Each worker
    keeps the last `log_bytes` of the log (0: all of it).
    """
    random_name = f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    name = check_job(job) or random_name
    answers = run_async(_start_on_all(hosts, command, access, name, check, log_bytes))
    workers = with_failures(CommandResult, hosts, answers)
    return StartedJob(workers, name, command.argv, hosts[0].target)


async def _start_on_all(
    hosts: tuple[Host, ...],
    command: Command,
    access: Access,
    job: str,
    check: bool,
    log_bytes: int,
) -> Answers[CommandResult]:
    request = {
        "job": job,
        "argv": command.argv,
        "env": dict(command.env),
        "folder": command.folder,
        "log_bytes": log_bytes,
    }

    async def start(connection: Connection) -> CommandResult:
        async with call_agent(connection, "jobs.start", **request) as call:
            await call.reply()
        return CommandResult(index=connection.host.index, address=connection.host.address)

    async with open_fleet(hosts, access, together=True) as fleet:
        if check and (unfit := (await probe_fleet(fleet, None)).unfit):
            why = "because another worker is not fit for the job"
            return [
                unfit.get(host.index)
                or NotStartedError(f"Nothing was started on {host.label}, {why}.")
                for host in hosts
            ]
        answers = await fleet.each(start)
        if any(isinstance(answer, TpuctlError) for answer in answers):
            answers = await _stop_started(fleet, job, answers)
    return answers


async def _stop_started(
    fleet: Fleet, job: str, answers: Answers[CommandResult]
) -> Answers[CommandResult]:
    """Stop the job where it did start: part of a slice would wait for the rest forever."""
    started = {answer.index for answer in answers if isinstance(answer, CommandResult)}

    async def stop(connection: Connection) -> None:
        if connection.host.index in started:
            await _stop_on(connection, job, STOP_GRACE_S)

    await fleet.each(stop)
    return [
        answer
        if isinstance(answer, TpuctlError)
        else NotStartedError(f"The job was stopped again on {host.label}.")
        for host, answer in zip(fleet.hosts, answers, strict=True)
    ]


def stop_job(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    job: str | None = None,
    grace_s: float = STOP_GRACE_S,
) -> StoppedJob:
    """End a job (default: the newest that runs) and all its processes: TERM, then KILL."""
    check_job(job)

    async def stop_on_all() -> tuple[str | None, Answers[StoppedWorker]]:
        async with open_fleet(hosts, access) as fleet:
            name = await find_job(fleet, job, prefer=RUNNING)
            return name, await fleet.each(lambda each: _stop_on(each, name, grace_s))

    name, answers = run_async(stop_on_all())
    return StoppedJob(job=name or "", workers=with_failures(StoppedWorker, hosts, answers))


async def _stop_on(connection: Connection, job: str | None, grace_s: float) -> StoppedWorker:
    host = connection.host
    async with call_agent(connection, "jobs.stop", job=job, grace_s=grace_s) as call:
        report = call.read(_StopReport, await call.reply(grace_s + REPLY_S))
    failure = None
    if report.state.state == RUNNING:
        failure = WorkerError(
            f"Job {report.job} is still running on {host.label}, although it was killed.",
            hint=f"Check its processes: tpuctl run {host.target} --worker {host.index} -- ps aux",
        )
    return StoppedWorker(
        index=host.index,
        address=host.address,
        failure=failure,
        exit_code=report.state.exit.code if report.state.exit else None,
        was=report.was,
        state=report.state.state,
    )


async def find_job(fleet: Fleet, job: str | None, prefer: str = "") -> str | None:
    """Return the given job's name, or that of the newest on any worker, in state `prefer` first."""
    if job is not None:
        return job
    answers = await fleet.each(jobs_of)
    known = [entry for a in answers if not isinstance(a, TpuctlError) for entry in a]
    newest = max(known, key=lambda each: (each.state == prefer, each.started_s), default=None)
    return newest.job if newest else None


async def jobs_of(connection: Connection) -> tuple[JobRecord, ...]:
    """List every job of a worker, oldest first."""
    async with call_agent(connection, "jobs.show") as call:
        return call.read(_JobList, await call.reply()).jobs


def list_jobs(hosts: tuple[Host, ...], access: Access) -> Jobs:
    """List the jobs of some workers, with their state on each."""
    answers = run_async(on_every_worker(hosts, access, jobs_of))
    entries: dict[str, list[tuple[int, JobRecord]]] = {}
    failed = []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, TpuctlError):
            failed.append((host.index, answer))
            continue
        for entry in answer:
            entries.setdefault(entry.job, []).append((host.index, entry))
    jobs = sorted((_merge_job(same) for same in entries.values()), key=lambda job: job.started)
    return Jobs(tuple(jobs), tuple(index for index, _ in failed), summarize(failed))


def _merge_job(same: list[tuple[int, JobRecord]]) -> Job:
    first = same[0][1]
    started = datetime.fromtimestamp(min(entry.started_s for _, entry in same), timezone.utc)
    states = (
        JobState(
            index,
            entry.state,
            entry.pid,
            entry.exit.code if entry.exit else None,
            entry.exit.signal if entry.exit else None,
        )
        for index, entry in same
    )
    return Job(first.job, first.argv, started.isoformat(timespec="seconds"), tuple(states))


@dataclass(frozen=True, kw_only=True)
class ShownTpu(Tpu):
    """A TPU with its jobs, oldest first; None where they are unknown, and why."""

    jobs: tuple[Job, ...] | None
    jobs_why_null: str | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from, and why its jobs are unknown."""
        why = f"its jobs are not known: {self.jobs_why_null}"
        return (*super().reasons, *((why,) if self.jobs_why_null else ()))


def show_with_jobs(api: TpuApi, name: str, *, zone: str | None = None) -> ShownTpu | QueuedTpu:
    """Describe a TPU with its jobs, or the queued resource that waits for it.

    Only reads: our key is not added to workers that do not know it. `name` may be user@NAME.
    """
    is_given = "@" in name
    user, name = split_user(name)
    found, now = find(api, name, zone), api.clock.now()
    if not isinstance(found, Node):
        return describe_queued(found, now=now)
    tpu = describe_node(found, now=now, emulated=api.emulated)
    jobs, why = _jobs_of_node(found, tpu, user, is_given=is_given)
    return ShownTpu(**shared(Tpu, tpu), jobs=jobs, jobs_why_null=why)


def _jobs_of_node(
    node: Node, tpu: Tpu, user: str, *, is_given: bool
) -> tuple[tuple[Job, ...] | None, str | None]:
    if not tpu.is_usable:
        return None, f"it is {tpu.state}"
    state = settings.state_dir()
    try:
        user = user if is_given else login_user(node, user)
        pair = known_key(state, node, user)
        keys = (pair.path,) if pair else private_keys(state) if has_os_login(node.metadata) else ()
        if not keys:
            return None, f"its workers do not know our key yet; tpuctl run {node.name} adds it"
        access = Access(keys, HostKeys(state / "known_hosts"), timeouts=_SHOW_TIMEOUTS)
        found = list_jobs(workers_of(node, user), access)
    except TpuctlError as error:
        return None, str(error)
    if found.failures and not found.jobs:
        return None, str(found.failures[0])
    return found.jobs, None
