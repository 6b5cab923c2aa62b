"""Sample the stacks of Python code: which of the user's functions run, and their CPU cost.

A timer signal runs its handler in the main thread between two instructions. So a long call into C
is credited to the function that made it, whether or not it releases the interpreter lock; a
sampling thread would see such calls too often. One timer counts time, one the process's CPU time,
from which the clocks of Python's other threads are credited to what those run.

The handler runs late if a function ends with an operation, as in `return image / 255`: it then
sees the caller that received the result, and credits the function that produced it if it can tell.
"""

import contextlib
import inspect
import json
import multiprocessing
import opcode
import os
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from tpuctl.profiling.called import DECODE_IN
from tpuctl.profiling.frameworks.timers import (
    ThreadTimer,
    delete_timers,
    give_up_if_blocked,
    start_timers,
)
from tpuctl.usercode.frames import current_frames, no_collection

# A handler takes up to 20 us on a stack of 20 frames: together 0.5 % of one vCPU (2026-11).
# With 100 samples of time in 2 s, a function's share was up to 0.2 off.
EVERY_S, CPU_EVERY_S = 0.008, 0.01
# Samples between writes, so that a killed worker loses at most the last 0.2 s.
WRITE_EVERY = 25
NOT_SAMPLED = (
    "Not measured: the cost of Python functions, since the program uses signals in a way that "
    "sampling would change."
)
OURS = str(Path(__file__).resolve().parents[2])
_LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), OURS, "<frozen")
_TYPED_IN = ("<ipython-input", "<stdin>")
TRANSFERS = ("device_put", "batched_device_put", "shard_args", "pin_memory", "copy_to_device")
_GETTERS = ("__getitem__", "__getitems__")
# Where Keras reads a `PyDataset`.
_KERAS_READER = os.path.join("data_adapters", "py_dataset_adapter.py")
# Where a process waits for another one.
_PROCESSES = os.path.dirname(multiprocessing.__file__)
_PILLOW = os.path.join("PIL", "ImageFile.py")
# Calls that draw random numbers: a stored result would be the same in every epoch.
_RANDOM_CALLS = {"random", "rand", "randint", "randn", "randrange", "rng", "default_rng", "shuffle"}
_COLLATES = ("default_collate", "default_convert", "collate")
_TRANSFORMS = ("forward", "__call__", "transform", "map", "random_map")
# The first operation of a function, and of a generator that resumes; Python 3.10 has none.
_RESUME = opcode.opmap.get("RESUME")
# Frames that count as the function in which they are written.
_INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
Key = tuple[str, str]
Known = TypeVar("Known", bound=tuple[Any, ...])
TRANSFER: Key = ("transfer", "")
COLLATE: Key = ("collate", "")
TRANSFORM: Key = ("", "")


@dataclass
class Samples:
    """The samples of one function: their number, time, CPU time, and summed stack depth.

    `threads` is the number of threads seen in it at once.
    """

    count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    depth: float = 0.0
    is_random: bool = False
    threads: int = 1


