"""Worker processes under supervision: a killed one costs a retry, never the run."""

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import IO, Any

import tpuctl
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.state import Finished
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

WORKER = (sys.executable, "-m", "tpuctl.datasets.worker")

# No picture within the pixel limit takes a hundredth of this.
SILENCE_S = 300.0

# A picture that has killed this many workers is left out; once may be the system's fault.
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


Claim = Callable[[ShardJob], bool]
"""Whether a shard is to be built here, asked at the last moment, by any thread."""


def claim_all(job: ShardJob) -> bool:
    """Build every shard that is asked for."""
    return True


@dataclass(frozen=True)
class Setup:
    """What every worker has to know."""

    source: str
    work: str
    options: dict[str, Any]
    budget_bytes: int
    workers: int


@dataclass(frozen=True)
class Step:
    """One report from a worker: how far it is in a shard, or that it is finished, and its twins."""

    job: ShardJob
    position: int
    finished: Finished | None = None
    twins: tuple[Finished, ...] = ()

    @property
    def all(self) -> tuple[Finished, ...]:
        """What is finished."""
        return () if self.finished is None else (self.finished, *self.twins)


@dataclass
class _Seat:
    """One place at the table: a process, replaced when it dies, and the jobs it gets."""

    setup: Setup
    command: Sequence[str]
    jobs: "queue.SimpleQueue[ShardJob]"
    reports: "queue.Queue[Step | BaseException | None]"
    closing: threading.Event
    inherit: tuple[int, ...]
    claim: Claim
    began_s: float = math.inf
    _process: "subprocess.Popen[bytes] | None" = None
    _complaints: IO[bytes] | None = None

    def serve(self) -> None:
        """Work until there are no jobs left or the table is cleared."""
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
            self.leave()

    def kill(self) -> None:
        """End the process, whatever it is doing; any thread may."""
        if (process := self._process) is not None:
            process.kill()

    def leave(self) -> None:
        """End the process and clean up behind it."""
        process, self._process = self._process, None
        self.began_s = math.inf
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    def kill_if_silent(self, limit_s: float) -> None:
        """End a process that has been at one picture for too long."""
        if time.monotonic() - self.began_s > limit_s:
            self.kill()

    def _finish(self, job: ShardJob) -> None:
        """See one job through, with a new process after each that dies of it."""
        strikes: Counter[int | None] = Counter()
        crashed: dict[int, str] = {}
        while not self.closing.is_set():
            position, end = self._attempt(job, crashed)
            if end is None:
                return
            strikes[position] += 1
            if position is not None and strikes[position] >= _FATAL_STRIKES:
                crashed[position] = f"it killed {strikes[position]} workers ({end})"
            if strikes[None] >= _FAILED_STARTS and not self.closing.is_set():
                raise TpuctlError(
                    f"A worker process ended before it began: {end}{self._last_words()}",
                    hint="Run with --workers 1 to see whether memory is the reason.",
                )
            self.leave()

    def _attempt(self, job: ShardJob, crashed: dict[int, str]) -> tuple[int | None, str | None]:
        """Give a job to the process; return where it died and how, or no end when it finished."""
        position: int | None = None
        try:
            process = self._running()
            self._send(process, {**_to_json(job), "crashed": crashed})
            assert process.stdout is not None
            for line in process.stdout:
                if self.closing.is_set():
                    break
                report = json.loads(line)
                self.began_s = time.monotonic() if "at" in report else math.inf
                if "failed" in report:
                    name, message, hint = report["failed"]
                    raise _ERRORS.get(name, InvalidInputError)(message, hint=hint)
                if "done" in report:
                    done, *twins = (Finished.from_json(one) for one in report["done"])
                    self.reports.put(Step(job, len(job.entries), done, tuple(twins)))
                    return position, None
                if "at" in report:
                    position = min(report["at"], len(job.entries) - 1)
                    self.reports.put(Step(job, report["at"]))
        except BrokenPipeError:
            pass
        return position, self._how_it_ended()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `leave`)
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env=_environment(),
                pass_fds=self.inherit,
                start_new_session=True,
            )
            self._send(self._process, asdict(self.setup))
        return self._process

    @staticmethod
    def _send(process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()

    def _how_it_ended(self) -> str:
        if self._process is None or self.closing.is_set():
            return "ended"
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _last_words(self) -> str:
        if self._complaints is None:
            return ""
        self._complaints.seek(0)
        lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def build_shards(
    jobs: Sequence[ShardJob],
    setup: Setup,
    *,
    inherit: tuple[int, ...] = (),
    claim: Claim = claim_all,
    command: Sequence[str] = WORKER,
    silence_s: float = SILENCE_S,
) -> Generator[Step, None, None]:
    """Build shards in `setup.workers` processes and yield their reports as they come.

    The processes inherit the descriptors `inherit`, so that a lock lasts as long as any of them.
    `claim` is asked when it is a job's turn. Closing the iterator ends them. Raises what a worker
    failed with.
    """
    waiting: queue.SimpleQueue[ShardJob] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    reports: queue.Queue[Step | BaseException | None] = queue.Queue()
    closing = threading.Event()
    seats = [
        _Seat(setup, command, waiting, reports, closing, inherit, claim)
        for _ in range(min(setup.workers, len(jobs)))
    ]
    threads = [threading.Thread(target=seat.serve, daemon=True) for seat in seats]
    try:
        for thread in threads:
            thread.start()
        yield from _collect(seats, reports, silence_s)
    finally:
        closing.set()
        for seat in seats:
            seat.kill()
        for thread in threads:
            thread.join()


def _collect(
    seats: Sequence[_Seat],
    reports: "queue.Queue[Step | BaseException | None]",
    silence_s: float,
) -> Iterator[Step]:
    left = len(seats)
    while left:
        try:
            report = reports.get(timeout=1.0)
        except queue.Empty:
            for seat in seats:
                seat.kill_if_silent(silence_s)
            continue
        if report is None:
            left -= 1
        elif isinstance(report, BaseException):
            raise report
        else:
            yield report


def _to_json(job: ShardJob) -> dict[str, Any]:
    twins = [astuple(twin) for twin in job.twins]
    return {
        "id": job.id, "index": job.index, "of": job.of, "entries": job.entries, "twins": twins,
    }  # fmt: skip


def _environment() -> dict[str, str]:
    """Let the worker import the same tpuctl as this process, and keep libraries to one thread."""
    home = str(Path(tpuctl.__file__).resolve().parents[1])
    paths = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **os.environ,
        **single,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }
