"""tf.data pipelines from folders and user functions, and TensorFlow's profiler."""

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpuctl.datasets.images.geometry import yuv420_to_rgb
from tpuctl.errors import InvalidInputError
from tpuctl.profiling.frameworks._tf_changes import copying_stages
from tpuctl.profiling.frameworks._tf_graph import (
    chain_of,
    does_work,
    examples_in,
    gives_batches,
    read_snapshot,
    settings_of,
    threads_of,
    trunk_of,
)
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.frameworks.threads import sampled_calls
from tpuctl.profiling.inputs import Photo, ShardSet, find_photos, read_shards, show_path
from tpuctl.profiling.measure.host_trace import ProfilerError
from tpuctl.profiling.models import Input, Kind
from tpuctl.profiling.request import Target
from tpuctl.profiling.windows import CopyingStage, IsolatedStage, NodeCost

AUTOTUNE = tf.data.AUTOTUNE
MOST_LISTED = 100
# Decoding doubtful files must not take longer than the measurement itself.
MOST_DECODED_FIRST = 200
SAMPLE = 4
GROUP, LEAST_GROUPS = 32, 10
# Operations and iterators, without the runtime's internals.
HOST_LEVEL = 2


@dataclass
class TfDataSource(Source):
    """A tf.data pipeline, observed through the runtime's model."""

    dataset: Any = None

    def count(self, element: Any) -> int:
        """Count the examples in an element."""
        return int(tf.nest.flatten(element)[0].shape[0]) if self.batched else 1

    def isolate(self, seconds: float, *, cpu_s: Callable[[], float]) -> tuple[IsolatedStage, ...]:
        """Measure CPU per example of ever longer parts of the pipeline, source first."""
        options, measured = self.dataset.options(), []
        trunk = trunk_of(self.dataset)
        for depth in range(len(trunk) - 1, -1, -1):
            if depth < len(trunk) - 1 and not does_work(trunk[depth]):
                continue
            batched = bool(self.batched) and gives_batches(trunk[depth])
            group = _group_of(trunk[depth]) if self.batched and not batched else 1
            part = trunk[depth].shard(group, 0) if group > 1 else trunk[depth]
            part = part.prefetch(2).with_options(options)
            measured.append(IsolatedStage(depth, self._cost(part, batched, group, seconds, cpu_s)))
        return tuple(measured)

    def copying(self, nodes: Sequence[NodeCost]) -> tuple[CopyingStage, ...]:
        """Measure the batch stages alone."""
        return copying_stages(nodes, self.dataset.options(), threads=self.threadpool_size)

    def _cost(
        self, part: Any, batched: bool, group: int, seconds: float, cpu_s: Callable[[], float]
    ) -> float:
        examples, iterator = 0, iter(part)
        next(iterator, None)
        start, before_s, own_s = time.perf_counter(), cpu_s(), time.thread_time()
        while time.perf_counter() - start < seconds:
            element = next(iterator, None)
            if element is None:
                iterator = iter(part)
                continue
            examples += int(tf.nest.flatten(element)[0].shape[0]) if batched else group
        spent_s = cpu_s() - before_s - (time.thread_time() - own_s)
        return max(0.0, spent_s) / max(1, examples)


def _group_of(dataset: Any) -> int:
    """Of how many single elements to take one, so that they are passed on as fast as to a batch.

    A loop in Python takes them so slowly that the threads of a small map cost a third.
    """
    elements = int(dataset.cardinality())
    return GROUP if elements < 0 or elements >= LEAST_GROUPS * GROUP else 1


def open_folder(target: Target, *, batch_size: int, image_size: int) -> TfDataSource:
    """Build the pipeline for a folder of images or shards.

    Raises InvalidInputError if it cannot be read.
    """
    folder = Path(target.place)
    if target.kind == "photos":
        return _source("photos", *_photos(folder, batch_size, image_size))
    return _source("shards", *_shards(read_shards(folder), batch_size, image_size))


def open_dataset(dataset: Any) -> TfDataSource:
    """Open a data set that a user's function returned."""
    return _source("tf.data", dataset, Input(0, examples_in(dataset), 0))


def _source(kind: Kind, dataset: Any, found: Input) -> TfDataSource:
    options, chain = dataset.options(), chain_of(dataset)
    return TfDataSource(
        kind=kind,
        dataset=dataset,
        chain=chain,
        batched=gives_batches(dataset),
        threadpool_size=threads_of(options),
        input=found,
        settings=settings_of(options),
        opened=lambda: iter(dataset),
        snapshot=read_snapshot,
        **sampled_calls(chain),
    )


def _photos(folder: Path, batch_size: int, size: int) -> tuple[Any, Input]:
    found = find_photos(folder)
    photos, undecodable = _sort_out(found.photos, folder)
    left_out = (*found.left_out, *undecodable)
    if not photos:
        raise InvalidInputError(
            f"None of the {len(left_out):,} images in {folder} can be decoded: "
            f"{left_out[0][0]}: {left_out[0][1]}.",
            hint="Check the files: interrupted downloads leave files like these.",
        )
    files = [os.fsencode(photo.path) for photo in photos]
    random.Random(0).shuffle(files)  # noqa: S311 (repeatable)

    def read(path: Any) -> Any:
        return tf.io.read_file(path)

    def decode(content: Any) -> Any:
        return tf.io.decode_image(content, channels=3, expand_animations=False)

    def resize(image: Any) -> Any:
        return tf.image.resize(image, (size, size))

    dataset = tf.data.Dataset.from_tensor_slices(files, name="read").repeat(name="read")
    dataset = dataset.map(read, num_parallel_calls=AUTOTUNE, name="read")
    dataset = dataset.map(decode, num_parallel_calls=AUTOTUNE, name="decode")
    dataset = dataset.ignore_errors(name="decode")
    dataset = dataset.map(resize, num_parallel_calls=AUTOTUNE, name="resize")
    notes = () if found.is_complete else (f"Only the first {len(files):,} images were used.",)
    sizes = sum(photo.size_bytes for photo in photos)
    summary = Input(len(files), len(files), sizes, left_out[:MOST_LISTED], len(left_out), notes)
    return _finish(dataset, batch_size), summary


