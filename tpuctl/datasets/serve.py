"""A tf.data service, here or on other machines: started, supervised, ended with this process."""

import asyncio
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tpuctl.codec import from_plain
from tpuctl.datasets import serve_agent
from tpuctl.errors import ServiceFailedError, TpuctlError, UsageError
from tpuctl.lazy import need_modules
from tpuctl.outcome import Outcome
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Connection
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import STDOUT, Command, Stopped, run_each
from tpuctl.start_python import child_environment, stop_process

PORT = 5050

_LAST_PORT = 65535
_RISK = (
    "The service listens on all interfaces without authentication: everybody who reaches its "
    "ports, over the network or on the machine, can read and write files as you."
)
_AGENT = Path(serve_agent.__file__)
_STOP_S = 15.0


@dataclass(frozen=True)
class Server:
    """One server: `dispatcher` or `worker-N`, its address, and how often it was restarted."""

    name: str
    address: str
    restarts: int = 0


@dataclass(frozen=True)
class Service(Outcome):
    """A tf.data service that runs."""

    target: str
    servers: tuple[Server, ...]
    line: str
    seconds: float
    is_open: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `--allow-unauthenticated` means."""
        return (_RISK,) if self.is_open else ()


OnService = Callable[[Service], None]
OnNote = Callable[[str], None]


def line_of(target: str) -> str:
    """The line of code that makes a training read its pipeline from the service."""
    return (
        "dataset = dataset.apply(tf.data.experimental.service.distribute("
        f'processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service="{target}"))'
    )


def plan_servers(
    hosts: list[str], *, workers: int, port: int, folder: str, is_open: bool = False
) -> list[list[dict[str, Any]]]:
    """Plan the servers of each machine: the dispatcher on the first, workers on all in turn.

    Clients reach them by socket files in `folder`, or with `is_open` at ports of their hosts.
    Raises UsageError for ports that do not exist.
    """
    if not (port >= 1 and port + workers <= _LAST_PORT):
        last = _LAST_PORT - workers
        raise UsageError(f"--port has to be from 1 to {last} with that many workers, not {port}.")
    names = ["dispatcher", *(f"worker-{number}" for number in range(workers))]
    plans: list[list[dict[str, Any]]] = [[] for _ in hosts]
    for place, name in enumerate(names):
        machine = max(0, place - 1) % len(hosts)
        # A different port on each machine too: two addresses may be the same machine.
        own = {"name": name, "role": name.partition("-")[0], "port": port + place}
        address = f"{hosts[machine]}:{port + place}" if is_open else f"unix:{folder}/{name}"
        plans[machine].append({**own, "address": address})
    dispatcher = plans[0][0]
    for spec in (spec for plan in plans for spec in plan):
        if spec is dispatcher:
            spec["work_dir"] = folder if is_open else f"{folder}/journal"
        else:
            spec["dispatcher"] = dispatcher["address"]
    return plans


@dataclass(frozen=True)
class _Event:
    """An event that an agent reports about one of its servers."""

    event: str
    name: str
    how: str = ""
    said: str = ""


@dataclass
class Watch:
    """The state of a service, from the events that its agents report."""

    plans: list[list[dict[str, Any]]]
    on_ready: OnService
    on_note: OnNote
    is_open: bool = False
    started_s: float = field(default_factory=time.monotonic)
    restarts: Counter[str] = field(default_factory=Counter)
    ready: set[str] = field(default_factory=set)
    error: TpuctlError | None = None
    is_announced: bool = False
    is_connected: bool = True
    machines: dict[int, str] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """Handle one line of an agent; a line that is not an event is passed on as a note."""
        try:
            event = from_plain(_Event, json.loads(line))
        except (ValueError, RecursionError):
            self.on_note(line)
            return
        kind, name = event.event, event.name
        if kind == "ready":
            self.ready.add(name)
            if self.is_announced and self.restarts[name]:
                self.on_note(f"{name} is back.")
        elif kind == "died":
            self.ready.discard(name)
            self.restarts[name] += 1
            self.on_note(f"{name} ended ({event.how}) and is restarted.")
        elif kind == "machine" and name in map(str, range(len(self.plans))):
            self.machines[int(name)] = event.said
        else:
            self.error = _failed(name, event)
        self.announce()

    def announce(self) -> None:
        """Call `on_ready` once, when all servers are ready and can be reached."""
        are_ready = self.ready >= {spec["name"] for spec in self._specs}
        if are_ready and self.is_connected and not self.is_announced:
            self.is_announced = True
            self.on_ready(self.service())

    def service(self) -> Service:
        """The service as it is now."""
        dispatcher = self.plans[0][0]
        target = f"grpc://{dispatcher['address']}"
        servers = (
            Server(spec["name"], spec["address"], self.restarts[spec["name"]])
            for spec in self._specs
        )
        seconds = time.monotonic() - self.started_s
        return Service(target, tuple(servers), line_of(target), seconds, self.is_open)

    @property
    def _specs(self) -> list[dict[str, Any]]:
        return [spec for plan in self.plans for spec in plan]


def _failed(name: str, event: _Event) -> ServiceFailedError:
    said = f": {event.said}" if event.said else ""
    if event.how == "no private network":
        return ServiceFailedError(
            f"Could not start the {name} where only you can reach it: its machine does not allow "
            f"a private network{said}.",
            hint="If you trust everybody on that machine and its network with your files: "
            "--allow-unauthenticated",
        )
    hint = "If the port is in use, choose another --port."
    if "No module named" in event.said:
        hint = "Install it on the machine of the service: pip install tensorflow"
    return ServiceFailedError(f"The {name} ended with {event.how}{said}.", hint=hint)


def serve(
    hosts: tuple[Host, ...] = (),
    access: Access | None = None,
    *,
    workers: int | None = None,
    port: int | None = None,
    python: str = "python3",
    allow_unauthenticated: bool = False,
    on_ready: OnService,
    on_note: OnNote,
) -> NoReturn:
    """Run a dispatcher and workers, here or on `hosts`, until one of them keeps failing.

    They end with this process, however it ends, or when a connection breaks. Raises
    ServiceFailedError, UsageError, MissingExtraError, what kept a machine from being reached, and
    KeyboardInterrupt when all was stopped.
    """
    # One worker on each machine, for each uses all vCPUs.
    workers = max(1, len(hosts)) if workers is None else workers
    if workers < 1:
        raise UsageError(f"--workers has to be at least 1, not {workers}.")
    is_open = allow_unauthenticated
    if port is not None and not is_open:
        raise UsageError(
            "--port needs --allow-unauthenticated: without that, the service has no port but a "
            "socket file that only you can open.",
            hint="Leave --port out, and use the line that tpuctl data serve prints.",
        )
    # Short, because the path of a socket has at most 107 bytes; the same on all machines.
    folder = f"/tmp/tpuctl-serve-{secrets.token_hex(6)}"  # noqa: S108 (random name)
    addresses = [f"[{host.address}]" if ":" in host.address else host.address for host in hosts]
    addresses = addresses or [_own_address()]
    plans = plan_servers(
        addresses, workers=workers, port=port or PORT, folder=folder, is_open=is_open
    )
    watch = Watch(plans, on_ready, on_note, is_open)
    failed = None
    if access:
        failed = _serve_on(hosts, access, watch, folder, python)
    else:
        _serve_here(watch, folder)
    raise watch.error or failed or ServiceFailedError("The tf.data service ended without an error.")


def _serve_here(watch: Watch, folder: str) -> None:
    need_modules("A tf.data service", "tensorflow", extra="tf")
    request = {"servers": watch.plans[0], "folder": None if watch.is_open else folder}
    with _agent(request) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:
            watch.take(line.rstrip("\n"))


def _own_address() -> str:
    """Return the address of this machine that others see, for a service that is open to them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: this only asks for the route to an address of a documentation net.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@contextmanager
