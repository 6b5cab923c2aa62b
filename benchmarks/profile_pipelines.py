"""Pipelines whose bottleneck is known by construction, as targets for `tpuctl profile run`.

    tpuctl profile run benchmarks/profile_pipelines.py:jpeg

The photographs are those of scikit-learn, cut and scaled, in the folder TPUCTL_BENCH_PHOTOS or
made in a temporary one. TPUCTL_BENCH_CALLS sets the parallel calls; without it tf.data chooses.
"""

import io
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

SIZE, BATCH, PHOTOS = 224, 16, 48
WIDTH, HEIGHT = 1500, 1000
STAGES = ("read", "decode", "resize", "augment")


def make_photos(
    folder: Path, count: int = PHOTOS, width: int = WIDTH, height: int = HEIGHT
) -> Path:
    """Write camera-like JPEGs: parts of two photographs, scaled, with sensor noise."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    sources = load_sample_images().images
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        photo = sources[index % len(sources)]
        top, left = (int(random.integers(0, side // 3)) for side in photo.shape[:2])
        part = photo[top : top + photo.shape[0] // 2, left : left + photo.shape[1] // 2]
        large = tf.image.resize(part, (height, width), method="bicubic").numpy()
        noisy = large + random.normal(0, 4, (height, width, 1))
        pixels = noisy.clip(0, 255).astype("uint8")
        content = tf.io.encode_jpeg(pixels, quality=90).numpy()
        (folder / f"{index:04}.jpg").write_bytes(content)
    return folder


def photos() -> list[str]:
    """Name the photographs, making them first where there are none."""
    place = os.environ.get("TPUCTL_BENCH_PHOTOS")
    folder = Path(place) if place else Path(tempfile.gettempdir()) / "tpuctl-bench-photos"
    if not any(folder.glob("*.jpg")):
        make_photos(folder)
    return [str(path) for path in sorted(folder.glob("*.jpg"))]


def read(path: Any) -> Any:
    return tf.io.read_file(path)


def slow_read(path: Any) -> Any:
    """Read like from a distant store: 20 ms in which nothing runs."""

    def wait(name: bytes) -> bytes:
        time.sleep(0.02)
        return Path(name.decode()).read_bytes()

    return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string), ())


def decode(content: Any) -> Any:
    return tf.io.decode_jpeg(content, channels=3)


def resize(image: Any) -> Any:
    return tf.image.resize(image, (SIZE, SIZE))


def augment(image: Any) -> Any:
    return tf.image.random_brightness(tf.image.random_flip_left_right(image), 25.0)


def heavy_augment(image: Any) -> Any:
    """Jitter hue and saturation, then blur."""
    image = tf.image.random_flip_left_right(image) / 255.0
    image = tf.image.random_saturation(tf.image.random_hue(image, 0.1), 0.7, 1.3)
    kernel = tf.ones((7, 7, 3, 1)) / 49.0
    return tf.nn.depthwise_conv2d(image[None], kernel, (1, 1, 1, 1), "SAME")[0]


def python_augment(image: Any) -> Any:
    """Change the colours in a Python loop, which holds the interpreter lock."""

    def shift(pixels: np.ndarray) -> np.ndarray:
        total = 0
        for value in range(150_000):
            total += value
        return (pixels + total % 7).astype("float32")

    return tf.ensure_shape(tf.numpy_function(shift, [image], tf.float32), (SIZE, SIZE, 3))


def build(read_function: Any = read, augment_function: Any = augment) -> Any:
    calls = int(os.environ.get("TPUCTL_BENCH_CALLS", tf.data.AUTOTUNE))
    dataset = tf.data.Dataset.from_tensor_slices(photos()).repeat()
    for function in (read_function, decode, resize, augment_function):
        dataset = dataset.map(function, num_parallel_calls=calls)
    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = False
    return dataset.batch(BATCH).prefetch(2).with_options(options)


def jpeg() -> Any:
    return build()


def heavy() -> Any:
    return build(augment_function=heavy_augment)


def python() -> Any:
    return build(augment_function=python_augment)


def slowio() -> Any:
    return build(read_function=slow_read)


def slowio_wide() -> Any:
    """Sixteen calls allowed, but the default thread pool."""
    os.environ["TPUCTL_BENCH_CALLS"] = "16"
    return build(read_function=slow_read)


def serial() -> Any:
    """Everything on one thread, with a prefetch at the end."""
    dataset = tf.data.Dataset.from_tensor_slices(photos()).repeat()
    for function in (read, decode, resize, augment):
        dataset = dataset.map(function)
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return dataset.batch(BATCH).prefetch(2).with_options(options)


class Plain:
    """The same stages as functions in Python, without tf.data."""

    @staticmethod
    def read(path: str) -> bytes:
        return Path(path).read_bytes()

    @staticmethod
    def decode(content: bytes) -> Any:
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")

    @staticmethod
    def resize(image: Any) -> Any:
        return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)

    @staticmethod
    def augment(image: Any) -> Any:
        pixels = np.asarray(image, "float32")[:, ::-1]
        return np.clip(pixels * 1.1 - pixels.mean() * 0.1, 0, 255)


PYTHON_STAGES = {
    "read": Plain.read, "decode": Plain.decode, "resize": Plain.resize, "augment": Plain.augment,
}  # fmt: skip


def iterable() -> Any:
    """Batches from a generator."""
    while True:
        batch = []
        for path in photos():
            value: Any = path
            for function in PYTHON_STAGES.values():
                value = function(value)
            batch.append(value)
            if len(batch) == BATCH:
                yield np.stack(batch)
                batch = []


def bursty() -> Any:
    """Every 512th element takes a hundred times as long; the rest is fast."""
    heavy_work = tf.random.stateless_normal((700, 700), (1, 2))

    def work(index: Any) -> Any:
        def long() -> Any:
            return tf.while_loop(
                lambda i, x: i < 30, lambda i, x: (i + 1, tf.tanh(x @ heavy_work)), (0, heavy_work)
            )[1][0, 0]

        rare = tf.equal(index % 512, 0)
        return tf.cond(rare, long, lambda: tf.cast(index, tf.float32))

    return tf.data.Dataset.range(1 << 40).map(work).batch(BATCH).prefetch(2)


def tiny() -> Any:
    return tf.data.Dataset.range(1 << 40).map(lambda x: x + 1).filter(lambda x: x > 3).batch(BATCH)


def generator() -> Any:
    def numbers() -> Any:
        for number in range(1 << 40):
            total = 0
            for value in range(20_000):
                total += value
            yield number + total % 3

    spec = tf.TensorSpec((), tf.int64)
    return tf.data.Dataset.from_generator(numbers, output_signature=spec).batch(BATCH).prefetch(2)
