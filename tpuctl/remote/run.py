"""Run one command on all workers at once; `create --setup` runs its recipes like this."""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.errors import TpuctlError, UsageError, WorkerError
from tpuctl.remote.access import Access
from tpuctl.remote.agent import wire
from tpuctl.remote.connection import LEASE_S, AgentCall, Connection, call_agent, connection_lost
from tpuctl.remote.fleet import await_all, on_every_worker, run_async
from tpuctl.remote.hosts import Host, name_workers
from tpuctl.remote.output import LineSplitter, Output, Sink
from tpuctl.remote.results import (
    CommandResult,
    ExitReport,
    Results,
    command_result,
    with_failures,
)

STDOUT = 1
OnLine = Callable[[int, int, str], bool]
"""Takes worker, stream and line; False stops the commands on all workers."""

Beside = Callable[[Connection], Coroutine[Any, Any, None]]
"""Uses a worker's connection beside the command there; `Stopped` stops it on all workers."""

_STOP_S = 20.0
_KEPT_BYTES = 1 << 16
_STREAMS = {wire.STDOUT: STDOUT, wire.STDERR: 2}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class RunResult(CommandResult):
    """How a command ended on one worker, and the end of its output."""

    stdout: str = ""
    stderr: str = ""
    is_cut: bool = False


@dataclass(frozen=True)
class RunResults(Results):
    """How a command ended on all workers."""

    command: tuple[str, ...]
    workers: tuple[RunResult, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Workers where the command left processes running, which were stopped."""
        messy = [worker.index for worker in self.workers if worker.left_behind]
        if not messy:
            return ()
        return (
            f"On {name_workers(messy)} the command left processes behind; they were stopped with "
            "it. To start something that keeps running, use --detach.",
        )


@dataclass(frozen=True)
class Command:
    """A command: its words exactly as given, variables to add, and its working directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: str | None = None


def plan_command(
    argv: Sequence[str], *, env: Sequence[str] = (), folder: str | None = None
) -> Command:
    """Check a command and its variables; raises UsageError.

    Variables are `K=V`, or `K` for the value that it has here: what is on a command line can be
    seen by every user of the machine.
    """
    if not argv:
        raise UsageError("No command was given.", hint="Put it after --: -- python train.py")
    variables = {}
    for text in env:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"--env {text!r} is not a valid variable.", hint="Example: --env SEED=7"
            )
        if not equals and name not in os.environ:
            raise UsageError(
                f"--env {name}: this variable is not set here.",
                hint=f"Set it first (export {name}=...), or use --env {name}=VALUE.",
            )
        variables[name] = value if equals else os.environ[name]
    if any("\0" in text for text in [*argv, *variables.values(), folder or ""]):
        raise UsageError("An argument cannot contain a NUL character.")
    return Command(tuple(argv), variables, folder)


def run_command(
    hosts: tuple[Host, ...], command: Command, access: Access, *, sink: Sink
) -> RunResults:
    """Run a command on every worker, with its output to `sink`.

    Ctrl-C stops the commands on the workers, then KeyboardInterrupt is raised.
    """

    async def run() -> tuple[RunResult, ...]:
        async with Output(tuple(host.index for host in hosts), sink) as output:
            return await _run_on_all(hosts, dict.fromkeys(hosts, command), access, output)

    return RunResults(workers=run_async(run()), command=command.argv)


def run_each(
    hosts: tuple[Host, ...],
    commands: Mapping[int, Command],
    access: Access,
    *,
    on_line: OnLine,
    beside: Beside | None = None,
) -> tuple[RunResult, ...]:
    """Run a different command on each worker, by its number; on none if one is unreachable.

    `beside` runs for each connection at the same time. Returns nothing if a callback stopped them.
    Ctrl-C stops the commands on the workers, then KeyboardInterrupt is raised.
    """
    by_host = {host: commands[host.index] for host in hosts}
    try:
        return run_async(_run_on_all(hosts, by_host, access, _LineReader(on_line), beside))
    except Stopped:
        return ()


async def _run_on_all(
    hosts: tuple[Host, ...],
    commands: Mapping[Host, Command],
    access: Access,
    output: "Output | _LineReader",
    beside: "Beside | None" = None,
) -> tuple[RunResult, ...]:
    async def run(connection: Connection) -> RunResult:
        running = _run_on(connection, commands[connection.host], output)
        if beside is None:
            return await running
        works: list[Coroutine[Any, Any, Any]] = [running, beside(connection)]
        result: RunResult = (await await_all(works))[0]
        return result

    answers = await on_every_worker(hosts, access, run, together=True)
    return with_failures(RunResult, hosts, answers)


