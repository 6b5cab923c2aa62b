"""Run one command on all workers at once."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tpuctl.errors import TpuctlError, UsageError
from tpuctl.remote.access import Access
from tpuctl.remote.agent import wire
from tpuctl.remote.connection import LEASE_S, AgentCall, Connection, call_agent, connection_lost
from tpuctl.remote.fleet import open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.remote.results import (
    CommandResult,
    CommandResults,
    Output,
    Sink,
    command_result,
    error_result,
)

_STOP_S = 20.0
_KEPT_BYTES = 1 << 16
_STREAMS = {wire.STDOUT: 1, wire.STDERR: 2}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class RunResult(CommandResult):
    """How a command ended on one worker, and the end of what it printed."""

    stdout: str = ""
    stderr: str = ""
    is_cut: bool = False


@dataclass(frozen=True)
class RunResults(CommandResults):
    """How a command ended on all workers."""

    command: tuple[str, ...]
    workers: tuple[RunResult, ...]


@dataclass(frozen=True)
class Command:
    """What to run: the words exactly as given, added variables, and the folder to do it in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    folder: str | None = None


def plan_command(
    argv: Sequence[str], *, env: Sequence[str] = (), folder: str | None = None
) -> Command:
    """Check a command and its `K=V` variables; raises UsageError."""
    if not argv:
        raise UsageError(
            "There is no command to run.", hint="Write it after --: -- python train.py"
        )
    variables = dict(_variable(text) for text in env)
    if any("\0" in text for text in [*argv, *variables.values(), folder or ""]):
        raise UsageError("No argument can hold a NUL character.")
    return Command(tuple(argv), variables, folder)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise UsageError(f"--env {text!r} is no variable.", hint="Write it like --env SEED=7.")
    return name, value


def run_command(
    hosts: tuple[Host, ...], command: Command, access: Access, *, sink: Sink
) -> RunResults:
    """Run a command on every worker, its output to `sink` as it comes.

    On Ctrl-C the commands are stopped over there, then KeyboardInterrupt is raised.
    """
    return run_async(_run_on_all(hosts, command, access, sink))


async def _run_on_all(
    hosts: tuple[Host, ...], command: Command, access: Access, sink: Sink
) -> RunResults:
    async with Output(tuple(host.index for host in hosts), sink) as output:

        async def work(connection: Connection) -> RunResult:
            return await run_on(connection, command, output)

        async with open_fleet(hosts, access, together=True) as fleet:
            ends = await fleet.each(work)
    return RunResults(workers=ends_of(hosts, ends), command=command.argv)


def ends_of(
    hosts: Sequence[Host], ends: Sequence[RunResult | TpuctlError]
) -> tuple[RunResult, ...]:
    """How it went on every worker, those included that could not be reached."""
    return tuple(
        _never_ended(host, end) if isinstance(end, TpuctlError) else end
        for host, end in zip(hosts, ends, strict=True)
    )


class Taker(Protocol):
    """Takes what workers print, as it comes."""

    async def take(self, worker: int, stream: int, data: bytes) -> None:
        """Take bytes of a worker's stdout (1) or stderr (2)."""

    async def end(self, worker: int) -> None:
        """Hear that a worker prints nothing more."""


async def run_on(connection: Connection, command: Command, output: Taker) -> RunResult:
    """Run a command on one worker; how it ended, whatever that was."""
    tails = {1: _Tail(), 2: _Tail()}
    request = {"argv": command.argv, "env": command.env, "folder": command.folder}
    try:
        async with call_agent(connection, "run.run", **request, lease_s=LEASE_S) as conversation:
            ended = await _follow(conversation, output, tails)
    except TpuctlError as error:
        end = _never_ended(connection.host, error)
    else:
        end = _command_end(command_result(connection.host, command.argv[0], ended))
    finally:
        await output.end(connection.host.index)
    cut = tails[1].is_cut or tails[2].is_cut
    return replace(end, stdout=tails[1].text(), stderr=tails[2].text(), is_cut=cut)


async def _follow(
    conversation: AgentCall, output: Taker, tails: "dict[int, _Tail]"
) -> dict[str, Any]:
    """Pass on what is printed until the command has ended; how it did."""
    host = conversation.host
    async with conversation.watched():
        try:
            async for kind, payload in conversation.frames():
                if stream := _STREAMS.get(kind):
                    tails[stream].add(payload)
                    await output.take(host.index, stream, payload)
                elif "exit" in (note := wire.read_note(payload)):
                    return dict(note["exit"])
        except (asyncio.CancelledError, OSError):
            await _stop(conversation)
            raise
    raise connection_lost(host)


async def _stop(conversation: AgentCall) -> None:
    """Close our side, which ends the command over there, and wait until it has."""
    conversation.finish()

    async def until_it_ended() -> None:
        async for _ in conversation.frames():
            continue

    try:
        await asyncio.wait_for(until_it_ended(), _STOP_S)
    except (TpuctlError, asyncio.TimeoutError):
        return


def _command_end(end: CommandResult) -> RunResult:
    return RunResult(**{name: getattr(end, name) for name in CommandResult.__dataclass_fields__})


def _never_ended(host: Host, error: TpuctlError) -> RunResult:
    return _command_end(error_result(host, error))


class _Tail:
    """The last of a stream, for those who read the result instead of the screen."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.is_cut = False

    def add(self, data: bytes) -> None:
        """Take more, forget the oldest."""
        self._data += data
        if len(self._data) > 2 * _KEPT_BYTES:
            del self._data[:-_KEPT_BYTES]
            self.is_cut = True

    def text(self) -> str:
        """What is kept, as text."""
        self.is_cut = self.is_cut or len(self._data) > _KEPT_BYTES
        return self._data[-_KEPT_BYTES:].decode("utf-8", "replace")


STDOUT = 1
OnLine = Callable[[int, int, str], bool]
"""Takes worker, stream and line; False stops the commands everywhere."""


class _Enough(Exception):
    """Whoever listens has heard enough."""


class _Lines:
    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._begun: defaultdict[tuple[int, int], bytes] = defaultdict(bytes)

    async def take(self, worker: int, stream: int, data: bytes) -> None:
        *whole, rest = (self._begun[worker, stream] + data).split(b"\n")
        self._begun[worker, stream] = rest
        for line in whole:
            if not self._on_line(worker, stream, line.decode("utf-8", "replace")):
                raise _Enough

    async def end(self, worker: int) -> None:
        pass


def run_each(
    hosts: tuple[Host, ...],
    commands: Mapping[int, Command],
    access: Access,
    *,
    on_line: OnLine,
) -> tuple[RunResult, ...]:
    """Run the command of each worker, by its number; nothing anywhere if one cannot be reached.

    How they ended; nothing when `on_line` stopped them. On Ctrl-C the commands are stopped over
    there, then KeyboardInterrupt is raised.
    """
    lines = _Lines(on_line)

    async def work(connection: Connection) -> RunResult:
        return await run_on(connection, commands[connection.host.index], lines)

    async def run_all() -> tuple[RunResult, ...]:
        async with open_fleet(hosts, access, together=True) as fleet:
            return ends_of(hosts, await fleet.each(work))

    try:
        return run_async(run_all())
    except _Enough:
        return ()
