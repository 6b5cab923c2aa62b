"""Sample where a thread of Python code is: which of the user's functions, and at what CPU cost.

A timer signal runs its handler in the main thread between two instructions, so a long call into C
is credited to the function that made it, whether or not it lets go of the interpreter lock; a
sampling thread would see such calls too often. One timer counts time, one the process's CPU time.

The handler is late where a function ends with an operation, as in `return image / 255`: it then
finds whoever took the result, and credits who gave it where that can be told.
"""

import json
import opcode
import os
import signal
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

EVERY_S, CPU_EVERY_S = 0.02, 0.01
WRITE_EVERY = 10
OURS = str(Path(__file__).resolve().parents[2])
_LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), OURS, "<frozen")
_TYPED_IN = ("<ipython-input", "<stdin>")
TRANSFERS = ("device_put", "batched_device_put", "shard_args", "pin_memory", "copy_to_device")
_COLLATES = ("default_collate", "default_convert", "collate")
_TRANSFORMS = ("forward", "__call__", "transform", "map", "random_map")
# What a function begins with, and a generator goes on with; Python 3.10 has no such operation.
_RESUME = opcode.opmap.get("RESUME")
# Parts of the function that they are written in.
_INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
Key = tuple[str, str]
TRANSFER: Key = ("transfer", "")
COLLATE: Key = ("collate", "")
LIBRARY = "(library)"


@dataclass
class Seen:
    """What was seen of one function: how often, how long, and how much CPU time meanwhile."""

    samples: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    depth: float = 0.0


@dataclass
class StackSampler:
    """Samples the main thread of this process, and leaves what it saw in a file for others."""

    folder: str
    only_inside: Callable[[], bool] = lambda: True
    seen: dict[Key, Seen] = field(default_factory=dict)
    _wall_s: float = 0.0
    _cpu_s: float = 0.0
    _count: int = 0
    _is_on: bool = False
    _places: dict[CodeType, "Key | None"] = field(default_factory=dict)

    def start(self) -> None:
        """Begin; only the main thread can, and only where nobody else uses these signals."""
        if self._is_on:
            return
        used = (signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGPROF))
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or any(each not in (signal.SIG_DFL, signal.SIG_IGN) for each in used):
            return
        self._is_on = True
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        for number, handler in ((signal.SIGALRM, self._in_time), (signal.SIGPROF, self._in_cpu)):
            signal.signal(number, handler)
            # Calls of the system go on after the signal instead of failing with EINTR.
            signal.siginterrupt(number, False)
        signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
        signal.setitimer(signal.ITIMER_PROF, CPU_EVERY_S, CPU_EVERY_S)

    def stop(self) -> None:
        """End, and write down the rest."""
        if not self._is_on:
            return
        self._is_on = False
        for timer, number in (
            (signal.ITIMER_REAL, signal.SIGALRM),
            (signal.ITIMER_PROF, signal.SIGPROF),
        ):
            signal.setitimer(timer, 0.0)
            signal.signal(number, signal.SIG_IGN)
        self.write()

    def _in_time(self, _number: int, frame: FrameType | None) -> None:
        """Credit the time since the last of these signals."""
        now_s = time.perf_counter()
        if found := self._see(frame):
            found.wall_s += now_s - self._wall_s
        self._wall_s = now_s
        self._count += 1
        if self._count % WRITE_EVERY == 0:
            self.write()

    def _in_cpu(self, _number: int, frame: FrameType | None) -> None:
        """Credit the CPU time since the last of these signals, which come with CPU time."""
        now_s = time.process_time()
        if found := self._see(frame):
            found.cpu_s += now_s - self._cpu_s
        self._cpu_s = now_s

    def _see(self, frame: FrameType | None) -> Seen | None:
        key, depth = self._stage_of(frame) if self.only_inside() else (None, 0)
        if key is None:
            return None
        found = self.seen.setdefault(key, Seen())
        found.samples += 1
        found.depth += depth
        return found

    def _stage_of(self, frame: FrameType | None) -> tuple[Key | None, int]:
        """The innermost function of the user's, or what a library does on its behalf."""
        stage: Key | None = None
        depth = 0
        while frame is not None:
            name = frame.f_code.co_name
            if not depth and frame.f_code is _TAKE and not _has_only_begun(frame):
                return frame.f_locals["self"].key, 0
            if name == "_worker_loop" or frame.f_code.co_filename.startswith(OURS):
                break
            if name in TRANSFERS:
                return TRANSFER, 0
            if stage is None and name not in _INSIDE and (depth or not _has_only_begun(frame)):
                stage = self._collate_or_user(frame, name)
            depth += 1
            frame = frame.f_back
        return stage, depth

    def _collate_or_user(self, frame: FrameType, name: str) -> Key | None:
        if name in _COLLATES and "torch" in frame.f_code.co_filename:
            return COLLATE
        if name == "fetch" and "torch" in frame.f_code.co_filename:
            fetcher = frame.f_locals.get("self")
            return giver(getattr(fetcher, "dataset_iter", getattr(fetcher, "dataset", None)))
        code = frame.f_code
        if code not in self._places:
            self._places[code] = _place(frame, name)
        return self._places[code]

    def write(self) -> None:
        """Leave what was seen for whoever asks."""
        # A signal may come in between, with a function that was not seen before.
        seen = list(self.seen.items())
        rows = [[*key, s.samples, s.wall_s, s.cpu_s, s.depth] for key, s in seen]
        path = Path(self.folder, f"{os.getpid()}.stacks")
        try:
            path.with_suffix(".new").write_text(json.dumps(rows))
            path.with_suffix(".new").replace(path)
        except OSError:
            return


