"""What the stages that only copy cost alone: the runtime's model counts their waiting as work.

tf.data copies elements into a batch on the threads that also run the maps, and counts the time
until they have come round to it (with decoding on one vCPU, a batch seemed to take 9 to 23 % of
the time, and took 2 to 5 % of the CPU). So as many bytes are batched by threads of their own.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpuctl.pipeline import signals
from tpuctl.pipeline.copying import batches_that_count
from tpuctl.pipeline.models import CopyingStage, NodeCost

WINDOWS, WINDOW_S, WARM_BATCHES = 4, 0.1, 4
# Of batches larger than this fewer examples are copied, for several are in memory at a time.
MOST_BYTES = 64_000_000


Threads = dict[str, signals.ThreadTime] | None


def copying_stages(
    nodes: Sequence[NodeCost], options: tf.data.Options, *, threads: int
) -> tuple[CopyingStage, ...]:
    """Measure every batch of a pipeline that counts, on as many threads as the pipeline has."""
    found = []
    for node, ratio in batches_that_count(nodes):
        size_bytes = round(node.bytes_out / node.elements / ratio)
        count = min(round(ratio), MOST_BYTES // max(1, size_bytes))
        cost_s = _cpu_s_per_example(size_bytes, count, options, threads) if count else None
        if cost_s:
            found.append(CopyingStage(node.path, cost_s * ratio))
    return tuple(found)


def _cpu_s_per_example(
    size_bytes: int, count: int, options: tf.data.Options, threads: int
) -> float | None:
    """CPU seconds of threads that were born to batch, and do nothing else."""
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
    """CPU seconds per element of all threads but the others and the one that takes them."""
    before, start, taken = signals.read().threads, time.perf_counter(), 0
    while time.perf_counter() - start < WINDOW_S:
        next(iterator)
        taken += 1
    after = signals.read().threads
    if others is None or before is None or after is None:
        return None
    born = after.keys() - others.keys()
    spent_s = sum(after[name].running_s for name in born)
    return (spent_s - sum(before[name].running_s for name in born & before.keys())) / taken