def _shards(shards: ShardSet, batch_size: int, size: int) -> tuple[Any, Input]:
    features = {"image": tf.io.FixedLenFeature([], tf.string)}
    encode, fixed = shards.data_set.encode, shards.data_set.size

    def decode(record: Any) -> Any:
        image = tf.io.parse_single_example(record, features)["image"]
        if fixed and encode == "raw":
            return tf.reshape(tf.io.decode_raw(image, tf.uint8), (*fixed, 3))
        if fixed and encode == "yuv420":
            planes = tf.io.decode_raw(image, tf.uint8)[None]
            rgb = yuv420_to_rgb(planes, *fixed, xp=tf.experimental.numpy)
            return tf.cast(tf.round(rgb[0]), tf.uint8)
        pixels = tf.io.decode_image(image, channels=3, expand_animations=False)
        if fixed:
            return tf.ensure_shape(pixels, (*fixed, 3))
        return tf.image.resize_with_crop_or_pad(pixels, size, size)

    paths = [os.fsencode(shards.data_set.path(shard)) for shard in shards.shards]
    dataset = tf.data.Dataset.from_tensor_slices(paths, name="read").repeat(name="read")
    dataset = dataset.interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(16, len(paths)),
        num_parallel_calls=AUTOTUNE,
        deterministic=False,
        name="read",
    )
    dataset = dataset.map(decode, num_parallel_calls=AUTOTUNE, name="decode")
    dataset = dataset.ignore_errors(name="decode")
    left_out = shards.left_out
    records, size_bytes = (sum(getattr(s, n) for s in shards.shards) for n in ("records", "bytes"))
    summary = Input(len(paths), records, size_bytes, left_out[:MOST_LISTED], len(left_out))
    return _finish(dataset, batch_size), summary


def _finish(dataset: Any, batch_size: int) -> Any:
    def augment(image: Any) -> Any:
        image = tf.image.random_flip_left_right(tf.cast(image, tf.float32))
        return tf.image.random_brightness(image, 0.1 * 255) / 255.0

    dataset = dataset.map(augment, num_parallel_calls=AUTOTUNE, name="augment")
    dataset = dataset.batch(batch_size, drop_remainder=True, name="batch")
    dataset = dataset.prefetch(AUTOTUNE, name="prefetch")
    options = tf.data.Options()
    # If the batch were fused with the last map, it would have no cost of its own.
    options.experimental_optimization.map_and_batch_fusion = False
    return dataset.with_options(options)


def _sort_out(photos: tuple[Photo, ...], folder: Path) -> tuple[list[Photo], list[tuple[str, str]]]:
    """Return the images that can be decoded, and the others with the reasons.

    Tries incomplete files and a sample of the rest; all of them, if one of the sample fails.
    """
    sample = photos[:: max(1, len(photos) // SAMPLE)]
    failed = {p.path: why for p in sample if (why := _why_undecodable(p))}
    doubtful = [p for p in photos if p.path not in failed and (failed or not p.is_complete)]
    for photo in doubtful[:MOST_DECODED_FIRST]:
        if why := _why_undecodable(photo):
            failed[photo.path] = why
    good = [photo for photo in photos if photo.path not in failed]
    return good, [(show_path(path, folder), why) for path, why in failed.items()]


def _why_undecodable(photo: Photo) -> str | None:
    try:
        tf.io.decode_image(photo.path.read_bytes(), channels=3, expand_animations=False)
    except (tf.errors.OpError, OSError):
        kind = photo.format.upper()
        return f"damaged {kind}" if kind in ("JPEG", "PNG") else f"TensorFlow cannot decode {kind}"
    return None


class TensorFlowProfiler:
    """A `Profiler` for tf.data pipelines in this process."""

    def __init__(self) -> None:
        self._folder = Path()

    def start(self, folder: Path) -> None:
        """Start tracing the host, without devices and Python functions."""
        self._folder = folder
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=HOST_LEVEL, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(str(folder), options=options)
        except tf.errors.AlreadyExistsError as error:
            raise ProfilerError("the program is already running a profiler.") from error
        except (tf.errors.OpError, AttributeError, RuntimeError, TypeError, OSError) as error:
            raise ProfilerError(f"TensorFlow's profiler did not start: {error}") from error

    def stop(self) -> Path:
        """Stop tracing and return the file that was written."""
        try:
            tf.profiler.experimental.stop()
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            raise ProfilerError(f"TensorFlow's profiler failed: {error}") from error
        found = next(self._folder.rglob("*.xplane.pb"), None)
        if found is None:
            raise ProfilerError(f"TensorFlow's profiler wrote nothing to {self._folder}.")
        return found