class _Giving(Iterator[Any]):
    """An iterator with the name of the user's function that its elements come from."""

    def __init__(self, iterator: Iterator[Any], key: Key) -> None:
        self._iterator, self.key = iterator, key

    def __next__(self) -> Any:
        return next(self._iterator)


_TAKE = _Giving.__next__.__code__


def giving(made: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """Let the samples of an iterator over something of the user's be told from the taker's."""
    key = giver(iterator) or giver(made)
    return _Giving(iterator, key) if key else iterator


def giver(made: Any) -> Key | None:
    """The user's function that a generator runs, or that gives the elements of an object."""
    kind = type(made)
    methods = (getattr(kind, name, None) for name in ("__next__", "__getitems__", "__getitem__"))
    codes = (getattr(made, "gi_code", None), *(getattr(each, "__code__", None) for each in methods))
    found = next((code for code in codes if code and not is_library(code.co_filename)), None)
    return _key(found) if found else None


def _has_only_begun(frame: FrameType) -> bool:
    """Whether a function is at its first operation: what was timed came before it."""
    at = frame.f_lasti
    return at < 0 or frame.f_code.co_code[at] == _RESUME


def read_stacks(folder: str) -> dict[Key, Seen]:
    """Add up what all processes saw."""
    total: dict[Key, Seen] = {}
    for path in Path(folder).glob("*.stacks"):
        try:
            rows = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        for name, location, samples, wall_s, cpu_s, depth in rows:
            found = total.setdefault((name, location), Seen())
            found.samples += samples
            found.wall_s += wall_s
            found.cpu_s += cpu_s
            found.depth += depth
    return total


def _place(frame: FrameType, name: str) -> Key | None:
    """Name a function of the user's, or a transform of a library's; None for other frames."""
    code = frame.f_code
    if not is_library(code.co_filename):
        return _key(code)
    owner: Any = frame.f_locals.get("self")
    inside = f"{os.sep}transforms{os.sep}" in code.co_filename
    if name in _TRANSFORMS and inside and owner is not None and not hasattr(owner, "transforms"):
        return type(owner).__name__, ""
    return None


def is_library(file: str) -> bool:
    """Whether a file is not the user's own."""
    if file.startswith("<"):
        return not file.startswith(_TYPED_IN)
    return any(part in file for part in _LIBRARIES)


def _key(code: CodeType) -> Key:
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2], f"{code.co_filename}:{code.co_firstlineno}"


def by_depth(seen: Mapping[Key, Seen]) -> list[Key]:
    """Order functions as data flows: what is called deeper comes first."""
    return sorted(seen, key=lambda key: -seen[key].depth / max(1, seen[key].samples))
