"""Apply changes to a user's tf.data pipeline while it is built, and measure its batches alone."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpuctl.profiling.align import notable_batches
from tpuctl.profiling.frameworks._tf_graph import location_of_function
from tpuctl.profiling.frameworks.iterables import call_of_library
from tpuctl.profiling.measure import signals
from tpuctl.profiling.whatif import Change
from tpuctl.profiling.windows import CopyingStage, NodeCost

AUTOTUNE = tf.data.AUTOTUNE
# The median of short windows, so that one disturbed by another process does not count.
WINDOWS, WINDOW_S, WARM_BATCHES = 4, 0.1, 4
# Of larger batches fewer examples are copied, because several batches are in memory at a time.
MOST_BYTES = 64_000_000


@contextlib.contextmanager
def building_with(change: Change) -> Iterator[None]:
    """Apply a change while the pipeline is built: parallel calls, a cache, smaller images."""
    with contextlib.ExitStack() as stack:
        if change.way in ("calls", "threads", "cache"):
            stack.enter_context(_patched(tf.data.Dataset, "map", _map, change))
        if change.way in ("calls", "threads"):
            stack.enter_context(_patched(tf.data.Dataset, "interleave", _interleave, change))
        if change.way == "ratio":
            for place in (tf.io, tf.image):
                stack.enter_context(_patched(place, "decode_jpeg", _decode, change))
        yield


def change_end(dataset: Any, change: Change) -> Any:
    """Apply a change to the end of a pipeline."""
    options = tf.data.Options()
    if change.way == "prefetch":
        return dataset.prefetch(change.number or AUTOTUNE)
    if change.way == "unordered":
        options.deterministic = False
        return dataset.prefetch(change.number or AUTOTUNE).with_options(options)
    if change.way == "threads":
        options.threading.private_threadpool_size = change.number or 0
        return dataset.with_options(options)
    return dataset


Function = Callable[..., Any]


def _map(plain: Function, change: Change) -> Function:
    def map(self: Any, map_func: Any, num_parallel_calls: Any = None, **named: Any) -> Any:
        line = location_of_function(map_func) or (call_of_library() or ("", ""))[1]
        here = change.location in (None, line)
        if change.way != "cache" and here:
            num_parallel_calls = change.number or AUTOTUNE
        made = plain(self, map_func, num_parallel_calls=num_parallel_calls, **named)
        return made.cache() if change.way == "cache" and here else made

    return map


def _interleave(plain: Function, change: Change) -> Function:
    def interleave(self: Any, map_func: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("num_parallel_calls") is None and len(arguments) < 3:
            named["num_parallel_calls"] = AUTOTUNE
        return plain(self, map_func, *arguments, **named)

    return interleave


def _decode(plain: Function, change: Change) -> Function:
    def decode_jpeg(contents: Any, channels: int = 0, ratio: int = 1, **named: Any) -> Any:
        return plain(contents, channels=channels, ratio=max(ratio, change.number or 1), **named)

    return decode_jpeg


@contextlib.contextmanager
def _patched(
    place: Any, name: str, wrap: Callable[[Function, Change], Function], change: Change
) -> Iterator[None]:
    plain = getattr(place, name)
    setattr(place, name, wrap(plain, change))
    try:
        yield
    finally:
        setattr(place, name, plain)


Threads = dict[str, signals.ThreadTime] | None


def options_with(*, deterministic: bool | None) -> tf.data.Options:
    """The default options of a data set, except for this one."""
    options = tf.data.Options()
    if deterministic is not None:
        options.deterministic = deterministic
    return options


def copying_stages(
    nodes: Sequence[NodeCost], options: tf.data.Options, *, threads: int
) -> tuple[CopyingStage, ...]:
    """Measure every notable batch of a pipeline, on as many threads as the pipeline has."""
    found = []
    for node, ratio in notable_batches(nodes):
        size_bytes = round(node.bytes_out / node.elements / ratio)
        count = min(round(ratio), MOST_BYTES // max(1, size_bytes))
        cost_s = _cpu_s_per_example(size_bytes, count, options, threads) if count else None
        if cost_s:
            found.append(CopyingStage(node.path, cost_s * ratio))
    return tuple(found)


def _cpu_s_per_example(
    size_bytes: int, count: int, options: tf.data.Options, threads: int
) -> float | None:
    """CPU seconds of threads that only copy batches."""
    own = tf.data.Options()
    own.threading.private_threadpool_size = threads
    example = tf.zeros(size_bytes, tf.uint8)
    batches = tf.data.Dataset.from_tensors(example).repeat().batch(count, drop_remainder=True)
    others = signals.read().threads
    iterator = iter(batches.prefetch(2).with_options(options).with_options(own))
    for _ in range(WARM_BATCHES):
        next(iterator)
    costs_s = [_window_s(iterator, others) for _ in range(WINDOWS)]
    known_s = [each for each in costs_s if each is not None]
    return statistics.median_low(known_s) / count if known_s else None


def _window_s(iterator: Iterator[Any], others: Threads) -> float | None:
    """CPU seconds per element of the threads created since `others` was read."""
    before, start, taken = signals.read().threads, time.perf_counter(), 0
    while time.perf_counter() - start < WINDOW_S:
        next(iterator)
        taken += 1
    after = signals.read().threads
    if others is None or before is None or after is None:
        return None
    new = after.keys() - others.keys()
    spent_s = sum(after[name].running_s for name in new)
    return (spent_s - sum(before[name].running_s for name in new & before.keys())) / taken
