"""Small pipelines whose bottleneck is known because it was built in; targets for the suite.

    tpuctl profile run benchmarks/labelled_pipelines.py:torch_sleeps

What is made is written above each; the table of labels is in `profile_suite`.
"""

import os
import queue
import subprocess
import sys
import threading
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


def _numbers(function: Any, calls: int, pool: int | None = None) -> Any:
    """Numbers through one map as it is written, on a thread pool of its own where one is given."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.map_and_batch_fusion = False
    if pool:
        options.threading.private_threadpool_size = pool
    data = tf.data.Dataset.range(1 << 40).map(function, num_parallel_calls=calls)
    return data.batch(16).prefetch(2).with_options(options)


def _in_python(work: Any) -> Any:
    import tensorflow as tf

    def call(index: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(work, [index], tf.int64), ())

    return call


def small_pool() -> Any:
    """Work for many vCPUs, and one thread to do it."""
    import tensorflow as tf

    def work(index: Any) -> Any:
        square = tf.fill((300, 300), tf.cast(index, tf.float32))
        return tf.reduce_sum(tf.math.sin(square) * tf.math.exp(-square))

    return _numbers(work, calls=8, pool=1)


def enough_threads() -> Any:
    """Reads from far away, a thread for each that is allowed: more threads would not help."""

    def wait(index: Any) -> Any:
        time.sleep(0.03)
        return index

    return _numbers(_in_python(wait), calls=8, pool=8)


def fine_python() -> Any:
    """Calls that hold the interpreter lock for less than a millisecond, two at a time."""

    def count(index: Any) -> Any:
        total = 0
        for value in range(25_000):
            total += value
        return index + total % 1

    return _numbers(_in_python(count), calls=2)


def _from_threads(work: Any, threads: int) -> Iterator[Any]:
    """A loader of one's own: threads that fill a queue."""
    ready: queue.Queue[Any] = queue.Queue(16)

    def fill() -> None:
        while True:
            ready.put(work(0))

    for _ in range(threads):
        threading.Thread(target=fill, daemon=True).start()
    while True:
        yield np.stack([ready.get() for _ in range(8)])


def threads_that_sleep() -> Iterator[Any]:
    return _from_threads(nap, 4)


def threads_at_work() -> Iterator[Any]:
    return _from_threads(matrices, len(os.sched_getaffinity(0)))


def slow_pipe() -> Iterator[Any]:
    """A program that writes two megabytes a second, read to the rhythm of its writing."""
    write = (
        "import sys, time\nwhile True:\n sys.stdout.buffer.write(bytes(20_000))\n time.sleep(0.01)"
    )
    writer = subprocess.Popen([sys.executable, "-c", write], stdout=subprocess.PIPE)
    assert writer.stdout
    while content := writer.stdout.read(8 * 12_000):
        yield np.frombuffer(content, "uint8").reshape(8, -1)


def neighbours() -> Iterator[Any]:
    """Work for every vCPU, and twice as many busy processes that are none of ours."""
    cpus = len(os.sched_getaffinity(0))
    busy = f"import os\nwhile os.path.exists('/proc/{os.getpid()}'):\n for _ in range(10**6): pass"
    for _ in range(2 * cpus):
        # The shell ends at once, and what it started belongs to nobody here.
        subprocess.run(["/bin/sh", "-c", '"$0" -c "$1" &', sys.executable, busy], check=True)
    return _from_threads(matrices, cpus)


def torch_python_workers() -> Any:
    """Every process has a lock of its own."""
    return _loader(loop, len(os.sched_getaffinity(0)))
