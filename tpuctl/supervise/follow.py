"""For how long something has been so: time in which a laptop slept is no evidence of anything."""

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
from tpuctl.supervise.models import SILENT_S, Order, Silence
from tpuctl.units import format_duration

_LONGEST_TICK_S = 1.0
_LONGEST_LOOK_S = 120.0


class Awake:
    """Seconds that this program was awake, asked many times a second."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._last_s, self._seconds = elapsed_s(), 0.0

    def seconds(self) -> float:
        """Those since the beginning; of a long gap only its first moment counts."""
        now_s = self._elapsed_s()
        self._seconds += min(now_s - self._last_s, _LONGEST_TICK_S)
        self._last_s = now_s
        return self._seconds


class Since:
    """For how long something has been so, as often as one looks; of a long gap a part counts."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last: datetime | None = None
        self._seconds = 0.0

    def seconds(self, is_so: bool) -> float:
        """Note whether it is so; the seconds since it began to be."""
        now, last = self._now(), self._last
        self._last = now if is_so else None
        passed_s = min((now - last).total_seconds(), _LONGEST_LOOK_S) if last else 0.0
        self._seconds = self._seconds + passed_s if is_so else 0.0
        return self._seconds


@dataclass
class Talk:
    """When each worker has said something, in seconds of any one clock.

    While a connection is broken nothing is known of a worker: it counts as heard from when it is
    back.
    """

    workers: tuple[int, ...]
    started_s: float
    _first_s: dict[int, float] = field(default_factory=dict)
    _last_s: dict[int, float] = field(default_factory=dict)
    _away: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def heard(self, worker: int, now_s: float) -> None:
        """It has said something."""
        self._first_s.setdefault(worker, now_s)
        self._last_s[worker] = now_s

    def lost(self, worker: int) -> None:
        """Its connection is broken."""
        self._away.add(worker)

    def back(self, worker: int, now_s: float) -> None:
        """Its connection is there again."""
        self._away.discard(worker)
        if worker in self._last_s:
            self._last_s[worker] = now_s

    def ended(self, worker: int) -> None:
        """Its program has ended: it has nothing more to say."""
        self._ended.add(worker)

    def silent(self, now_s: float, *, after_s: float) -> Silence | None:
        """Who is taken for hung: said nothing for `after_s`, although it used to.

        It used to when it had talked for as long as that; or when it has talked at all, and nobody
        does any more. While a worker is away that cannot be said of all. Where nobody has ever
        said a word, all are.
        """
        if not self._last_s:
            waited_s = now_s - self.started_s
            is_hung = waited_s >= after_s and not self._away
            return Silence(self.workers, waited_s) if is_hung else None
        live = self._last_s.keys() - self._ended
        quiet = {w: now_s - self._last_s[w] for w in live - self._away}
        quiet = {worker: seconds for worker, seconds in quiet.items() if seconds >= after_s}
        nobody_talks = len(quiet) == len(live)
        hung = [
            worker
            for worker in quiet
            if nobody_talks or self._last_s[worker] - self._first_s[worker] >= after_s
        ]
        if not hung:
            return None
        hung.sort(key=lambda worker: (self._last_s[worker], worker))
        return Silence(tuple(hung), quiet[hung[0]])


FIRST_LINES = 10
"""How many of its last lines a job shows to a watch that comes back to it."""

_TICK_S = 0.1
_LAST_WORDS_S = 2.0


@dataclass
class Followed:
    """How far the logs were read (bytes, by worker), and what was noticed last."""

    offsets: dict[int, int] = field(default_factory=dict)
    hung: Silence | None = None
    lost: dict[int, TpuctlError] = field(default_factory=dict)


@dataclass(frozen=True)
class Eyes:
    """What is looked at while the job runs.

    `is_well` asks the service, and may take its time; False ends the following. `give_up_lost`
    judges whether the workers that are lost have been so for too long.
    """

    is_well: Callable[[], bool]
    give_up_lost: Callable[[bool], bool]
    clock: Clock
    poll_s: float


