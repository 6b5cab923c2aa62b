"""Plain Python iterables as pipelines: their functions are found by sampling the stack."""

import contextlib
import inspect
import json
import multiprocessing.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.frameworks.stacks import (
    Key,
    Samples,
    StackSampler,
    by_depth,
    is_library,
    name_producer,
)
from tpuctl.profiling.models import ChainNode
from tpuctl.profiling.windows import StageCost

# The names of random transforms in torchvision, timm and albumentations.
_RANDOM = re.compile("Random|Jitter|Augment|Erasing|Dropout", re.IGNORECASE)
METHOD = "CPU clock of the thread, divided by samples of its stack"


def open_iterable(
    made: Any, make: Callable[[], Any], folder: str, *, name: str, batch_size: int
) -> Source:
    """Open the object that a function returned; an iterator is recreated for every epoch."""
    sampler = StackSampler(folder)
    # The processes that the user's code forks are sampled too.
    multiprocessing.util.register_after_fork(sampler, start_in_child)
    first = [made]

    def opened() -> Iterator[Any]:
        found = first.pop() if first else (make() if isinstance(made, Iterator) else made)
        if not isinstance(found, Iterator):
            first[:] = [found]
        return name_producer(found, iterate(found))

    return Source(
        kind="iterable",
        chain=ChainNode("Iterable", name, location=location_of(made), runs_python=True),
        batch_size=batch_size,
        indexed=not isinstance(made, Iterable),
        lanes=1,
        runs_ahead=False,
        settings={"iterable": f"{type(made).__module__}.{type(made).__qualname__}"},
        opened=opened,
        costs=partial(sampled_costs, folder, lanes=1, own=sampler),
        starts=[sampler.start],
    )


def watched(made: Any, sampler: StackSampler) -> Source:
    """A source that the program itself iterates: it is sampled while the program takes batches."""
    name = getattr(made, "__name__", type(made).__name__)
    return Source(
        kind="iterable",
        chain=ChainNode("Iterable", name, location=location_of(made), runs_python=True),
        lanes=1,
        runs_ahead=False,
        starts=[sampler.start],
        costs=partial(sampled_costs, sampler.folder, lanes=1, own=sampler),
    )


def start_in_child(sampler: StackSampler) -> None:
    """Sample a process that was forked from a sampled one."""
    StackSampler(sampler.folder).start()


def sampled_costs(
    folder: str, *, lanes: int, own: StackSampler | None = None
) -> tuple[StageCost, ...]:
    """The costs that the samplers of all processes recorded, one entry per function."""
    if own:
        own.write()
    found = read_stacks(folder)
    return tuple(
        StageCost(
            name=key[0],
            op="Transfer" if key[0] == "transfer" else "Python",
            location=key[1] or None,
            calls=found[key].count,
            wall_s=found[key].wall_s,
            cpu_s=found[key].cpu_s,
            parallelism=max(lanes, found[key].threads),
            method=METHOD,
            is_random=found[key].is_random or is_named_random(key[0]),
        )
        for key in by_depth(found)
    )


def read_stacks(folder: str) -> dict[Key, Samples]:
    """Add up the samples of all processes; those that still run have their threads at once."""
    total: dict[Key, Samples] = {}
    for path in Path(folder).glob("*.stacks"):
        try:
            rows = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        is_alive = Path("/proc", path.stem).exists()
        for name, location, count, wall_s, cpu_s, depth, is_random, threads in rows:
            found = total.setdefault((name, location), Samples(threads=0))
            found.count += count
            found.wall_s += wall_s
            found.cpu_s += cpu_s
            found.depth += depth
            found.is_random |= is_random
            found.threads = found.threads + threads if is_alive else max(found.threads, threads)
    return total


def is_named_random(name: str) -> bool:
    """Whether a library's function or class draws random numbers, according to its name."""
    return bool(_RANDOM.search(name))


def iterate(made: Any) -> Iterator[Any]:
    """Iterate with the iterator protocol, otherwise by index."""
    if isinstance(made, Iterable):
        return iter(made)
    return (made[index] for index in range(len(made)))


def location_of(made: Any) -> str | None:
    """Where the user wrote a generator, a function or a class; None for library code."""
    code = getattr(made, "gi_code", None) or getattr(made, "__code__", None)
    if code is not None:
        return None if is_library(code.co_filename) else f"{code.co_filename}:{code.co_firstlineno}"
    try:
        file, line = inspect.getsourcefile(type(made)), inspect.getsourcelines(type(made))[1]
    except (TypeError, OSError):
        return None
    return None if file is None or is_library(file) else f"{file}:{line}"


LINE = "_tpuctl_line"


def remember_lines(kind: Any) -> None:
    """Let every object of a library's class know the user's line that made it."""
    plain = kind.__init__
    if hasattr(plain, LINE):
        return

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        with contextlib.suppress(AttributeError):
            setattr(self, LINE, call_of_library())

    setattr(__init__, LINE, True)
    kind.__init__ = __init__


def call_of_library() -> Key | None:
    """The library's function that the user's code called, and the line of that call."""
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return name, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        name, frame = frame.f_code.co_name, frame.f_back
    return None
