"""The emulator as a process, one for each state folder: start, find and stop it."""

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from tpuctl.clock import WallClock
from tpuctl.emulator.kubernetes.discovery import kubeconfig
from tpuctl.emulator.resources import timestamp
from tpuctl.emulator.scenario import Scenario, load_scenario, parse_scenario
from tpuctl.emulator.server import Emulator, exports, serve_world
from tpuctl.emulator.service import ScaledClock, Store
from tpuctl.emulator.state import advance
from tpuctl.emulator.world import World
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.outcome import Outcome
from tpuctl.start_python import child_environment, python_command
from tpuctl.storage.local import (
    ensure_folder,
    locked,
    translated_write_errors,
    write_atomically,
)

START_S = 120.0
STOP_S = 30.0
_POLL_S = 0.05
_ANSWER_S = 30.0
_RISK = (
    "The emulator does not require its secret: every user of this machine can use it, and run "
    "commands as you on its workers."
)


@dataclass(frozen=True)
class Started(Outcome):
    """A running emulator, and the variables to export."""

    endpoint: str
    http: str
    pid: int
    time: str
    time_scale: float
    scenario: str | None
    resumed: bool
    exports: dict[str, str]
    is_open: bool = False
    was_running: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `--allow-unauthenticated` means."""
        return (_RISK,) if self.is_open else ()


@dataclass(frozen=True)
class Status(Outcome):
    """The state of an emulator; if there is none, only `running` and `kept` have values.

    `kept` says whether there is a stored world that the next start resumes.
    """

    running: bool
    kept: bool
    pid: int | None = None
    endpoint: str | None = None
    http: str | None = None
    time: str | None = None
    time_scale: float | None = None
    scenario: str | None = None
    requests: int | None = None
    nodes: dict[str, int] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)
    queued_resources: dict[str, int] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped(Outcome):
    """The result of `stop`; `was_running` is false if no emulator was running."""

    was_running: bool
    pid: int | None = None


class EmulatorFolder:
    """The folder of one emulator: its lock, its state, and the address of the running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.lock = folder / "lock"
        self.running = folder / "running.json"
        self.log = folder / "log.txt"
        self.machines = folder / "machines"
        self.token = folder / "token"
        self.kubeconfig = folder / "kubeconfig"

    def claim(self) -> None:
        """Create the folder, accessible only to this user; raises WriteError."""
        ensure_folder(self.folder, private=True)

    def secret(self, *, fresh: bool) -> str:
        """Return the secret that clients must send: that of the last run unless `fresh`."""
        with translated_write_errors(self.token):
            if fresh or not _is_private(self.token):
                self.token.unlink(missing_ok=True)
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
                with os.fdopen(os.open(self.token, flags, 0o600), "w") as file:
                    file.write(secrets.token_hex(32))
            return self.token.read_text(encoding="ascii")

    def last_run(self) -> dict[str, Any]:
        """Read what the running or last emulator wrote about itself."""
        try:
            known = json.loads(self.running.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def runs(self, scenario: Scenario | None) -> bool:
        """Whether the running emulator has this scenario; None means any."""
        is_started = self.last_run().get("pid") == self.holder()
        return is_started and scenario in (None, Store(self.state).scenario)

    def last_port(self, name: str) -> int:
        """Return the port of the last `endpoint` or `http`; 0 if unknown."""
        found = re.search(r":(\d+)(/|$)", str(self.last_run().get(name, "")))
        return int(found[1]) if found else 0

    def holder(self) -> int | None:
        """Return the process ID of the running emulator; its lock is released when it ends."""
        if not self.lock.exists():
            return None
        try:
            with locked(self.lock, wait_s=0, busy=""):
                return None
        except TryAgainError:
            return int(self.lock.read_text(encoding="ascii") or 0)


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_mode == stat.S_IFREG | 0o600 and found.st_uid == os.geteuid()


@contextmanager
def run(
    folder: Path,
    scenario_file: Path | None = None,
    *,
    port: int = 0,
    fresh: bool = False,
    allow_unauthenticated: bool = False,
) -> Iterator[Started]:
    """Run an emulator in this process while the block runs.

    It resumes the state in the folder unless `fresh`. Raises AlreadyExistsError if one is running
    already, InvalidInputError if the scenario is invalid or differs from that of the stored TPUs.
    """
    scenario = load_scenario(scenario_file) if scenario_file else None
    here = EmulatorFolder(folder)
    with ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))
        here.claim()
        try:
            lock = stack.enter_context(locked(here.lock, wait_s=1, busy="busy"))
        except TryAgainError as error:
            raise _runs_already(here) from error
        # Padded, so that it overwrites a longer number of the last process.
        os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)
        world, clock, resumed = _open(here, scenario, fresh=fresh)
        # Reuse the ports of the last run if possible, so that exported variables stay valid.
        ports = [(port or here.last_port("endpoint"), here.last_port("http")), (port, 0)]
        emulator = stack.enter_context(
            serve_world(
                world,
                clock=clock,
                store=Store(here.state),
                secret=None if allow_unauthenticated else here.secret(fresh=fresh),
                ports=ports,
                machines=here.machines,
            )
        )
        write_atomically(here.kubeconfig, kubeconfig(emulator), private=True)
        file = scenario_file or (here.last_run().get("scenario") if resumed else None)
        started = _started(here, emulator, file, resumed)
        write_atomically(here.running, json.dumps(asdict(started)), private=True)
        yield started


