"""The emulator as a program of its own, one for each state folder: started, found, stopped."""

import http.client
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpuctl.clock import WallClock
from tpuctl.emulator.scenario import Scenario, load_scenario, parse_scenario
from tpuctl.emulator.server import Emulator, serve_world
from tpuctl.emulator.service import ScaledClock
from tpuctl.emulator.state import advance
from tpuctl.emulator.store import Store
from tpuctl.emulator.world import World, timestamp
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
)
from tpuctl.outcome import Outcome
from tpuctl.storage.local import ensure_folder, locked, write_atomically

START_S = 30.0
STOP_S = 10.0
_POLL_S = 0.05
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Started(Outcome):
    """An emulator that runs, and the variables by which tpuctl finds it."""

    endpoint: str
    http: str
    pid: int
    time: str
    time_scale: float
    scenario: str | None
    resumed: bool
    exports: dict[str, str]


@dataclass(frozen=True)
class Status(Outcome):
    """How it goes; without an emulator, everything but `running` and `kept` is null or empty.

    `kept` is whether there is a world that the next start goes on with.
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
    queued_resources: dict[str, int] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped(Outcome):
    """What `stop` did; `was_running` is false where there was nothing to stop."""

    was_running: bool
    pid: int | None = None


class Place:
    """The folder of one emulator: its lock, its state, and where it can be reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.lock = folder / "lock"
        self.running = folder / "running.json"
        self.log = folder / "log.txt"
        self.machines = folder / "machines"

    def last_run(self) -> dict[str, Any]:
        """What the emulator that runs, or ran last, wrote about itself."""
        try:
            known = json.loads(self.running.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def last_port(self, name: str) -> int:
        """The port of the last run's `endpoint` or `http`, 0 where that is not known."""
        port = str(self.last_run().get(name, "")).rpartition(":")[2]
        return int(port) if port.isdecimal() else 0

    def holder(self) -> int | None:
        """The process that runs an emulator here; its lock dies with it."""
        if not self.lock.exists():
            return None
        try:
            with locked(self.lock, wait_s=0, busy=""):
                return None
        except TryAgainError:
            return int(self.lock.read_text(encoding="ascii") or 0)


@contextmanager
def run(
    folder: Path, scenario_file: Path | None = None, *, port: int = 0, fresh: bool = False
) -> Iterator[Started]:
    """Run an emulator in this process for as long as the block lasts.

    It goes on from the state in the folder unless `fresh`. Raises AlreadyExistsError where one runs
    already, InvalidInputError for a scenario that is wrong, or another than that of the TPUs in
    the state.
    """
    scenario = load_scenario(scenario_file) if scenario_file else None
    place = Place(folder)
    ensure_folder(folder)
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(place.lock, wait_s=1, busy="busy"))
        except TryAgainError as error:
            raise _runs_already(place) from error
        os.pwrite(lock, f"{os.getpid():<20}".encode(), 0)
        world, clock, resumed = _open(place, scenario, fresh=fresh)
        # What was exported for the last run leads here as well, if its ports are still free.
        ports = [(port or place.last_port("endpoint"), place.last_port("http")), (port, 0)]
        emulator = stack.enter_context(
            serve_world(
                world,
                clock=clock,
                store=Store(place.state),
                ports=ports,
                machines=place.machines,
            )
        )
        file = scenario_file or (place.last_run().get("scenario") if resumed else None)
        started = _started(emulator, file, resumed)
        write_atomically(place.running, json.dumps(asdict(started)))
        yield started


