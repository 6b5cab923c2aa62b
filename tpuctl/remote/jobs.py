"""Jobs: commands that outlive the connection. Start, list and stop them."""

import secrets
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import find
from tpuctl.cloud.models import Node
from tpuctl.cloud.tpu import QueuedTpu, Tpu, describe_node, describe_queued
from tpuctl.errors import NotStartedError, TpuctlError, UsageError, WorkerError
from tpuctl.outcome import Outcome, Status
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.agent.joblog import LOG_BYTES
from tpuctl.remote.agent.jobs import NAME, RUNNING
from tpuctl.remote.barrier import probe_fleet
from tpuctl.remote.connection import Connection, Timeouts, call_agent
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host, split_user, workers_of
from tpuctl.remote.keys import has_os_login, known_key, login_user, private_keys
from tpuctl.remote.results import CommandResult, CommandResults, error_result, summarize
from tpuctl.remote.run import Command

STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class StartedJob(CommandResults):
    """A job that runs on its own now; `target` is how a command line names its workers."""

    job: str
    command: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class StoppedWorker(CommandResult):
    """What became of a job on one worker: the state it was in, and the one it is in now."""

    was: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class StoppedJob(CommandResults):
    """A job that was asked to end."""

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
    """The jobs of some workers, the oldest first."""

    jobs: tuple[Job, ...]
    unreachable: tuple[int, ...]
    errors: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """Partial when not every worker could be asked."""
        return "partial" if self.unreachable else "ok"

    @property
    def exit_code(self) -> int:
        """That of the first worker that could not be asked."""
        return self.errors[0].exit_code if self.errors else 0

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Why workers could not be asked."""
        return self.errors


def check_job(name: str | None) -> str | None:
    """Refuse what cannot be a job's name; raises UsageError."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"--job {name!r} is no name for a job.",
            hint="Letters, digits, dots, dashes and underscores, 64 at most.",
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
    """Start a command on every worker that runs on without us; on all of them or on none.

    With `check`, the workers are looked at first (`barrier.check_workers`), and nothing is started
    when one of them is unfit. Of its log each worker keeps the last `log_bytes` (0: all of it).
    """
    name = check_job(job) or _new_name()
    return run_async(_start_on_all(hosts, command, access, name, check, log_bytes))


def stop_job(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    job: str | None = None,
    grace_s: float = STOP_GRACE_S,
) -> StoppedJob:
    """End a job (default: the newest) with all its processes: TERM, and KILL after `grace_s`."""
    return run_async(_stop_on_all(hosts, access, check_job(job), grace_s))


def list_jobs(hosts: tuple[Host, ...], access: Access) -> Jobs:
    """Read every job of some workers, and its state on each."""
    return run_async(_list(hosts, access))


async def find_job(fleet: Fleet, job: str | None) -> str | None:
    """The job of that name, or the one that any of the workers has started last."""
    if job is not None:
        return job
    found = [answer for answer in await fleet.each(jobs_of) if not isinstance(answer, TpuctlError)]
    everything = [entry for entries in found for entry in entries]
    return max(everything, key=_age)["job"] if everything else None


async def jobs_of(connection: Connection) -> list[dict[str, Any]]:
    """Every job of a worker as its agent describes it, the oldest first."""
    async with call_agent(connection, "jobs.show") as conversation:
        return list((await conversation.answer())["jobs"])


def _age(entry: dict[str, Any]) -> float:
    return float(entry["started_s"])


def _new_name() -> str:
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def _start_on_all(
    hosts: tuple[Host, ...],
    command: Command,
    access: Access,
    job: str,
    check: bool,
    log_bytes: int,
) -> StartedJob:
    request = {
        "argv": command.argv,
        "env": dict(command.env),
        "folder": command.folder,
        "log_bytes": log_bytes,
    }

    async def start(connection: Connection) -> CommandResult:
        async with call_agent(connection, "jobs.start", job=job, **request) as conversation:
            await conversation.answer()
        host = connection.host
        return CommandResult(host.index, host.address, None, None, None)

    async with open_fleet(hosts, access, together=True) as fleet:
        if check and (unfit := (await probe_fleet(fleet, None)).unfit):
            return StartedJob(_not_fit(hosts, unfit), job, command.argv, hosts[0].target)
        answers = await fleet.each(start)
        if any(isinstance(answer, TpuctlError) for answer in answers):
            answers = await _take_back(fleet, job, answers)
    pairs = zip(hosts, answers, strict=True)
    workers = (error_result(h, a) if isinstance(a, TpuctlError) else a for h, a in pairs)
    return StartedJob(tuple(workers), job, command.argv, hosts[0].target)


def _not_fit(hosts: tuple[Host, ...], unfit: dict[int, TpuctlError]) -> tuple[CommandResult, ...]:
    idle = "Nothing was started on {}, for another worker is not fit for it."
    return tuple(
        error_result(host, unfit.get(host.index) or NotStartedError(idle.format(host.label)))
        for host in hosts
    )