def _agent(request: dict[str, Any]) -> "Iterator[subprocess.Popen[str]]":
    """Run the agent; it and its servers end with this block, or with this process."""
    agent = subprocess.Popen(  # noqa: S603 (our own agent)
        [sys.executable, str(_AGENT), json.dumps({**request, "stdin": True})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=child_environment(),
    )
    try:
        yield agent
    finally:
        assert agent.stdin is not None
        agent.stdin.close()
        # The end of stdin, not a signal, tells it to stop; 0 only checks that it still runs.
        stop_process(agent, (0, _STOP_S), (signal.SIGKILL, _STOP_S))
        if agent.stdout is not None:
            agent.stdout.close()


# An agent reports before it imports TensorFlow.
REPORT_S = 120.0


class _Tunnels:
    """SSH tunnels that put the socket file of every server on every machine, and on this one.

    Those from one machine of the service to another lead through this one.
    """

    def __init__(self, folder: str, hosts: tuple[Host, ...], watch: Watch) -> None:
        self._folder, self._watch = folder, watch
        self._places = {host.index: place for place, host in enumerate(hosts)}
        self._own = [{spec["name"] for spec in plan} for plan in watch.plans]
        self.have_all_reported = asyncio.Event()
        self.expected = set(self._places.values())
        self._left = set(self.expected)
        watch.is_connected = False

    async def open(self, connection: Connection) -> None:
        """Open the tunnels of one machine; raises Stopped with the error in `watch`."""
        try:
            await asyncio.wait_for(self.have_all_reported.wait(), REPORT_S)
        except asyncio.TimeoutError:
            silent = ", ".join(map(str, sorted(self.expected - self._watch.machines.keys())))
            self._watch.error = ServiceFailedError(
                f"The servers did not start on machine {silent} within {REPORT_S:g} s.",
                hint="Check that --python starts there, and how busy the machine is.",
            )
            raise Stopped from None
        place, machines = self._places[connection.host.index], self._watch.machines
        try:
            serve_agent.claim_folder(self._folder)
            here = serve_agent.machine_token(self._folder)
            # Two addresses may be the same machine, and that may be this one.
            same = [other for other in machines if machines[other] == machines[place]]
            there = set().union(*(self._own[other] for other in same))
            if machines[place] != here:
                for name in sorted(self._own[place]):
                    await connection.forward_socket(f"{self._folder}/{name}", from_worker=True)
                for name in sorted(set().union(*self._own) - there if place == same[0] else ()):
                    await connection.forward_socket(f"{self._folder}/{name}", from_worker=False)
        except (TpuctlError, OSError) as error:
            broken = ServiceFailedError(f"Could not use {self._folder}: {error}.")
            self._watch.error = error if isinstance(error, TpuctlError) else broken
            raise Stopped from error
        self._left.discard(place)
        self._watch.is_connected = not self._left
        self._watch.announce()


def _serve_on(
    hosts: tuple[Host, ...], access: Access, watch: Watch, folder: str, python: str
) -> TpuctlError | None:
    """Run the servers over SSH; returns what kept a machine from being reached."""
    tunnels = None if watch.is_open else _Tunnels(folder, hosts, watch)

    def on_line(worker: int, stream: int, line: str) -> bool:
        if stream == STDOUT:
            watch.take(line)
            if tunnels and tunnels.expected <= watch.machines.keys():
                tunnels.have_all_reported.set()
        else:
            watch.on_note(f"[{worker}] {line}")
        return watch.error is None

    commands = {}
    for place, host in enumerate(hosts):
        request = {"servers": watch.plans[place], "folder": tunnels and folder, "machine": place}
        words = (python, "-c", _AGENT.read_text(), json.dumps(request))
        commands[host.index] = Command(words, {})
    try:
        beside = tunnels.open if tunnels else None
        ends = run_each(hosts, commands, access, on_line=on_line, beside=beside)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return next((end.failure for end in ends if end.failure), None)
