"""A watch for many emulated hours: preempted, rate limited, its workers lost, its requests failing.

Time passes only while the training steps and while the watch waits, so that a day takes minutes and
the cost does not depend on how fast this machine is.
"""

import gc
import random
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.watch_world import OPTIONS, JumpingClock, WatchWorld, watching
from tests.workers import Heard
from tpuctl.emulator import confine
from tpuctl.emulator.faults import NodeEvent
from tpuctl.emulator.nodes import apply_event
from tpuctl.supervise.messages import WatchResult
from tpuctl.supervise.models import TpuObservation

STEP_S = 30.0
# With the time to notice and to create it again, a preemption every 20 minutes.
LIFE_S = 960.0
EVENT = NodeEvent("*", "*", "preempt", 0, 1, False, 0, 0)

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
    """A sink that lets time pass with every new step that a worker reports."""

    def __init__(self, world: WatchWorld) -> None:
        super().__init__()
        self._world, self.samples, self._step = world, list[tuple[int, int]](), 0
        self._process, self._began = psutil.Process(), world.clock.now()

    def elapsed_s(self) -> float:
        return (self._world.clock.now() - self._began).total_seconds()

    def __call__(self, stream: int, data: bytes) -> None:
        # What is shown again after a broken connection takes no time again.
        steps = max(0, *map(int, re.findall(rb"step (\d+)", data)), self._step) - self._step
        self._step += steps
        with self._world.still:
            self._world.clock.jump(STEP_S * steps)
            self._world.emulator.advance()
        if steps and len(self.samples) * STEP_S * 60 < self.elapsed_s():
            gc.collect()
            self.samples.append((self._process.memory_info().rss, self._process.num_fds()))


class Ends:
    """Ends TPUs as the service does, each right after the watch has seen it ready.

    So the watch can know how long each was there, and its cost is to be the bill.
    """

    def __init__(self, world: WatchWorld, seed: int) -> None:
        self._emulator, self._chance = world.emulator, random.Random(seed)
        self._life_s: dict[int, float] = {}
        self.count = 0
        world.observed = self._observed  # type: ignore[method-assign]

    def _observed(self, seen: TpuObservation) -> None:
        for node in [*self._emulator.world.nodes.values()] if seen.kind == "usable" else []:
            life_s = self._life_s.setdefault(node.id, self._chance.expovariate(1 / LIFE_S))
            if (self._emulator.world.now - node.created).total_seconds() >= life_s:
                kind = self._chance.choices(["preempt", "suspend"], [8, 1])[0]
                with self._emulator._lock:
                    apply_event(self._emulator.world, node, replace(EVENT, event=kind))
                self.count += 1


@dataclass(frozen=True)
class Endured:
    """What came of it."""

    result: WatchResult
    hours: float
    weights: list[bytes]
    billed_usd: float
    preemptions: int
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
            f"a preemption every {60 * self.hours / self.preemptions:.1f} minutes, "
            f"{self.requests} requests; cost {self.result.usd_so_far:.2f}, billed "
            f"{self.billed_usd:.2f}; "
            f"memory {rss >> 20} MiB after a quarter, {last_rss >> 20} at the end; "
            f"open files {files} and {last_files}"
        )


def faults(hours: float, seed: int) -> list[dict[str, Any]]:
    """What a service does besides preempting, now and then."""
    chance = random.Random(seed)
    workers = [
        {"on": "node", "name": "t1", "nth": nth, "event": event, "for_s": 300, "at_s": 300}
        for nth in range(1, int(hours * 12) + 9)
        for event in chance.choices(["worker_down", "maintenance", ""], [1, 1, 9])
        if event
    ]
    return [
        *workers,
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
        pytest.MonkeyPatch.context() as patch,
        watching(
            folder,
            *faults(hours, seed),
            clock=clock,
            rate_limits_per_minute=limits,
            time_scale=1,
            delete_s=0,
        ) as world,
    ):
        # Workers may write the folder of the weights, which stands for a bucket.
        patch.setattr(confine, "_TOOLS", ("no-unshare", "no-nsenter", "no-setpriv"))
        world.script(f"exec {sys.executable} train.py {steps} {weights} {pace_s}")
        (folder / "code" / "train.py").write_text(TRAIN)
        ends = Ends(world, seed)
        world.heard = heard = Steps(world)
        result = world.watch(options=options, bad_host_after_s=2.0)
        return Endured(
            result,
            heard.elapsed_s() / 3600,
            [path.read_bytes() for path in sorted(weights.glob("weights-?"))],
            sum(charge.usd or 0.0 for charge in world.emulator.bill()),
            ends.count,
            len(world.emulator.requests),
            heard.samples,
        )


def undisturbed_weights(folder: Path, *, hours: float) -> bytes:
    """What the training gives where nothing happens."""
    import subprocess

    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    words = [sys.executable, "train.py", str(int(hours * 3600 / STEP_S)), ".", "0"]
    subprocess.run(words, cwd=folder, env={"TPU_WORKER_ID": "0"}, check=True, capture_output=True)
    return (folder / "weights-0").read_bytes()
