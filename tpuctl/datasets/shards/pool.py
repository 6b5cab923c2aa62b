"""Worker processes that build shards: a killed one costs a retry, never the run."""

import contextlib
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.plan import ShardJob
from tpuctl.errors import TargetError, TpuctlError
from tpuctl.progress import OnProgress, Progress
from tpuctl.units import format_bytes
from tpuctl.usercode.child import Child, start_child

WORKER = "tpuctl.datasets.shards.worker"
# The phase of a worker in which it has to report something now and then.
AT_WORK = "at work"

# No image within the pixel limit takes a hundredth of this.
SILENCE_S = 300.0

# An image that has killed this many workers is left out; once may be the system's fault.
_FATAL_STRIKES = 2
_FAILED_STARTS = 3
# The processes are what runs in parallel, so their libraries keep to one thread.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Claim = Callable[[ShardJob], bool]
"""Whether to build a shard here; called just before it is started, by any thread."""


def claim_all(job: ShardJob) -> bool:
    """Build every requested shard."""
    return True


@dataclass(frozen=True)
class WorkerSetup:
    """The settings that every worker gets."""

    source: str
    work: str
    options: dict[str, Any]
    budget_bytes: int
    workers: int
    image_bytes: int = MAX_IMAGE_BYTES


@dataclass(frozen=True)
class Step:
    """A report of a worker: how far it is in a shard; at the end the shard and its siblings."""

    job: ShardJob
    position: int
    finished: tuple[FinishedShard, ...] = ()


_Report = Step | BaseException | None


@dataclass
class _Slot:
    """One worker process, replaced when it dies, and the thread that gives it jobs."""

    setup: WorkerSetup
    worker: str
    inherit: tuple[int, ...]
    silence_s: float
    claim: Claim
    jobs: "queue.SimpleQueue[ShardJob]"
    reports: "queue.Queue[_Report]"
    closing: threading.Event
    child: Child | None = field(default=None, init=False)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def serve(self) -> None:
        """Work until there are no jobs left or the pool closes."""
        try:
            while not self.closing.is_set():
                job = self.jobs.get_nowait()
                if self.claim(job):
                    self._finish(job)
        except queue.Empty:
            self.reports.put(None)
        except BaseException as error:
            self.reports.put(error)
        finally:
            self._end()

    def _end(self) -> None:
        self.child = None
        self._stack.close()

    def _finish(self, job: ShardJob) -> None:
        """Build one shard, with a new process after each one that dies."""
        strikes: Counter[int | None] = Counter()
        crashed: dict[int, str] = {}
        while not self.closing.is_set():
            child = self._running()
            child.ask({**job.to_json(), "crashed": crashed})
            is_finished, position = self._listen(child, job)
            if is_finished or self.closing.is_set():
                return
            # A worker says which image it is at before it touches it: that one gets the blame.
            strikes[position] += 1
            end = child.wait()
            if position is not None and strikes[position] >= _FATAL_STRIKES:
                crashed[position] = f"it killed {strikes[position]} workers ({end})"
            if strikes[None] >= _FAILED_STARTS:
                words = child.last_line()
                raise TpuctlError(
                    f"A worker process ended before it began: {end}{words and f': {words}'}",
                    hint="Run with --workers 1 to see whether memory is the reason.",
                )
            self._end()

    def _listen(self, child: Child, job: ShardJob) -> tuple[bool, int | None]:
        """Pass on what a worker reports of a job; whether it finished, and where it was last."""
        position: int | None = None
        try:
            for report in child.listen({AT_WORK: self.silence_s}, math.inf, more_time=""):
                if self.closing.is_set():
                    break
                if "error" in report:
                    raise child.error(report)
                if "done" in report:
                    done = tuple(from_plain(FinishedShard, one) for one in report["done"])
                    self.reports.put(Step(job, len(job.pictures), done))
                    return True, position
                position = min(report["at"], len(job.pictures) - 1)
                self.reports.put(Step(job, report["at"]))
        except TargetError:
            child.kill()  # It is silent for too long.
        return False, position

    def _running(self) -> Child:
        if self.child is None:
            starting = start_child(self.worker, env=_ONE_THREAD, inherit=self.inherit)
            self.child = self._stack.enter_context(starting)
            self.child.ask(to_plain(self.setup))
        return self.child


def build_shards(
    jobs: Sequence[ShardJob],
    setup: WorkerSetup,
    *,
    inherit: tuple[int, ...] = (),
    worker: str = WORKER,
    claim: Claim = claim_all,
    silence_s: float = SILENCE_S,
) -> Generator[Step, None, None]:
    """Build shards in processes of the module `worker` and yield their reports as they come.

    The processes inherit the descriptors `inherit`, so that a lock lasts as long as any of them. A
    process that reports nothing for `silence_s` is killed. Closing the iterator ends all of them.
    Raises what a worker failed with.
    """
    waiting: queue.SimpleQueue[ShardJob] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    reports: queue.Queue[_Report] = queue.Queue()
    closing = threading.Event()
    slots = [
        _Slot(setup, worker, inherit, silence_s, claim, waiting, reports, closing)
        for _ in range(min(setup.workers, len(jobs)))
    ]
    threads = [threading.Thread(target=slot.serve, daemon=True) for slot in slots]
    try:
        for thread in threads:
            thread.start()
        left = len(slots)
        while left:
            report = reports.get()
            if isinstance(report, BaseException):
                raise report
            if report is None:
                left -= 1
            else:
                yield report
    finally:
        closing.set()
        for slot in slots:
            if child := slot.child:
                child.kill()
        for thread in threads:
            thread.join()


class Meter:
    """Counts images over all shards and reports the progress."""

    def __init__(self, images: int, missing: Sequence[ShardJob], on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._images = images
        self._base = images - sum(len(job.pictures) for job in missing)
        self._positions: dict[str, int] = {}
        self._bytes = 0
        self._left_out = 0
        self._first: tuple[float, int, int] | None = None

    def show(self, step: Step) -> None:
        """Report how far all shards are, after a step of one."""
        job = step.job
        before = self._positions.get(job.id, 0)
        self._bytes += sum(max(0, one.bytes) for one in job.pictures[before : step.position])
        self._positions[job.id] = step.position
        self._left_out += len(step.finished[0].left_out) if step.finished else 0
        worked = sum(self._positions.values())
        now_s = time.monotonic()
        # From the first report on: what an earlier run had done does not count as speed.
        first_s, first, bytes_then = self._first = self._first or (now_s, worked, self._bytes)
        note = ""
        if now_s > first_s and worked > first:
            rate = (worked - first) / (now_s - first_s)
            bytes_per_s = int((self._bytes - bytes_then) / (now_s - first_s))
            note = f"{rate:,.0f} images/s, {format_bytes(bytes_per_s)}/s"
        if self._left_out:
            note += f", {self._left_out} left out"
        done = self._base + worked
        self._on_progress(Progress("presize", done, self._images, "images", note))
