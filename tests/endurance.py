"""A watch for many emulated hours: preempted, rate limited, its workers lost, its requests failing.

Time passes only while the training steps and while the watch waits, so that a day takes minutes and
the cost does not depend on how fast this machine is.
"""

import gc
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from tests.watch_world import OPTIONS, ZONE, JumpingClock, WatchWorld, watching
from tests.workers import Heard
from tpuctl.emulator import confine
from tpuctl.emulator.methods import Call, Document
from tpuctl.hardware.types import usd_per_hour
from tpuctl.supervise.messages import WatchResult

STEP_S = 30.0
EVERY_S = 800.0
TYPE = "v5litepod-16"

TRAIN = """
import hashlib, json, os, sys, time
steps, folder, pace_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
place = os.path.join(folder, "weights-" + os.environ["TPU_WORKER_ID"])
step, weights = 0, [0.1] * 8
if os.path.exists(place):
    step, weights = json.load(open(place))
while step < steps:
    step += 1
    noise = hashlib.sha256(str(step).encode()).digest()
    weights = [0.99 * w + n / 25600 for w, n in zip(weights, noise)]
    if step % 5 == 0 or step == steps:
        with open(place + ".part", "w") as file:
            json.dump([step, weights], file)
        os.replace(place + ".part", place)
    if os.environ["TPU_WORKER_ID"] == "0":
        print("step", step, flush=True)
    time.sleep(pace_s)
"""


class EventClock(JumpingClock):
    """Emulated time that passes as fast as ours, and jumps where somebody would wait."""

    def __init__(self) -> None:
        super().__init__(scale=1.0)

    def sleep(self, seconds: float) -> None:
        self.jump(seconds)
        time.sleep(0.001)


class Steps(Heard):
    """A sink that lets time pass with every step that a worker reports."""

    def __init__(self, world: WatchWorld) -> None:
        super().__init__()
        self._world, self.samples = world, list[tuple[int, int]]()
        self._process, self._began = psutil.Process(), world.clock.now()

    def elapsed_s(self) -> float:
        return (self._world.clock.now() - self._began).total_seconds()

    def __call__(self, stream: int, data: bytes) -> None:
        steps = data.count(b"step")
        with self._world.still:
            self._world.clock.jump(STEP_S * steps)
            self._world.emulator.advance()
        if steps and len(self.samples) * STEP_S * 60 < self.elapsed_s():
            gc.collect()
            self.samples.append((self._process.memory_info().rss, self._process.num_fds()))


class Bill:
    """What the service charged for every TPU until the watch last saw it there.

    `ended` are the seconds until its end, of which a watch that asks every ten seconds cannot know.
    """

    def __init__(self, world: WatchWorld) -> None:
        self._emulator, self._answer = world.emulator, world.emulator.answer
        self._still = world.still
        self.last: dict[int, float] = defaultdict(float)
        self.ended: dict[int, float] = {}
        world.emulator.answer = self._look  # type: ignore[method-assign]
        release = world.emulator.world.release_chips

        def released(node: Any) -> None:
            alive_s = (world.emulator.world.now - node.created).total_seconds()
            self.ended.setdefault(node.id, alive_s)
            release(node)

        world.emulator.world.release_chips = released  # type: ignore[method-assign]

    def _look(self, call: Call) -> Document:
        reply = self._answer(call)
        is_watch = self._still.locked()
        if is_watch and call.method == "get_node" and reply.get("state") == "READY":
            created = datetime.fromisoformat(str(reply["createTime"]).replace("Z", "+00:00"))
            alive_s = (self._emulator.now() - created).total_seconds()
            self.last[int(reply["id"])] = alive_s
        return reply

    def usd(self, seconds: dict[int, float]) -> float:
        price = usd_per_hour(TYPE, ZONE, spot=True)
        assert price
        return sum(alive_s for node, alive_s in seconds.items() if node in self.last) * price / 3600