@dataclass
class StackSampler:
    """Samples the main thread of this process, and writes the samples to a file.

    `everywhere` samples from `start` to `stop`; otherwise only between `resume` and `pause`.
    """

    folder: str
    everywhere: bool = True
    samples: dict[Key, Samples] = field(default_factory=dict)
    _wall_s: float = 0.0
    _cpu_s: float = 0.0
    _count: int = 0
    _timers: list[ThreadTimer] = field(default_factory=list)
    _pid: int = 0
    _is_running: bool = False
    _places: dict[CodeType, "Key | None"] = field(default_factory=dict)
    random: set[Key] = field(default_factory=set)
    _threads_s: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start, if this is the main thread and the system has timers for it."""
        if self._timers:
            return
        self._pid = os.getpid()
        self._wall_s = self._cpu_s = 0.0
        self._timers = start_timers(
            (time.CLOCK_MONOTONIC, EVERY_S, self._in_time),
            (time.CLOCK_PROCESS_CPUTIME_ID, CPU_EVERY_S, self._in_cpu),
            given_up=self._give_up,
        )
        if self.everywhere:
            self.resume()

    def resume(self) -> None:
        """Sample from now on; does nothing unless started in this process."""
        give_up_if_blocked(self._timers)
        if self._timers and self._pid == os.getpid():
            # The time since the last sample does not advance during a pause.
            self._wall_s += time.perf_counter()
            self._cpu_s += time.process_time()
            self._threads_s.clear()
            self._is_running = True
            for each in self._timers:
                each.resume()

    def pause(self) -> None:
        """Stop sampling until `resume`."""
        if self._is_running and self._pid == os.getpid():
            # First, since a signal may still be on its way.
            self._is_running = False
            for each in self._timers:
                each.pause()
            self._wall_s -= time.perf_counter()
            self._cpu_s -= time.process_time()

    def stop(self) -> None:
        """Stop, and write the remaining samples."""
        if not self._timers:
            return
        self._is_running = False
        if self._pid == os.getpid():
            delete_timers(self._timers)
        self._timers = []
        self.write()

    def _give_up(self) -> None:
        """Forget the samples, since they are of a part of the time only, and leave a note."""
        self._is_running = False
        self._timers = []
        self.samples.clear()
        self.write()
        leave_note(self.folder, NOT_SAMPLED)

    def _in_time(self, _number: int, frame: FrameType | None) -> None:
        """Credit the time since the last time signal, also to helper threads."""
        if not self._is_running:
            return
        now_s = time.perf_counter()
        with no_collection():
            running = self._in_helpers() if is_waiting(frame) else []
            mine = None if running or _waits_for_process(frame) else self._sample(frame)
            seen = [mine] if mine else running
        for found in seen:
            found.wall_s += now_s - self._wall_s
            found.threads = max(found.threads, sum(each is found for each in running))
        self._wall_s = now_s
        self._count += 1
        if self._count % WRITE_EVERY == 0:
            self.write()

    def _in_cpu(self, _number: int, frame: FrameType | None) -> None:
        """Credit the CPU time since the last CPU signal."""
        if not self._is_running:
            return
        with no_collection():
            now_s, others_s = time.process_time(), self._in_other_threads()
            found = self._sample(frame)
        if found:
            found.cpu_s += max(0.0, now_s - self._cpu_s - others_s)
        self._cpu_s = now_s

    def _in_helpers(self) -> list[Samples]:
        """The functions of the user's other threads, except those waiting for other threads."""
        main = threading.main_thread().ident
        frames = (f for t, f in current_frames() if t != main and not is_waiting(f))
        return list(filter(None, map(self._sample, frames)))

    def _in_other_threads(self) -> float:
        """Credit the CPU time of Python's other threads since the last signal; return the sum."""
        sum_s, main = 0.0, threading.main_thread().ident
        # `enumerate` takes a lock that the interrupted code may hold, and reading the clock of
        # a library's thread that has ended is not allowed.
        known: dict[int, Any] = getattr(threading, "_active", {})
        for thread, frame in current_frames():
            if thread == main or thread not in known:
                continue
            now_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
            used_s = max(0.0, now_s - self._threads_s.get(thread, now_s))
            self._threads_s[thread] = now_s
            sum_s += used_s
            if used_s and (found := self._sample(frame)):
                found.cpu_s += used_s
        return sum_s

    def _sample(self, frame: FrameType | None) -> Samples | None:
        key, depth = self.stage_of(frame)
        if key is None:
            return None
        found = self.samples.setdefault(key, Samples())
        found.count += 1
        found.depth += depth
        return found

    def stage_of(self, frame: FrameType | None) -> tuple[Key | None, int]:
        """The innermost user function on the stack, or the library call made for it."""
        stage: Key | None = None
        inner: list[FrameType] = []
        while frame is not None:
            code = frame.f_code
            if not inner and code is _NEXT and not _has_just_started(frame):
                return frame.f_locals["self"].key, 0
            if code.co_name == "_worker_loop" or code.co_filename.startswith(OURS):
                break
            if code.co_name in TRANSFERS:
                return TRANSFER, 0
            if stage is None and code.co_name not in _INSIDE:
                if inner or not _has_just_started(frame):
                    stage = self._collate_or_user(frame, inner)
                if stage and any(_is_decoding(each.f_code) for each in inner):
                    stage = _decoding_in(stage, frame.f_lineno)
            inner.append(frame)
            frame = frame.f_back
        return stage, len(inner)

    def _collate_or_user(self, frame: FrameType, inner: Sequence[FrameType]) -> Key | None:
        code = frame.f_code
        if "torch" in code.co_filename:
            if code.co_name in _COLLATES:
                return COLLATE
            if code.co_name == "fetch":
                fetcher = frame.f_locals.get("self")
                made = getattr(fetcher, "dataset_iter", getattr(fetcher, "dataset", None))
                return producer_of(made) or _library_call(made, inner)
        if _KERAS_READER in code.co_filename and inner and inner[-1].f_code.co_name in _GETTERS:
            return _library_call(inner[-1].f_locals.get("self"), inner)
        if code not in self._places:
            self._places[code] = place = _place(code)
            if place and _RANDOM_CALLS.intersection((*code.co_names, *code.co_varnames)):
                self.random.add(place)
        if self._places[code] != TRANSFORM:
            return self._places[code]
        # Classes of transforms share methods, so the object's class names the stage.
        owner = frame.f_locals.get("self")
        is_one = owner is not None and not hasattr(owner, "transforms")
        return (type(owner).__name__, "") if is_one else None

    def write(self) -> None:
        """Write the samples to a file for `sampled_costs`."""
        rows = [
            [*key, s.count, s.wall_s, s.cpu_s, s.depth, key in self.random, s.threads]
            # Copied first: a signal may add a function during the loop.
            for key, s in list(self.samples.items())
        ]
        path = Path(self.folder, f"{os.getpid()}.stacks")
        try:
            path.with_suffix(".new").write_text(json.dumps(rows))
            path.with_suffix(".new").replace(path)
        except OSError:
            return


