"""Sample the threads in which TensorFlow and Keras call the user's Python functions.

A thread that waits for the interpreter lock gets it where another one releases it, as long calls
into C do; the other one is interrupted only after the switch interval. With the usual 5 ms, 87 % of
the samples fell into a function that took 20 % of the time (2026-11). So samples are taken in
bursts, during which the interval is short.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tpuctl.profiling.frameworks.iterables import is_named_random
from tpuctl.profiling.frameworks.stacks import (
    Key,
    Samples,
    StackSampler,
    by_depth,
    is_library,
    is_waiting,
    location_of_code,
)
from tpuctl.profiling.measure.loop import prompt_switches
from tpuctl.profiling.measure.probe import Sampler
from tpuctl.profiling.models import ChainNode
from tpuctl.profiling.windows import StageCost
from tpuctl.usercode.frames import current_frames, native_ids, no_collection

# A sample takes some 50 us: together 1 % of one vCPU (2026-11).
PAUSE_S, EVERY_S, BURST = 0.04, 0.001, 10
# Shorter ones slow down functions that run in several threads.
SWITCH_S = 1e-4
METHOD = "samples of the threads' stacks, model shares x process CPU"
_PY_FUNC = "script_ops.py"
Called = tuple[str, Key]


@dataclass
class ThreadSampler:
    """Finds out which of the user's functions run in threads other than the main one.

    Each is known with the outermost of the user's functions that called it.
    """

    is_on: Callable[[], bool] = lambda: True
    _samples: dict[Called, Samples] = field(default_factory=dict)
    _stacks: StackSampler = field(default_factory=lambda: StackSampler(""))
    _sampler: Sampler | None = None
    _last_s: float = 0.0

    def start(self) -> None:
        """Start, unless it runs."""
        if self._sampler is None:
            self._last_s = time.perf_counter()
            self._sampler = Sampler(self._burst, every_s=PAUSE_S)

    def costs(self) -> tuple[StageCost, ...]:
        """What was sampled so far, one entry for each function, the innermost first."""
        found = dict(self._samples)
        return tuple(
            StageCost(
                name=called[1][0],
                op="Python",
                location=called[1][1] or None,
                calls=found[called].count,
                wall_s=found[called].wall_s,
                cpu_s=found[called].cpu_s,
                parallelism=found[called].threads,
                method=METHOD,
                is_random=called[1] in self._stacks.random or is_named_random(called[1][0]),
                caller=called[0],
            )
            for called in by_depth(found)
        )

    def _burst(self) -> None:
        """Take some samples, which stand for the time since the last burst."""
        if not self.is_on():
            self._sampler = None
            raise _EndedError
        seen: dict[Called, Samples] = {}
        start_s, before = time.perf_counter(), dict[int, tuple[float, float]]()
        with prompt_switches(SWITCH_S):
            for _ in range(BURST):
                time.sleep(EVERY_S)
                with no_collection():
                    before = self._sample(seen, before)
        now_s = time.perf_counter()
        scale = (now_s - self._last_s) / (now_s - start_s)
        self._last_s = now_s
        for called, each in seen.items():
            found = self._samples.setdefault(called, Samples())
            found.count += each.count
            found.wall_s += each.wall_s * scale
            found.cpu_s += each.cpu_s * scale
            found.depth += each.depth
            found.threads = max(found.threads, each.threads)

    def _sample(
        self, seen: dict[Called, Samples], before: dict[int, tuple[float, float]]
    ) -> dict[int, tuple[float, float]]:
        """Credit the time since the last sample to what runs; return the threads' clocks."""
        now_s, ids = time.perf_counter(), native_ids()
        clocks: dict[int, tuple[float, float]] = {}
        at_once: Counter[Called] = Counter()
        for thread, frame in current_frames():
            called, depth = self._called(thread, frame)
            if called is None or thread not in ids:
                continue
            clocks[thread] = now_s, _ready_s(ids[thread])
            found = seen.setdefault(called, Samples())
            found.count += 1
            found.depth += depth
            at_once[called] += 1
            found.threads = max(found.threads, at_once[called])
            last_s, last_ready_s = before.get(thread, (now_s - EVERY_S, clocks[thread][1]))
            found.wall_s += now_s - last_s
            found.cpu_s += clocks[thread][1] - last_ready_s
        return clocks

    def _called(self, thread: int, frame: FrameType) -> tuple[Called | None, int]:
        """The function that a thread runs, and the outermost of the user's that called it."""
        is_main = thread == threading.main_thread().ident
        outermost, is_called = "", not is_main
        walker: FrameType | None = frame
        while walker is not None:
            code = walker.f_code
            if code.co_filename.endswith(_PY_FUNC):
                is_called = True
                break
            if not is_library(code.co_filename):
                outermost = location_of_code(code)
            walker = walker.f_back
        if not is_called or is_waiting(frame):
            return None, 0
        key, depth = self._stacks.stage_of(frame)
        if key is None and walker is not None:
            # What TensorFlow itself does for such a call.
            key = "", ""
        return (None if key is None else (outermost, key)), depth


class _EndedError(Exception):
    """Ends the thread."""


def _ready_s(native_id: int) -> float:
    """How long a thread ran or was ready to run; 0 if it is not known."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", encoding="ascii") as file:
            ran_ns, delayed_ns, _ = file.read().split()
        return (int(ran_ns) + int(delayed_ns)) / 1e9
    except (OSError, ValueError):
        return 0.0


def sampled_calls(chain: ChainNode, is_on: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """What a `Source` needs to know the Python functions that its pipeline calls, if any."""
    if not any(node.runs_python for node in _nodes(chain)):
        return {}
    sampler = ThreadSampler(is_on)
    return {"starts": [sampler.start], "costs": sampler.costs}


def _nodes(chain: ChainNode) -> Iterator[ChainNode]:
    yield chain
    for each in chain.inputs:
        yield from _nodes(each)