def detach(
    folder: Path,
    scenario_file: Path | None = None,
    *,
    port: int = 0,
    fresh: bool = False,
    allow_unauthenticated: bool = False,
) -> Started:
    """Start an emulator in the background, or return the running one with this scenario."""
    here = EmulatorFolder(folder)
    scenario = load_scenario(scenario_file) if scenario_file else None
    if here.holder() is not None:
        if fresh or port or allow_unauthenticated or not here.runs(scenario):
            raise _runs_already(here)
        known = {**here.last_run(), "time": _ask(here)["time"]}
        return Started(**known | {"was_running": True})
    here.claim()
    arguments = ["emulator", "start", "--json", "--port", str(port)]
    arguments += ["--scenario", str(scenario_file.absolute())] if scenario_file else []
    arguments += ["--fresh"] if fresh else []
    arguments += ["--allow-unauthenticated"] if allow_unauthenticated else []
    # Its output contains the secret, so it must not go to the log.
    output, its_output = os.pipe()
    try:
        pid = _spawn(here, arguments, its_output)
        os.close(its_output)
        return _wait_until_it_answers(here, pid, output)
    finally:
        os.close(output)


def _wait_until_it_answers(here: EmulatorFolder, pid: int, output: int) -> Started:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        known = here.last_run()
        if known.get("pid") == pid:
            # It is about to print the same, and would end if its output were closed.
            os.read(output, 1)
            return Started(**known)
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _did_not_start(here, os.waitstatus_to_exitcode(code), output)
        time.sleep(_POLL_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise UnavailableError(
        f"The emulator did not answer within {START_S:.0f} s.",
        hint="The machine may be too busy. Try again: tpuctl emulator start --detach",
    )


def _spawn(here: EmulatorFolder, arguments: list[str], output: int) -> int:
    """Start tpuctl in a new session, so that closing this terminal does not end it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return os.posix_spawn(
        sys.executable,
        python_command("tpuctl.__main__", *arguments),
        child_environment({"TPUCTL_STATE_DIR": str(here.folder.parent.absolute())}),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(here.log), flags, 0o600),
        ],
        setsid=True,
    )


def stop(folder: Path) -> Stopped:
    """Stop the emulator of a folder; its state is kept for the next start."""
    here = EmulatorFolder(folder)
    pid = here.holder()
    if pid is None:
        return Stopped(was_running=False)
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if here.holder() is None:
                return Stopped(was_running=True, pid=pid)
            time.sleep(_POLL_S)
    raise UnavailableError(f"Could not stop the emulator (process {pid}).")


def status(folder: Path) -> Status:
    """Say whether an emulator is running, and what it contains."""
    here = EmulatorFolder(folder)
    kept = here.state.is_dir() and Store(here.state).has_world
    if here.holder() is None:
        return Status(running=False, kept=kept)
    known, now = here.last_run(), _ask(here)
    return Status(
        running=True,
        kept=kept,
        scenario=known.get("scenario"),
        exports=known.get("exports", {}),
        **now,
    )


@contextmanager
def stop_signals() -> Iterator[SimpleQueue[int]]:
    """Return a queue of the signals that ask to stop; they may come just as the waiting begins."""
    signals: SimpleQueue[int] = SimpleQueue()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda got, _: signals.put(got)) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _open(
    here: EmulatorFolder, scenario: Scenario | None, *, fresh: bool
) -> tuple[World, ScaledClock, bool]:
    store = Store(here.state)
    if not fresh and store.has_world:
        world = store.resume()
        now = store.last_time(world)
        if scenario in (None, world.scenario):
            return world, ScaledClock(now, world.scenario.time_scale), True
        advance(world, now)
        if any(world.hosts()) or world.queued or world.compute.resources:
            raise InvalidInputError(
                f"The emulator's state in {here.folder} has TPUs from another scenario.",
                hint="Start over: add --fresh. To resume, leave out --scenario.",
            )
    shutil.rmtree(here.state)
    plan = scenario or parse_scenario({})
    now = plan.epoch or WallClock().now()
    world = Store(here.state).create(plan, seed=secrets.token_hex(8), now=now)
    return world, ScaledClock(now, world.scenario.time_scale), False


def _started(
    here: EmulatorFolder, emulator: Emulator, scenario: Path | str | None, resumed: bool
) -> Started:
    return Started(
        endpoint=emulator.endpoint,
        http=emulator.http,
        pid=os.getpid(),
        time=timestamp(emulator.now()),
        time_scale=emulator.scenario.time_scale,
        scenario=str(Path(scenario).absolute()) if scenario else None,
        resumed=resumed,
        exports=exports(emulator, str(here.token.absolute())),
        is_open=emulator.secret is None,
    )


def _ask(here: EmulatorFolder) -> dict[str, Any]:
    """Ask the running emulator for its status."""
    connection = http.client.HTTPConnection("127.0.0.1", here.last_port("http"), timeout=_ANSWER_S)
    path = urlsplit(str(here.last_run().get("http", ""))).path
    try:
        connection.request("GET", f"{path}/emulator/status")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(
            f"The emulator in {here.folder} is running but does not answer.",
            hint="tpuctl emulator stop",
        ) from error
    finally:
        connection.close()
    return answer


def _runs_already(here: EmulatorFolder) -> AlreadyExistsError:
    endpoint = here.last_run().get("endpoint", "an address that is not known yet")
    return AlreadyExistsError(
        f"An emulator is already running at {endpoint} (process {here.holder()}).",
        hint="Show it: tpuctl emulator status. Stop it: tpuctl emulator stop",
    )


def _did_not_start(here: EmulatorFolder, code: int, output: int) -> TpuctlError:
    """Make an error from the output of the process that failed to start."""
    try:
        problem = json.loads(os.read(output, 1 << 16))["errors"][0]
        error = TpuctlError(problem["message"], hint=problem["hint"])
        error.code, error.exit_code = problem["code"], code
        return error
    except (ValueError, LookupError, TypeError):
        text = here.log.read_text(encoding="utf-8", errors="replace").strip()
        last = text.splitlines()[-1] if text else "no output"
        return UnavailableError(f"The emulator did not start (exit code {code}): {last}")
