"""A tf.data service, here or on other machines: started, supervised, ended with this process."""

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tpuctl.codec import from_plain
from tpuctl.datasets import serve_agent
from tpuctl.errors import ServiceFailedError, UsageError
from tpuctl.lazy import need_modules
from tpuctl.outcome import Outcome
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import STDOUT, Command, run_each

PORT = 5050

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


OnService = Callable[[Service], None]
OnNote = Callable[[str], None]


def line_of(target: str) -> str:
    """The line of code that makes a training read its pipeline from the service."""
    return (
        "dataset = dataset.apply(tf.data.experimental.service.distribute("
        f'processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service="{target}"))'
    )


def plan_servers(
    addresses: list[str], *, workers: int, port: int, work_dir: str
) -> list[list[dict[str, Any]]]:
    """Plan the servers of each machine: the dispatcher on the first, workers on all in turn."""
    dispatcher = f"{addresses[0]}:{port}"
    plans: list[list[dict[str, Any]]] = [[] for _ in addresses]
    plans[0].append(
        {
            "name": "dispatcher",
            "role": "dispatcher",
            "port": port,
            "work_dir": work_dir,
            "address": addresses[0],
        }
    )
    for number in range(workers):
        machine = number % len(addresses)
        plans[machine].append(
            {
                "name": f"worker-{number}",
                "role": "worker",
                "dispatcher": dispatcher,
                "address": addresses[machine],
                # A different port on each machine too: two addresses may be the same machine.
                "port": port + 1 + number,
            }
        )
    return plans


@dataclass(frozen=True)
class _Event:
    """What an agent reports of one of its servers."""

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
    started_s: float = field(default_factory=time.monotonic)
    restarts: Counter[str] = field(default_factory=Counter)
    ready: set[str] = field(default_factory=set)
    error: ServiceFailedError | None = None
    is_announced: bool = False

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
        else:
            self.error = _failed(name, event)
        if not self.is_announced and self.ready >= {spec["name"] for spec in self._specs}:
            self.is_announced = True
            self.on_ready(self.service())

    def service(self) -> Service:
        """The service as it is now."""
        dispatcher = self.plans[0][0]
        target = f"grpc://{dispatcher['address']}:{dispatcher['port']}"
        servers = (
            Server(spec["name"], f"{spec['address']}:{spec['port']}", self.restarts[spec["name"]])
            for spec in self._specs
        )
        seconds = time.monotonic() - self.started_s
        return Service(target, tuple(servers), line_of(target), seconds)

    @property
    def _specs(self) -> list[dict[str, Any]]:
        return [spec for plan in self.plans for spec in plan]


def _failed(name: str, event: _Event) -> ServiceFailedError:
    said = f": {event.said}" if event.said else ""
    hint = "If the port is in use, choose another --port."
    if "No module named" in event.said:
        hint = "Install it on the machine of the service: pip install tensorflow"
    return ServiceFailedError(f"The {name} ended with {event.how}{said}.", hint=hint)


def serve_here(
    *, workers: int | None = None, port: int | None = None, on_ready: OnService, on_note: OnNote
) -> NoReturn:
    """Run a dispatcher and workers until one of them keeps failing (ServiceFailedError).

    Ctrl-C and TERM end all of them, then KeyboardInterrupt is raised; the death of this process
    ends them too, however it comes. Raises UsageError, MissingExtraError.
    """
    workers = check_workers(1 if workers is None else workers)
    need_modules("A tf.data service", "tensorflow", extra="tf")
    with tempfile.TemporaryDirectory(prefix="tpuctl-serve-") as work_dir:
        first = port or _free_ports(1 + workers)
        plans = plan_servers(["localhost"], workers=workers, port=first, work_dir=work_dir)
        watch = Watch(plans, on_ready, on_note)
        with _agent(plans[0]) as agent, _terminated_by_signal():
            assert agent.stdout is not None
            for line in agent.stdout:
                watch.take(line.rstrip("\n"))
        raise watch.error or ServiceFailedError("The tf.data service ended without an error.")


def check_workers(workers: int) -> int:
    """Return the number of workers; raises UsageError for less than one."""
    if workers < 1:
        raise UsageError(f"--workers has to be at least 1, not {workers}.")
    return workers


@contextmanager
def _agent(plan: list[dict[str, Any]]) -> "Iterator[subprocess.Popen[str]]":
    """Run the agent; it and its servers end with this block, or with this process."""
    request = json.dumps({"servers": plan, "stdin": True})
    agent = subprocess.Popen(
        [sys.executable, str(_AGENT), request],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield agent
    finally:
        assert agent.stdin is not None
        agent.stdin.close()
        try:
            agent.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        if agent.stdout is not None:
            agent.stdout.close()


@contextmanager
def _terminated_by_signal() -> Iterator[None]:
    """Let SIGTERM act like Ctrl-C, if this is the main thread, which gets the signals."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_ports(count: int) -> int:
    """Find a number of consecutive free ports; returns the first."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("", 0))
            port: int = first.getsockname()[1]
            try:
                for number in range(port + 1, port + count):
                    stack.enter_context(socket.socket()).bind(("", number))
            except (OSError, OverflowError):
                continue
            return port


# Only for this service: a dispatcher would restore the workers of an older one.
_WORK_DIR = "/tmp/tpuctl-serve-{}"


def serve_on_hosts(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    workers: int | None = None,
    port: int | None = None,
    python: str = "python3",
    on_ready: OnService,
    on_note: OnNote,
) -> NoReturn:
    """Run a dispatcher on the first machine and workers on all until a server keeps failing.

    One worker per machine by default, for each uses all vCPUs. They end with this process, or when
    the connection breaks. Raises ServiceFailedError, what kept a machine from being reached, and
    KeyboardInterrupt when all was stopped.
    """
    port, workers = port or PORT, check_workers(len(hosts) if workers is None else workers)
    addresses = [f"[{host.address}]" if ":" in host.address else host.address for host in hosts]
    work_dir = _WORK_DIR.format(secrets.token_hex(6))
    plans = plan_servers(addresses, workers=workers, port=port, work_dir=work_dir)
    watch = Watch(plans, on_ready, on_note)

    def on_line(worker: int, stream: int, line: str) -> bool:
        if stream == STDOUT:
            watch.take(line)
        else:
            on_note(f"[{worker}] {line}")
        return watch.error is None

    commands = {
        host.index: Command((python, "-c", _AGENT.read_text(), json.dumps({"servers": plan})), {})
        for host, plan in zip(hosts, plans, strict=True)
    }
    ends = run_each(hosts, commands, access, on_line=on_line)
    failed = next((end.failure for end in ends if end.failure), None)
    raise watch.error or failed or ServiceFailedError("The tf.data service ended without an error.")