async def _take_back(
    fleet: Fleet, job: str, answers: list[CommandResult | TpuctlError]
) -> list[CommandResult | TpuctlError]:
    """Stop the job where it did start: a part of a slice would wait for the rest for ever."""
    begun = {answer.index for answer in answers if isinstance(answer, CommandResult)}

    async def stop(connection: Connection) -> None:
        if connection.host.index in begun:
            await _stop_on(connection, job, STOP_GRACE_S)

    await fleet.each(stop)
    return [
        answer
        if isinstance(answer, TpuctlError)
        else NotStartedError(f"It was stopped again on {host.label}.")
        for host, answer in zip(fleet.hosts, answers, strict=True)
    ]


async def _stop_on_all(
    hosts: tuple[Host, ...], access: Access, job: str | None, grace_s: float
) -> StoppedJob:
    async with open_fleet(hosts, access) as fleet:
        name = await find_job(fleet, job)

        async def stop(connection: Connection) -> StoppedWorker:
            return await _stop_on(connection, name, grace_s)

        answers = await fleet.each(stop)
    workers = (
        StoppedWorker(host.index, host.address, None, None, str(answer), failure=answer)
        if isinstance(answer, TpuctlError)
        else answer
        for host, answer in zip(hosts, answers, strict=True)
    )
    return StoppedJob(job=name or "", workers=tuple(workers))


async def _stop_on(connection: Connection, job: str | None, grace_s: float) -> StoppedWorker:
    host = connection.host
    async with call_agent(connection, "jobs.stop", job=job, grace_s=grace_s) as conversation:
        answer = await conversation.answer()
    state = answer["state"]["state"]
    failure = None
    if state == RUNNING:
        failure = WorkerError(
            f"Job {answer['job']} still runs on {host.label}, although it was killed.",
            hint=f"See who it waits for: tpuctl run {host.target} --worker {host.index} -- ps aux",
        )
    ended = answer["state"]["exit"] or {}
    return StoppedWorker(
        host.index,
        host.address,
        ended.get("code"),
        None,
        str(failure) if failure else None,
        failure=failure,
        was=answer["was"],
        state=state,
    )


async def _list(hosts: tuple[Host, ...], access: Access) -> Jobs:
    async with open_fleet(hosts, access) as fleet:
        answers = await fleet.each(jobs_of)
    entries: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    failed = []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, TpuctlError):
            failed.append((host.index, answer))
            continue
        for entry in answer:
            entries.setdefault(entry["job"], []).append((host.index, entry))
    jobs = sorted((_job(same) for same in entries.values()), key=lambda job: job.started)
    return Jobs(tuple(jobs), tuple(index for index, _ in failed), summarize(failed))


def _job(same: list[tuple[int, dict[str, Any]]]) -> Job:
    first = same[0][1]
    began = datetime.fromtimestamp(min(_age(entry) for _, entry in same), timezone.utc)
    return Job(
        first["job"],
        tuple(first["argv"]),
        began.isoformat(timespec="seconds"),
        tuple(_job_state(*one) for one in same),
    )


def _job_state(index: int, entry: dict[str, Any]) -> JobState:
    ended = entry["exit"] or {}
    return JobState(index, entry["state"], entry["pid"], ended.get("code"), ended.get("signal"))


_HURRY = Timeouts(connect_s=4.0)


@dataclass(frozen=True, kw_only=True)
class ShownTpu(Tpu):
    """A TPU with its jobs, the oldest first; None where they are not known, and why not."""

    jobs: tuple[Job, ...] | None
    jobs_why_null: str | None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from, and why its jobs are not known."""
        why = f"its jobs are not known: {self.jobs_why_null}"
        return (*super().reasons, *((why,) if self.jobs_why_null else ()))


def show_with_jobs(api: TpuApi, name: str, *, zone: str | None = None) -> ShownTpu | QueuedTpu:
    """Show one TPU with its jobs, or the queued resource that waits for it.

    Only reads: workers that do not know our key yet are not told. `name` may be user@NAME.
    """
    is_given = "@" in name
    user, name = split_user(name)
    found, now = find(api, name, zone), api.clock.now()
    if not isinstance(found, Node):
        return describe_queued(found, now=now)
    tpu = describe_node(found, now=now, emulated=api.emulated)
    jobs, why = _jobs_of(found, tpu, user, is_given=is_given)
    known = {each.name: getattr(tpu, each.name) for each in fields(Tpu)}
    return ShownTpu(**known, jobs=jobs, jobs_why_null=why)


def _jobs_of(
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
            return None, f"its workers do not know our key yet; tpuctl run {node.name} tells them"
        access = Access(keys, HostKeys(state / "known_hosts"), patience=_HURRY)
        found = list_jobs(workers_of(node, user), access)
    except TpuctlError as error:
        return None, str(error)
    if found.failures and not found.jobs:
        return None, str(found.failures[0])
    return found.jobs, None
