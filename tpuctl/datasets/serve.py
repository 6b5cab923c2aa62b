"""A tf.data service on this machine: started, watched, and ended with the process that began it."""

import contextlib
import importlib.util
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

from tpuctl.datasets import serve_agent
from tpuctl.datasets.serve_models import (
    PORT,
    Server,
    Service,
    line_of,
    plan_servers,
)
from tpuctl.errors import MissingExtraError, ServiceFailedError, UsageError
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import STDOUT, Command, run_each

_AGENT = Path(serve_agent.__file__)
_STOP_S = 15.0

OnService = Callable[[Service], None]
OnNote = Callable[[str], None]


@dataclass
class Watch:
    """What the servers of a service have said so far, and when all of them are ready."""

    plans: list[list[dict[str, Any]]]
    on_ready: OnService
    on_note: OnNote
    started_s: float = field(default_factory=time.monotonic)
    restarts: Counter[str] = field(default_factory=Counter)
    ready: set[str] = field(default_factory=set)
    error: ServiceFailedError | None = None
    is_announced: bool = False

    def take(self, line: str) -> None:
        """Understand one line of an agent; what is none of it is passed on as it is."""
        try:
            event = json.loads(line)
            kind, name = event["event"], event["name"]
        except (ValueError, KeyError, TypeError):
            self.on_note(line)
            return
        if kind == "ready":
            self.ready.add(name)
            if self.is_announced and self.restarts[name]:
                self.on_note(f"{name} is back.")
        elif kind == "died":
            self.ready.discard(name)
            self.restarts[name] += 1
            self.on_note(f"{name} ended ({event['how']}) and is started again.")
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


def _failed(name: str, event: dict[str, Any]) -> ServiceFailedError:
    said = f": {event['said']}" if event["said"] else ""
    hint = "Is the port in use? Choose another --port."
    if "No module named" in event["said"]:
        hint = "Install it where the service is to run: pip install tensorflow"
    return ServiceFailedError(f"The {name} ended with {event['how']}{said}.", hint=hint)


def serve_here(
    *, workers: int | None = None, port: int | None = None, on_ready: OnService, on_note: OnNote
) -> NoReturn:
    """Keep a dispatcher and workers running until one of them gives up (ServiceFailedError).

    Ctrl-C and TERM end all of them, then KeyboardInterrupt is raised; the death of this process
    ends them too, however it comes. Raises UsageError, MissingExtraError.
    """
    workers = check_workers(1 if workers is None else workers)
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("A tf.data service", extra="tf", module="tensorflow")
    with tempfile.TemporaryDirectory(prefix="tpuctl-serve-") as work_dir:
        first = port or _free_ports(1 + workers)
        plans = plan_servers(["localhost"], workers=workers, port=first, work_dir=work_dir)
        watch = Watch(plans, on_ready, on_note)
        with _agent(plans[0]) as agent, _terminated_by_signal():
            assert agent.stdout is not None
            for line in agent.stdout:
                watch.take(line.rstrip("\n"))
        raise watch.error or ServiceFailedError("The tf.data service ended without a word.")


def check_workers(workers: int) -> int:
    """Refuse a service without workers; raises UsageError."""
    if workers < 1:
        raise UsageError(
            f"With --workers {workers} nobody would serve anything.", hint="Give at least one."
        )
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
    """Let TERM do what Ctrl-C does; only in the main thread, where signals arrive."""

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
    """The first of so many free ports in a row."""
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


# Of this service alone: a dispatcher would go on with the workers that an older one had.
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
    """Keep a dispatcher on the first machine and workers on all until a server gives up.

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
    raise watch.error or failed or ServiceFailedError("The tf.data service ended without a word.")