async def _run_on(
    connection: Connection, command: Command, output: "Output | _LineReader"
) -> RunResult:
    """Run a command on one worker; an error that ends it is part of the result."""
    host, tails = connection.host, {1: _Tail(), 2: _Tail()}
    request = {"argv": command.argv, "env": command.env, "folder": command.folder}
    try:
        async with call_agent(connection, "run.run", **request, lease_s=LEASE_S) as call:
            report = await _follow(call, output, tails)
        result = command_result(RunResult, host, command.argv[0], report)
    except TpuctlError as error:
        result = RunResult(index=host.index, address=host.address, failure=error)
    finally:
        await output.end(host.index)
    cut = tails[1].is_cut or tails[2].is_cut
    return replace(result, stdout=tails[1].text(), stderr=tails[2].text(), is_cut=cut)


async def _follow(
    call: AgentCall, output: "Output | _LineReader", tails: "dict[int, _Tail]"
) -> ExitReport:
    """Pass on a command's output until it has ended."""
    async with call.heartbeats():
        try:
            async for kind, content in call.frames():
                if stream := _STREAMS.get(kind):
                    tails[stream].add(content)
                    await output.take(call.host.index, stream, content)
                elif kind == wire.NOTE:
                    return call.read(ExitReport, content.get("exit"))
        except (asyncio.CancelledError, OSError):
            await _stop(call)
            raise
    raise connection_lost(call.host)


async def _stop(call: AgentCall) -> None:
    """Close our side, which stops the command on the worker, and wait until it has ended."""
    call.close_stdin()

    async def read_to_end() -> None:
        async for _ in call.frames():
            continue

    try:
        await asyncio.wait_for(read_to_end(), _STOP_S)
    except (TpuctlError, asyncio.TimeoutError):
        return


class _Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.is_cut = False

    def add(self, data: bytes) -> None:
        self._data += data
        # Cut at twice the size, so that not every small piece moves all that is kept.
        if len(self._data) > 2 * _KEPT_BYTES:
            self._cut()

    def text(self) -> str:
        self._cut()
        return self._data.decode("utf-8", "replace")

    def _cut(self) -> None:
        self.is_cut = self.is_cut or len(self._data) > _KEPT_BYTES
        del self._data[:-_KEPT_BYTES]


class Stopped(Exception):
    """A callback has asked to stop the commands on all workers."""


class _LineReader:
    """Splits output into lines for a callback."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._splitters: defaultdict[tuple[int, int], LineSplitter] = defaultdict(LineSplitter)

    async def take(self, worker: int, stream: int, data: bytes) -> None:
        for line in self._splitters[worker, stream].feed(data):
            if not self._on_line(worker, stream, line.decode("utf-8", "replace")):
                raise Stopped

    async def end(self, worker: int) -> None:
        pass


_DATA = Path(__file__).parent / "data" / "setup.json"


def recipes() -> dict[str, Any]:
    """Return the scripts by framework; `verify` runs on all workers at once."""
    return dict(load_facts(_DATA)["recipes"])


def set_up(
    hosts: tuple[Host, ...],
    access: Access,
    recipe: dict[str, str],
    *,
    chips: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Install and verify a framework on every worker; raises WorkerError with what was said."""
    for step in ("install", "verify"):
        on_step(step)
        command = Command(("bash", "-c", recipe[step]), {"TPUCTL_CHIPS": str(chips)})
        done = run_command(hosts, command, access, sink=lambda stream, data: None)
        for worker in done.workers:
            if worker.failure or worker.exit_code:
                said = (worker.stderr or worker.stdout).strip().splitlines()[-1:]
                why = said[0] if said else str(worker.failure or f"exit code {worker.exit_code}")
                raise WorkerError(
                    f"The TPU is there, but the step {step!r} of its setup failed on worker "
                    f"{worker.index}: {why}",
                    hint="To repeat the setup: the same command. To see more: "
                    f"tpuctl ssh {hosts[0].target}; to stop paying: "
                    f"tpuctl delete {hosts[0].target}",
                )
