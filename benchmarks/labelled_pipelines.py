"""Small pipelines whose bottleneck is known because it was built in; targets for the suite.

    tpuctl profile run benchmarks/labelled_pipelines.py:torch_sleeps

What is made is written above each; the table of labels is in `profile_suite`.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

SMALL = (8, 8)
MANY = 1 << 20


def loop(index: Any) -> Any:
    """Work that holds the interpreter lock."""
    total = 0
    for value in range(60_000):
        total += value
    return np.full(SMALL, total % 7, "float32")


def nap(index: Any) -> Any:
    """A read from far away."""
    time.sleep(0.02)
    return np.zeros(SMALL, "float32")


def matrices(index: Any) -> Any:
    """Work that lets go of the lock and stays on one vCPU."""
    import zlib

    return np.frombuffer(zlib.compress(os.urandom(400_000), 6)[:64], "uint8").astype("float32")


def serial_interleave() -> Any:
    """Eight sources read in turns on one thread, each element some work."""
    import tensorflow as tf

    def source(number: Any) -> Any:
        def work(index: Any) -> Any:
            square = tf.fill((120, 120), tf.cast(index + number, tf.float32))
            return tf.reduce_sum(tf.math.sin(square) * tf.math.exp(-square))

        return tf.data.Dataset.range(1 << 40).map(work)

    data = tf.data.Dataset.range(8).interleave(source, cycle_length=8, deterministic=True)
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return data.batch(32).prefetch(2).with_options(options)


def tiny() -> Any:
    """Elements of one number, handed on one by one by one thread."""
    import tensorflow as tf

    data = tf.data.Dataset.range(1 << 40).filter(lambda x: x % 7 > 0).map(lambda x: x + 1)
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return data.batch(64).prefetch(2).with_options(options)


def batch_bound() -> Any:
    """Elements of 8 MB that cost nothing to make; one thread copies them into batches."""
    import tensorflow as tf

    element = tf.zeros((2000, 1000), tf.float32)
    data = tf.data.Dataset.from_tensors(element).cache().repeat()
    return data.batch(16).prefetch(2)


def transfer() -> Iterator[Any]:
    """Batches that are ready, and a copy to the device for each that takes long."""
    import jax

    ready = np.random.default_rng(0).random((64, 512, 512), "float32")
    while True:
        yield jax.block_until_ready([jax.device_put(ready + i) for i in range(1)])[0]


def fast() -> Any:
    """Much faster than the device."""
    import tensorflow as tf

    return tf.data.Dataset.range(1 << 40).batch(32).map(lambda x: x + 1).prefetch(2)


def slow_start() -> Any:
    """A shuffle buffer that takes seconds to fill, and is fast from then on."""
    import tensorflow as tf

    def work(index: Any) -> Any:
        return tf.cond(index < 300, lambda: tf.py_function(wait, [index], tf.int64), lambda: index)

    def wait(index: Any) -> Any:
        time.sleep(0.02)
        return index

    data = tf.data.Dataset.range(1 << 40).map(work).shuffle(300)
    return data.map(lambda x: tf.ensure_shape(x, ())).batch(8).prefetch(2)


class Items:
    """A data set of PyTorch's kind: anything with a length and items."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def _loader(function: Any, workers: int) -> Any:
    import torch.utils.data

    data: Any = Items(function)
    return torch.utils.data.DataLoader(data, batch_size=16, num_workers=workers)


def torch_sleeps() -> Any:
    return _loader(nap, 4)


def torch_alone() -> Any:
    """One process, work outside the lock."""
    return _loader(matrices, 0)


def torch_one_worker() -> Any:
    return _loader(matrices, 1)


def torch_workers() -> Any:
    """As many processes as there are vCPUs, all at work."""
    return _loader(matrices, len(os.sched_getaffinity(0)))


def torch_python() -> Any:
    """One process, work inside the lock."""
    return _loader(loop, 0)


def _grain(function: Any, threads: int) -> Any:
    import grain

    data = grain.MapDataset.range(MANY).map(function).batch(16)
    return data.to_iter_dataset(grain.ReadOptions(num_threads=threads))


def grain_python() -> Any:
    return _grain(loop, 16)


def grain_sleeps() -> Any:
    return _grain(nap, 4)


def grain_works() -> Any:
    return _grain(matrices, 4)


def iterable_sleeps() -> Iterator[Any]:
    while True:
        yield np.stack([nap(index) for index in range(8)])


def iterable_works() -> Iterator[Any]:
    while True:
        yield np.stack([matrices(index) for index in range(8)])


def iterable_bursts() -> Iterator[Any]:
    """One batch in forty takes as long as thirty others."""
    number = 0
    while True:
        number += 1
        time.sleep(0.3 if number % 40 == 0 else 0.01)
        yield np.zeros((8, 8), "float32")