def follow_job(
    hosts: tuple[Host, ...],
    access: Access,
    job: str,
    order: Order,
    so_far: Mapping[int, int] | None,
    eyes: Eyes,
    *,
    sink: Sink,
    note: Callable[[str], None],
) -> Followed:
    """Follow a job until it ends or fails somewhere, its TPU is not well, or a worker hangs."""
    patient = replace(access, timeouts=replace(access.timeouts, reconnect_s=math.inf))
    return run_async(_Following(hosts, patient, job, order, so_far, eyes, sink, note).to_the_end())


def show_log(
    hosts: tuple[Host, ...],
    access: Access,
    job: str,
    so_far: Mapping[int, int] | None,
    *,
    sink: Sink,
) -> None:
    """Show a log from where it was read last, or its last lines, as far as it goes now."""
    run_async(
        follow_log(
            hosts,
            access,
            sink=sink,
            note=lambda _: None,
            job=job,
            listener=LogListener(),
            offsets=so_far or {},
            tail=FIRST_LINES if so_far is None else None,
            follow=False,
        )
    )


class _Following(LogListener):
    def __init__(
        self,
        hosts: tuple[Host, ...],
        access: Access,
        job: str,
        order: Order,
        so_far: Mapping[int, int] | None,
        eyes: Eyes,
        sink: Sink,
        note: Callable[[str], None],
    ) -> None:
        self._hosts, self._access, self._job, self._order = hosts, access, job, order
        self._eyes, self._sink, self._note = eyes, sink, note
        self._is_first = so_far is None
        self.result = Followed(dict(so_far or {}))
        self._awake = Awake(time.monotonic)
        workers = tuple(host.index for host in hosts)
        self._talk = Talk(workers, 0.0)
        self._named: tuple[int, ...] = ()
        self._failed = asyncio.Event()

    def heard(self, worker: int, offset_bytes: int) -> None:
        """Note the time, and how far we are."""
        self.result.offsets[worker] = offset_bytes
        self._talk.heard(worker, self._awake.seconds())

    def lost(self, worker: int, error: TpuctlError) -> None:
        """Nothing is known of it for now."""
        self.result.lost[worker] = error
        self._talk.lost(worker)

    def back(self, worker: int) -> None:
        """It is there again."""
        self.result.lost.pop(worker, None)
        self._talk.back(worker, self._awake.seconds())

    def ended(self, worker: int, end: LogResult | TpuctlError) -> None:
        """A program that has failed on one worker is not waited for on the others."""
        self._talk.ended(worker)
        if isinstance(end, TpuctlError) or end.failure:
            self._failed.set()

    async def to_the_end(self) -> Followed:
        """Follow, and look around, until one of both ends."""
        reading = asyncio.create_task(self._read())
        others = [asyncio.create_task(self._wait_for_failure()), asyncio.create_task(self._look())]
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
        await follow_log(
            self._hosts,
            self._access,
            sink=self._sink,
            note=self._note,
            job=self._job,
            listener=self,
            offsets=self.result.offsets,
            tail=FIRST_LINES if self._is_first else None,
        )

    async def _wait_for_failure(self) -> None:
        await self._failed.wait()
        await asyncio.sleep(_LAST_WORDS_S)

    async def _look(self) -> None:
        """Ask the service now and then, and listen for silence all the time."""
        clock, due = self._eyes.clock, self._eyes.clock.now()
        while True:
            if clock.now() >= due:
                if not await asyncio.to_thread(self._eyes.is_well):
                    return
                due = clock.now() + timedelta(seconds=self._eyes.poll_s)
            if self._eyes.give_up_lost(bool(self.result.lost)):
                return
            if self._is_hung(self._awake.seconds()):
                return
            await asyncio.sleep(_TICK_S)

    def _is_hung(self, now_s: float) -> bool:
        after_s = self._order.hang_after_s
        silence = self._talk.silent(now_s, after_s=after_s or SILENT_S)
        if silence is None:
            self._named = ()
        elif after_s is not None:
            self.result.hung = silence
            return True
        elif silence.workers != self._named:
            self._named = silence.workers
            who, long = name_workers(silence.workers), format_duration(silence.seconds)
            has = "has" if len(silence.workers) == 1 else "have"
            self._note(
                f"{who[0].upper()}{who[1:]} {has} said nothing for {long}. "
                f"To begin again when that means that it hangs: --hang-after {long}"
            )
        return False
