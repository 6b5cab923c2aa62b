"""A command of its own on each worker, and every line they print as soon as it is whole."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from tpuctl.remote.access import Access
from tpuctl.remote.connection import Connection
from tpuctl.remote.fleet import drive, open_fleet
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import Command, CommandEnd, ends_of, run_on

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
) -> tuple[CommandEnd, ...]:
    """Run the command of each worker, by its number; nothing anywhere if one cannot be reached.

    How they ended; nothing when `on_line` stopped them. On Ctrl-C the commands are stopped over
    there, then KeyboardInterrupt is raised.
    """
    lines = _Lines(on_line)

    async def work(connection: Connection) -> CommandEnd:
        return await run_on(connection, commands[connection.host.index], lines)

    async def run_all() -> tuple[CommandEnd, ...]:
        async with open_fleet(hosts, access, together=True) as fleet:
            return ends_of(hosts, await fleet.each(work))

    try:
        return drive(run_all())
    except _Enough:
        return ()
