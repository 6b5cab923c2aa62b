"""Follow a running job: show its output, detect hangs, and time how long conditions last."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tpuctl.clock import Clock
from tpuctl.errors import TpuctlError
from tpuctl.remote.access import Access
from tpuctl.remote.fleet import run_async
from tpuctl.remote.hosts import Host, name_workers
from tpuctl.remote.logs import LogListener, LogResult, follow_log
from tpuctl.remote.output import Sink
from tpuctl.supervise.models import SILENT_S, JobSpec, Silence
from tpuctl.units import format_duration

_LONGEST_TICK_S = 1.0
_LONGEST_LOOK_S = 120.0


class AwakeTimer:
    """Counts the seconds in which this program was awake; must be read many times a second."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._last_s, self._seconds = elapsed_s(), 0.0

    def seconds(self) -> float:
        """Return the seconds since the start, without the time that a laptop slept."""
        now_s = self._elapsed_s()
        self._seconds += min(now_s - self._last_s, _LONGEST_TICK_S)
        self._last_s = now_s
        return self._seconds


class ConditionTimer:
    """Measures how long a condition has held, from repeated checks.

    A long gap between two checks counts only in part: a sleeping laptop has checked nothing.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last: datetime | None = None
        self._seconds = 0.0

    def seconds(self, is_so: bool) -> float:
        """Record whether the condition holds; return for how many seconds it has."""
        now, last = self._now(), self._last
        self._last = now if is_so else None
        passed_s = min((now - last).total_seconds(), _LONGEST_LOOK_S) if last else 0.0
        self._seconds = self._seconds + passed_s if is_so else 0.0
        return self._seconds


@dataclass
class SilenceDetector:
    """Detects workers whose output has stopped; times are seconds of any one clock.

    While the connection to a worker is broken, its silence means nothing: it counts from the moment
    the connection is back.
    """

    workers: tuple[int, ...]
    started_s: float
    _first_s: dict[int, float] = field(default_factory=dict)
    _last_s: dict[int, float] = field(default_factory=dict)
    _away: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def received(self, worker: int, now_s: float) -> None:
        """Record that a worker printed something."""
        self._first_s.setdefault(worker, now_s)
        self._last_s[worker] = now_s

    def lost(self, worker: int) -> None:
        """Record that the connection to a worker broke."""
        self._away.add(worker)

    def back(self, worker: int, now_s: float) -> None:
        """Record that the connection to a worker is back."""
        self._away.discard(worker)
        if worker in self._last_s:
            self._last_s[worker] = now_s

    def ended(self, worker: int) -> None:
        """Record that a worker's program ended, so that its silence means nothing."""
        self._ended.add(worker)

    def silent(self, now_s: float, *, after_s: float) -> Silence | None:
        """Return the workers considered hung, or None.

        A worker is hung after `after_s` without output if it printed over at least as long a time
        before, or if it has printed at all and all the others are silent too. If no worker has ever
        printed, all are hung, unless one of them is disconnected.
        """
        if not self._last_s:
            waited_s = now_s - self.started_s
            is_hung = waited_s >= after_s and not self._away
            return Silence(self.workers, waited_s) if is_hung else None
        live = self._last_s.keys() - self._ended
        quiet = {w: now_s - self._last_s[w] for w in live - self._away}
        quiet = {worker: seconds for worker, seconds in quiet.items() if seconds >= after_s}
        # Some programs print only at their start, and some only on worker 0: silence proves
        # something only where there was output before, or where there is none from anybody.
        all_quiet = len(quiet) == len(live)
        hung = [
            worker
            for worker in quiet
            if all_quiet or self._last_s[worker] - self._first_s[worker] >= after_s
        ]
        if not hung:
            return None
        hung.sort(key=lambda worker: (self._last_s[worker], worker))
        return Silence(tuple(hung), quiet[hung[0]])


FIRST_LINES = 10
"""How many of its last log lines are shown when a watch resumes following a job."""

_TICK_S = 0.1
_LAST_WORDS_S = 2.0


@dataclass
class FollowResult:
    """How far the logs were read (bytes, by worker), and hung or lost workers."""

    offsets: dict[int, int] = field(default_factory=dict)
    hung: Silence | None = None
    lost: dict[int, TpuctlError] = field(default_factory=dict)