def detach(
    folder: Path, scenario_file: Path | None = None, *, port: int = 0, fresh: bool = False
) -> Started:
    """Start an emulator that outlives this process, and wait until it answers."""
    place = Place(folder)
    if scenario_file:
        load_scenario(scenario_file)
    if place.holder() is not None:
        raise _runs_already(place)
    ensure_folder(folder)
    arguments = ["emulator", "start", "--json", "--port", str(port)]
    arguments += ["--scenario", str(scenario_file.absolute())] if scenario_file else []
    arguments += ["--fresh"] if fresh else []
    pid = _spawn(place, arguments)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        known = place.last_run()
        if known.get("pid") == pid:
            return Started(**known)
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _did_not_start(place, os.waitstatus_to_exitcode(code))
        time.sleep(_POLL_S)
    os.kill(pid, signal.SIGKILL)
    raise _did_not_start(place, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _spawn(place: Place, arguments: list[str]) -> int:
    """Start tpuctl in a session of its own, so that closing this terminal does not end it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "tpuctl", *arguments],
        {**os.environ, "TPUCTL_STATE_DIR": str(place.folder.parent.absolute())},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(place.log), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def stop(folder: Path) -> Stopped:
    """Stop the emulator of a folder; its state stays for the next start."""
    place = Place(folder)
    pid = place.holder()
    if pid is None:
        return Stopped(was_running=False)
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if place.holder() is None:
                return Stopped(was_running=True, pid=pid)
            time.sleep(_POLL_S)
    raise UnavailableError(f"The emulator (process {pid}) does not end.")


def status(folder: Path) -> Status:
    """Say whether an emulator runs, and what is in it."""
    place = Place(folder)
    kept = place.state.is_dir() and Store(place.state).has_world
    if place.holder() is None:
        return Status(running=False, kept=kept)
    known, now = place.last_run(), _ask(place)
    return Status(
        running=True,
        kept=kept,
        scenario=known.get("scenario"),
        exports=known.get("exports", {}),
        **now,
    )


@contextmanager
def told_to_end() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, or whoever else asks this process to end."""
    told = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: told.set()) for number in numbers]
    try:
        yield told
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _open(
    place: Place, scenario: Scenario | None, *, fresh: bool
) -> tuple[World, ScaledClock, bool]:
    store = Store(place.state)
    if not fresh and store.has_world:
        world = store.resume()
        now = store.last_time(world)
        if scenario in (None, world.scenario):
            return world, ScaledClock(now, world.scenario.time_scale), True
        advance(world, now)
        if world.nodes or world.queued:
            raise InvalidInputError(
                f"The emulator's state in {place.folder} is of another scenario, and holds TPUs.",
                hint="Begin anew: add --fresh. To go on, leave --scenario out.",
            )
    shutil.rmtree(place.state)
    plan = scenario or parse_scenario({})
    now = plan.epoch or WallClock().now()
    world = Store(place.state).begin(plan, seed=secrets.token_hex(8), now=now)
    return world, ScaledClock(now, world.scenario.time_scale), False


def _started(emulator: Emulator, scenario: Path | str | None, resumed: bool) -> Started:
    return Started(
        endpoint=emulator.endpoint,
        http=emulator.http,
        pid=os.getpid(),
        time=timestamp(emulator.now()),
        time_scale=emulator.scenario.time_scale,
        scenario=str(Path(scenario).absolute()) if scenario else None,
        resumed=resumed,
        exports={
            "TPUCTL_TPU_ENDPOINT": emulator.endpoint,
            "TPUCTL_PROJECT": emulator.scenario.project or "practice",
            "STORAGE_EMULATOR_HOST": emulator.http,
        },
    )


def _ask(place: Place) -> dict[str, Any]:
    """What the emulator says about itself."""
    connection = http.client.HTTPConnection("127.0.0.1", place.last_port("http"), timeout=_ANSWER_S)
    try:
        connection.request("GET", "/emulator/status")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(
            f"The emulator in {place.folder} runs, but does not answer.",
            hint="tpuctl emulator stop",
        ) from error
    finally:
        connection.close()
    return answer


def _runs_already(place: Place) -> AlreadyExistsError:
    endpoint = place.last_run().get("endpoint", "an address that is not known yet")
    return AlreadyExistsError(
        f"An emulator runs already, at {endpoint} (process {place.holder()}).",
        hint="See: tpuctl emulator status; end it: tpuctl emulator stop",
    )


def _did_not_start(place: Place, code: int) -> TpuctlError:
    """What the process that did not become an emulator left behind."""
    text = place.log.read_text(encoding="utf-8", errors="replace").strip()
    try:
        problem = json.loads(text)["errors"][0]
        error = TpuctlError(problem["message"], hint=problem["hint"])
        error.code, error.exit_code = problem["code"], code
        return error
    except (ValueError, LookupError, TypeError):
        last = text.splitlines()[-1] if text else "it said nothing"
        return UnavailableError(f"The emulator did not start (exit code {code}): {last}")
