"""Worker processes that build shards: a killed one costs a retry, never the run."""

import contextlib
import json
import math
import queue
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.plan import ShardJob
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    SourceChangedError,
    TpuctlError,
    UnavailableError,
    WriteError,
)
from tpuctl.progress import OnProgress, Progress
from tpuctl.start_python import child_environment, python_command
from tpuctl.units import format_bytes

WORKER = python_command("tpuctl.datasets.shards.worker")

# No image within the pixel limit takes a hundredth of this.
SILENCE_S = 300.0

# An image that has killed this many workers is left out; once may be the system's fault.
_FATAL_STRIKES = 2
_FAILED_STARTS = 3
_ERRORS: dict[str, type[TpuctlError]] = {
    error.__name__: error
    for error in (
        InvalidInputError,
        NotFoundError,
        NotLoggedInError,
        PermissionDeniedError,
        RateLimitedError,
        SourceChangedError,
        UnavailableError,
        WriteError,
    )
}


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker needs to know."""

    source: str
    work: str
    options: dict[str, Any]
    budget_bytes: int
    workers: int
    image_bytes: int = MAX_IMAGE_BYTES


@dataclass(frozen=True)
class Step:
    """A report of a worker: how far it is in a shard; at the end, the shard."""

    job: ShardJob
    position: int
    finished: FinishedShard | None = None


_Report = Step | BaseException | None


@dataclass
class _Slot:
    """One worker process, replaced when it dies, and the thread that gives it jobs."""

    setup: WorkerSetup
    command: Sequence[str]
    inherit: tuple[int, ...]
    jobs: "queue.SimpleQueue[ShardJob]"
    reports: "queue.Queue[_Report]"
    closing: threading.Event
    picture_began_s: float = math.inf
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _stderr: IO[bytes] | None = field(default=None, init=False)

    def serve(self) -> None:
        """Work until there are no jobs left or the pool closes."""
        try:
            while not self.closing.is_set():
                self._finish(self.jobs.get_nowait())
        except queue.Empty:
            self.reports.put(None)
        except BaseException as error:
            self.reports.put(error)
        finally:
            self._end()

    def kill(self) -> None:
        """Kill the process; any thread may call this."""
        if (process := self._process) is not None:
            process.kill()

    def _end(self) -> None:
        """Kill the process and clean up after it."""
        process, self._process = self._process, None
        self.picture_began_s = math.inf
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _finish(self, job: ShardJob) -> None:
        """Build one shard, with a new process after each one that dies."""
        strikes: Counter[int | None] = Counter()
        crashed: dict[int, str] = {}
        while not self.closing.is_set():
            position, end = self._attempt(job, crashed)
            if end is None:
                return
            # A worker says which image it is at before it touches it: that one gets the blame.
            strikes[position] += 1
            if position is not None and strikes[position] >= _FATAL_STRIKES:
                crashed[position] = f"it killed {strikes[position]} workers ({end})"
            if strikes[None] >= _FAILED_STARTS and not self.closing.is_set():
                raise TpuctlError(
                    f"A worker process ended before it began: {end}{self._last_words()}",
                    hint="Run with --workers 1 to see whether memory is the reason.",
                )
            self._end()

    def _attempt(self, job: ShardJob, crashed: dict[int, str]) -> tuple[int | None, str | None]:
        """Give a job to the process; returns where it died and how, or None if it finished."""
        position: int | None = None
        try:
            process = self._running()
            _send(process, {**job.to_json(), "crashed": crashed})
            assert process.stdout is not None
            for line in process.stdout:
                if self.closing.is_set():
                    break
                report = json.loads(line)
                self.picture_began_s = time.monotonic() if "at" in report else math.inf
                if "failed" in report:
                    name, message, hint = report["failed"]
                    raise _ERRORS.get(name, InvalidInputError)(message, hint=hint)
                if "done" in report:
                    done = from_plain(FinishedShard, report["done"])
                    self.reports.put(Step(job, len(job.pictures), done))
                    return position, None
                if "at" in report:
                    position = min(report["at"], len(job.pictures) - 1)
                    self.reports.put(Step(job, report["at"]))
        except BrokenPipeError:
            pass
        return position, self._how_it_ended()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `_end`)
            self._process = subprocess.Popen(  # noqa: S603 (our own worker)
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_environment(),
                pass_fds=self.inherit,
                start_new_session=True,  # Ctrl-C is for this process, which then ends its workers.
            )
            _send(self._process, to_plain(self.setup))
        return self._process

    def _how_it_ended(self) -> str:
        if self._process is None or self.closing.is_set():
            return "ended"
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _last_words(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def build_shards(
    jobs: Sequence[ShardJob],
    setup: WorkerSetup,
    *,
    inherit: tuple[int, ...] = (),
    command: Sequence[str] = WORKER,
    silence_s: float = SILENCE_S,
) -> Generator[Step, None, None]:
    """Build shards in `setup.workers` processes and yield their reports as they come.

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
        _Slot(setup, command, inherit, waiting, reports, closing)
        for _ in range(min(setup.workers, len(jobs)))
    ]
    threads = [threading.Thread(target=slot.serve, daemon=True) for slot in slots]
    try:
        for thread in threads:
            thread.start()
        yield from _collect(slots, reports, silence_s)
    finally:
        closing.set()
        for slot in slots:
            slot.kill()
        for thread in threads:
            thread.join()


def _collect(
    slots: Sequence[_Slot], reports: "queue.Queue[_Report]", silence_s: float
) -> Iterator[Step]:
    left = len(slots)
    while left:
        try:
            report = reports.get(timeout=1.0)
        except queue.Empty:
            for slot in slots:
                if time.monotonic() - slot.picture_began_s > silence_s:
                    slot.kill()
            continue
        if report is None:
            left -= 1
        elif isinstance(report, BaseException):
            raise report
        else:
            yield report


def _send(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _environment() -> dict[str, str]:
    """Keep the worker's libraries to one thread."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return child_environment({**single, "PYTHONUNBUFFERED": "1"})


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
        self._left_out += len(step.finished.left_out) if step.finished else 0
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