@dataclass
class JobFollower(LogListener):
    """Shows a job's output and checks the TPU while it runs.

    `is_usable` asks the service about the TPU, every `poll_s`; False ends the following.
    `give_up_lost` is told whether workers are lost, and decides whether that has lasted too long.
    """

    hosts: tuple[Host, ...]
    access: Access
    job: str
    spec: JobSpec
    offsets: Mapping[int, int] | None
    clock: Clock
    poll_s: float
    is_usable: Callable[[], bool]
    give_up_lost: Callable[[bool], bool]
    sink: Sink
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self.result = FollowResult(dict(self.offsets or {}))
        self._awake = AwakeTimer(time.monotonic)
        self._silence = SilenceDetector(tuple(host.index for host in self.hosts), 0.0)
        self._named: tuple[int, ...] = ()
        self._failed = asyncio.Event()

    def follow(self) -> FollowResult:
        """Follow until the job ends, fails on a worker or hangs, or the TPU is not usable."""
        return run_async(self._run())

    def received(self, worker: int, offset_bytes: int) -> None:
        """Record the time and the offset."""
        self.result.offsets[worker] = offset_bytes
        self._silence.received(worker, self._awake.seconds())

    def lost(self, worker: int, error: TpuctlError) -> None:
        """Record a broken connection."""
        self.result.lost[worker] = error
        self._silence.lost(worker)

    def back(self, worker: int) -> None:
        """Record that the connection is back."""
        self.result.lost.pop(worker, None)
        self._silence.back(worker, self._awake.seconds())

    def ended(self, worker: int, end: LogResult | TpuctlError) -> None:
        """End the following once the program failed on one worker: the others may wait forever."""
        self._silence.ended(worker)
        if isinstance(end, TpuctlError) or end.failure:
            self._failed.set()

    async def _run(self) -> FollowResult:
        reading = asyncio.create_task(self._read())
        others = [asyncio.create_task(self._wait_for_failure()), asyncio.create_task(self._check())]
        try:
            await asyncio.wait([reading, *others], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, *others):
                task.cancel()
            ended = await asyncio.gather(reading, *others, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
        return self.result

    async def _read(self) -> None:
        reconnecting = replace(self.access.timeouts, reconnect_s=math.inf)
        await follow_log(
            self.hosts,
            replace(self.access, timeouts=reconnecting),
            sink=self.sink,
            note=self.note,
            job=self.job,
            listener=self,
            offsets=self.result.offsets,
            tail=FIRST_LINES if self.offsets is None else None,
        )

    async def _wait_for_failure(self) -> None:
        await self._failed.wait()
        await asyncio.sleep(_LAST_WORDS_S)

    async def _check(self) -> None:
        """Ask the service now and then, and check for hung workers all the time."""
        clock, due = self.clock, self.clock.now()
        while True:
            if clock.now() >= due:
                if not await self._ask_service():
                    return
                due = clock.now() + timedelta(seconds=self.poll_s)
            if self.give_up_lost(bool(self.result.lost)):
                return
            if self._is_hung(self._awake.seconds()):
                return
            await asyncio.sleep(_TICK_S)

    async def _ask_service(self) -> bool:
        asking = asyncio.ensure_future(asyncio.to_thread(self.is_usable))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Its thread cannot be stopped, and would overwrite what is observed next.
            await asyncio.gather(asking, return_exceptions=True)
            raise

    def _is_hung(self, now_s: float) -> bool:
        after_s = self.spec.hang_after_s
        silence = self._silence.silent(now_s, after_s=after_s or SILENT_S)
        if silence is None:
            self._named = ()
        elif after_s is not None:
            self.result.hung = silence
            return True
        elif silence.workers != self._named:
            self._named = silence.workers
            who, long = name_workers(silence.workers), format_duration(silence.seconds)
            has = "has" if len(silence.workers) == 1 else "have"
            self.note(
                f"{who[0].upper()}{who[1:]} {has} printed nothing for {long}. "
                f"To restart the job after such a silence: --hang-after {long.replace(' ', '')}"
            )
        return False