@dataclass(frozen=True)
class Endured:
    """What came of it."""

    result: WatchResult
    hours: float
    weights: list[bytes]
    billed_usd: float
    unseen_usd: float
    requests: int
    samples: list[tuple[int, int]]

    @property
    def is_flat(self) -> bool:
        """Whether memory and open files have stayed what they were after a quarter of the time."""
        (rss, files), (last_rss, last_files) = self.quarter, self.samples[-1]
        return last_rss < 1.15 * rss and last_files < files + 16

    @property
    def quarter(self) -> tuple[int, int]:
        return self.samples[len(self.samples) // 4]

    def report(self) -> str:
        causes = [attempt.cause for attempt in self.result.attempts]
        counts = ", ".join(f"{causes.count(c)} {c}" for c in sorted(set(causes)))
        (rss, files), (last_rss, last_files) = self.quarter, self.samples[-1]
        return (
            f"watch: {self.hours:.1f} emulated hours, {len(causes)} attempts ({counts}), "
            f"{self.requests} requests; cost {self.result.usd_so_far:.2f}, billed "
            f"{self.billed_usd:.2f} and {self.unseen_usd:.2f} after the last look at each TPU; "
            f"memory {rss >> 20} MiB after a quarter, {last_rss >> 20} at the end; "
            f"open files {files} and {last_files}"
        )


def faults(hours: float, seed: int) -> list[dict[str, Any]]:
    """Preemptions, with the time to recreate every 20 minutes, and whatever else a service does."""
    chance = random.Random(seed)
    node = {"on": "node", "name": "t1"}
    found: list[dict[str, Any]] = []
    for nth in range(1, int(hours * 12) + 9):
        at_s = 60 + chance.expovariate(1 / EVERY_S)
        event = chance.choices(["preempt", "suspend", "worker_down", "maintenance"], [8, 1, 1, 1])[
            0
        ]
        found.append({**node, "nth": nth, "event": event, "at_s": at_s, "for_s": 300})
        if event in ("worker_down", "maintenance"):
            found.append({**node, "nth": nth, "event": "preempt", "at_s": at_s + EVERY_S})
    return [
        *found,
        {"on": "get_node", "error": "unavailable", "nth": 97, "every": True},
        {"on": "get_queued_resource", "error": "internal", "nth": 101, "every": True},
        {"on": "create_queued_resource", "after_accept": True, "nth": 7, "every": True},
        {"on": "delete_queued_resource", "after_accept": True, "nth": 5, "every": True},
        {"on": "list_nodes", "error": "rate_limit", "nth": 11, "every": True},
    ]


def endure(folder: Path, *, hours: float, seed: int = 0, pace_s: float = 0.02) -> Endured:
    """Watch a training for about so many hours."""
    steps, weights = int(hours * 3600 / STEP_S), folder / "weights"
    weights.mkdir()
    limits = {"get_node": 120, "create_queued_resource": 2, "list_nodes": 30}
    options = replace(OPTIONS, accelerator_type="v5e-16", queued=True)
    clock = EventClock()
    with (
        unconfined(),
        watching(
            folder, *faults(hours, seed), clock=clock, rate_limits_per_minute=limits, time_scale=1
        ) as world,
    ):
        world.script(f"exec {sys.executable} train.py {steps} {weights} {pace_s}")
        (folder / "code" / "train.py").write_text(TRAIN)
        bill = Bill(world)
        world.heard = heard = Steps(world)
        result = world.watch(options=options, bad_host_after_s=2.0)
        lived = {
            **bill.ended,
            **{n.id: bill.last[n.id] for n in world.emulator.world.nodes.values()},
        }
        return Endured(
            result,
            heard.elapsed_s() / 3600,
            [path.read_bytes() for path in sorted(weights.glob("weights-?"))],
            bill.usd(bill.last),
            bill.usd(lived) - bill.usd(bill.last),
            len(world.emulator.requests),
            heard.samples,
        )


@contextmanager
def unconfined() -> Iterator[None]:
    """Let workers write the folder of the weights, which stands for a bucket."""
    tools = confine._TOOLS
    confine._TOOLS = ("no-unshare", "no-nsenter", "no-setpriv")
    try:
        yield
    finally:
        confine._TOOLS = tools


def undisturbed_weights(folder: Path, *, hours: float) -> bytes:
    """What the training gives where nothing happens."""
    import subprocess

    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    words = [sys.executable, "train.py", str(int(hours * 3600 / STEP_S)), ".", "0"]
    subprocess.run(words, cwd=folder, env={"TPU_WORKER_ID": "0"}, check=True, capture_output=True)
    return (folder / "weights-0").read_bytes()