class _NamedIterator(Iterator[Any]):
    """An iterator that knows the user's function that produces its elements."""

    def __init__(self, iterator: Iterator[Any], key: Key) -> None:
        self._iterator, self.key = iterator, key

    def __next__(self) -> Any:
        return next(self._iterator)


_NEXT = _NamedIterator.__next__.__code__


def name_producer(made: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """Wrap an iterator so that late samples are credited to its producer, not to its consumer."""
    key = producer_of(iterator) or producer_of(made)
    return _NamedIterator(iterator, key) if key else iterator


def producer_of(made: Any) -> Key | None:
    """The user's function that a generator runs, or that produces the elements of an object."""
    kind = type(made)
    methods = (getattr(kind, name, None) for name in ("__next__", "__getitems__", "__getitem__"))
    codes = (getattr(made, "gi_code", None), *(getattr(each, "__code__", None) for each in methods))
    return next((_key(code) for code in codes if code and not is_library(code.co_filename)), None)


def _library_call(made: Any, inner: Sequence[FrameType]) -> Key | None:
    """Name the work of a library's data set: its innermost generator, or the call that leaves it.

    `inner` are the frames on the stack, innermost first.
    """
    codes = [frame.f_code for frame in inner]
    if generator := next((code for code in codes if code.co_flags & inspect.CO_GENERATOR), None):
        return generator.co_name, ""
    items = [i for i, code in enumerate(codes) if code.co_name in _GETTERS]
    if not items:
        return None
    found = f"{type(made).__name__}.{codes[items[-1]].co_name}"
    for frame in reversed(inner[: items[-1]]):
        name, owner = frame.f_code.co_name, frame.f_locals.get("self", made)
        if name in _INSIDE:
            continue
        # A data set that reads from another one, as a subset does.
        made = owner if name in _GETTERS else made
        found = f"{type(owner).__name__}.{name}"
        if owner is not made or "self" not in frame.f_locals:
            break
    return found, ""


def is_waiting(frame: FrameType | None) -> bool:
    """Whether a thread waits for another one, like readers of queues and futures."""
    file = "" if frame is None else frame.f_code.co_filename
    return file == threading.__file__ or _waits_for_process(frame)


def _waits_for_process(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_PROCESSES)


def _is_decoding(code: CodeType) -> bool:
    """Whether this is where Pillow decodes: on first use of pixels, not when a file is opened."""
    return code.co_name == "load" and code.co_filename.endswith(_PILLOW)


def _decoding_in(stage: Key, line: int) -> Key:
    """The decoding call, as a separate stage from the rest of its function."""
    name, place = stage
    file = place.rpartition(":")[0]
    return f"{DECODE_IN}{name}", f"{file}:{line}" if file else ""


def _has_just_started(frame: FrameType) -> bool:
    """Whether a function is at its first operation: the sampled time was spent before it."""
    at = frame.f_lasti
    return at < 0 or frame.f_code.co_code[at] == _RESUME


def leave_note(folder: str, note: str) -> None:
    """Say why this process, or those that it starts, cannot be sampled."""
    with contextlib.suppress(OSError):
        Path(folder, f"{os.getpid()}.unsampled").write_text(note)


def sampling_notes(folder: str) -> tuple[str, ...]:
    """Why processes could not be sampled."""
    return tuple(sorted({place.read_text() for place in Path(folder).glob("*.unsampled")}))


def _place(code: CodeType) -> Key | None:
    """Name a user function; "" for a library's transform, None for other code."""
    if not is_library(code.co_filename):
        return _key(code)
    path = Path(code.co_filename)
    inside = "transforms" in (path.stem, *path.parts)
    return TRANSFORM if inside and code.co_name in _TRANSFORMS else None


def is_library(file: str) -> bool:
    """Whether a file is not the user's code."""
    if file.startswith("<"):
        return not file.startswith(_TYPED_IN)
    return any(part in file for part in _LIBRARIES)


def _key(code: CodeType) -> Key:
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2], location_of_code(code)


def location_of_code(code: CodeType) -> str:
    """Where a function was written."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def by_depth(samples: "Mapping[Known, Samples]") -> "list[Known]":
    """Order functions as data flows: deeper calls come first."""
    return sorted(samples, key=lambda key: -samples[key].depth / max(1, samples[key].count))
