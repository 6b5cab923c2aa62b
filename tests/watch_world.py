"""A watch on an emulated TPU with real SSH workers, and ways to strike it at a chosen moment."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import MORNING
from tests.workers import Heard
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import Cloud, connect
from tpuctl.cloud.journal import Journal
from tpuctl.emulator.server import Emulator, serve
from tpuctl.emulator.service import ScaledClock
from tpuctl.errors import WriteError
from tpuctl.providers.port import Login
from tpuctl.supervise.actions import CloudActions
from tpuctl.supervise.follow import FollowResult
from tpuctl.supervise.loop import watch
from tpuctl.supervise.messages import WatchResult
from tpuctl.supervise.models import (
    JobSpec,
    LaunchJob,
    TpuObservation,
    WatchState,
    WorkersObservation,
)
from tpuctl.supervise.plan import WatchOptions, plan_job, plan_watch
from tpuctl.supervise.state import StateFile

ZONE, OTHER = "us-central1-a", "us-east5-a"
SCALE = 300.0
LATER_S = 1e6
"""When a planned event is due that is brought about by a jump of the clock."""

OPTIONS = WatchOptions(ZONE, (ZONE,), "v5e-8", spot=True)


class JumpingClock:
    """Emulated time, faster than ours, and moved forward at will."""

    def __init__(self, scale: float = SCALE) -> None:
        self._steady, self._jumped = ScaledClock(MORNING, scale), timedelta(0)

    def now(self) -> datetime:
        return self._steady.now() + self._jumped

    def sleep(self, seconds: float) -> None:
        self._steady.sleep(seconds)

    def jump(self, seconds: float) -> None:
        self._jumped += timedelta(seconds=seconds)


class StruckActions(CloudActions):
    """The real actions; as each act begins, `before` hears of it, and as it has ended, `after`."""

    world: "WatchWorld"

    def observe(self, state: WatchState) -> TpuObservation:
        with self.world.still:
            seen = super().observe(state)
            self.world.observed(seen)
            return seen

    def ask(self, state: WatchState) -> WorkersObservation:
        self.world.before("ask")
        answer = super().ask(state)
        self.world.after("ask")
        return answer

    def create(self, state: WatchState) -> None:
        self.world.before("create")
        super().create(state)
        self.world.after("create")

    def delete(self, state: WatchState) -> None:
        self.world.before("delete")
        super().delete(state)
        self.world.after("delete")

    def copy_code(self, folder: str, target: str, *, include_secrets: bool = False) -> None:
        self.world.before("copy")
        super().copy_code(folder, target, include_secrets=include_secrets)
        self.world.after("copy")

    def start(self, spec: JobSpec, step: LaunchJob) -> None:
        self.world.before("start")
        super().start(spec, step)
        self.world.after("start")

    def follow(self, *arguments: Any, **named: Any) -> FollowResult:
        self.world.before("follow")
        followed = super().follow(*arguments, **named)
        self.world.after("follow")
        return followed


class Killed(BaseException):
    """The watch was killed right here."""


class StruckStore(StateFile):
    """A state file: the n-th watch is killed around its n-th save, before or after it by turns."""

    world: "WatchWorld"
    saves = 0

    def save(self, state: WatchState, spec: JobSpec, *, is_over: bool = False) -> None:
        self.saves += 1
        is_killed = self.world.kills_saves and not is_over and self.saves == self.world.acts["run"]
        if is_over and self.world.is_disk_full:
            raise WriteError("Could not write the state: no space left on device.")
        if not is_killed or self.saves % 2:
            super().save(state, spec, is_over=is_over)
        if is_killed:
            raise Killed(f"around save {self.saves}")


class WatchWorld:
    """An emulator, and watches that are begun, killed and begun again."""

    def __init__(self, emulator: Emulator, clock: JumpingClock, folder: Path) -> None:
        self.emulator, self.clock, self.folder = emulator, clock, folder
        # Held while the watch observes: whoever moves time may have to wait for that.
        self.still = threading.Lock()
        self.notes: list[str] = []
        self.heard = Heard()
        self.strikes: dict[str, float] = {}
        self.kills: list[str] = []
        self.kills_saves = self.is_disk_full = False
        self.acts: Counter[str] = Counter()
        self.journal = Journal(folder / "creates")
        self.login = Login("me")
        (folder / "code").mkdir(exist_ok=True)

    def api(self) -> TpuApi:
        return connect("p", endpoint=self.emulator.endpoint, clock=self.clock)

    def observed(self, seen: TpuObservation) -> None:
        """Hear of what the watch has seen, before any time passes."""

    def before(self, act: str) -> None:
        """Let the strike happen that waits for this act: time jumps by so much."""
        self.acts[act] += 1
        self._meet(f"before {act}")

    def after(self, act: str) -> None:
        self._meet(f"after {act}")

    def _meet(self, moment: str) -> None:
        if moment in self.strikes:
            self.clock.jump(self.strikes.pop(moment))
            self.emulator.advance()
        if moment in self.kills:
            self.kills.remove(moment)
            raise Killed(moment)

    def script(self, text: str) -> None:
        (self.folder / "code" / "train.sh").write_text(text)

    def home(self, worker: int = 0) -> Path:
        """The home of a worker of the TPU that there is."""
        (node,) = self.emulator.advance().nodes.values()
        return self.folder / "machines" / str(node.id) / str(worker) / "home"

    def watch(
        self,
        *command: str,
        options: WatchOptions = OPTIONS,
        delete_at_end: bool = False,
        **patience: Any,
    ) -> WatchResult:
        """One watch from its beginning to its end; Killed where it was to be killed."""
        self.acts["run"] += 1
        spec = plan_job(command or ("sh", "train.sh"), code=self.folder / "code", **patience)
        cloud = Cloud(self.api(), self.journal)
        actions = StruckActions(cloud, self.login, sink=self.heard, note=self.notes.append)
        actions.world = self
        store = StruckStore(cloud.api, "t1", self.folder / "watches")
        store.world = self
        with store.lock():
            plan = plan_watch(cloud, "t1", options, spec, store=store)
            return watch(
                actions,
                plan.watch_state,
                spec,
                store=store,
                note=self.notes.append,
                delete_at_end=delete_at_end,
            )

    def watch_on(self, **how: Any) -> WatchResult:
        """The same command again and again, until nothing kills it any more."""
        while True:
            try:
                return self.watch(**how)
            except Killed:
                continue

    def causes(self, ended: WatchResult) -> list[str]:
        return [attempt.cause for attempt in ended.attempts]


@contextmanager
def watching(
    folder: Path, *faults: dict[str, Any], clock: JumpingClock | None = None, **changes: Any
) -> Iterator[WatchWorld]:
    zone = {
        "types": ["v5litepod-8", "v5litepod-16", "v4-16"],
        "capacity_chips": 16,
        "quota_chips": 32,
    }
    scenario: dict[str, Any] = {
        "provision_s": 60,
        "delete_s": 10,
        "zones": {ZONE: zone, OTHER: zone},
        "faults": list(faults),
        **changes,
    }
    clock = clock or JumpingClock()
    with (
        serve(scenario, clock=clock, machines=folder / "machines") as emulator,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("TPUCTL_TPU_ENDPOINT", emulator.endpoint)
        yield WatchWorld(emulator, clock, folder)


def preempt(nth: int = 1, at_s: float = LATER_S, **changes: Any) -> dict[str, Any]:
    return {"on": "node", "name": "t1", "event": "preempt", "at_s": at_s, "nth": nth, **changes}
