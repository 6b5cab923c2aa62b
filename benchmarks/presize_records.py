"""Records: our TFRecord writer against TensorFlow's, and what reading each encoding costs.

One process, CPU seconds, the candidates in turns; only ratios within one run mean anything.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks.presize_kernel import photographs
from tpuctl.datasets.formats._tfrecord import RecordWriter
from tpuctl.datasets.formats.records import Feature, encode_pieces
from tpuctl.datasets.images._pixels import encode_picture
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.readers import open_tf_dataset

ROUNDS = 7
RECORDS = 1000
BATCH, STEPS = 64, 30
ENCODINGS = ("raw", "yuv420", "jpeg", "png")
COPIES = 16


def in_turns(jobs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median CPU seconds of each job; the first round warms up and does not count."""
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    order = random.Random(1)
    for number in range(ROUNDS + 1):
        for name in order.sample(list(jobs), len(jobs)):
            start = time.process_time()
            jobs[name]()
            if number:
                spent[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def features_of(pixels: "np.ndarray[Any, Any]", encode: str) -> dict[str, Feature]:
    image = encode_picture(pixels, encode, 95)
    sizes = dict.fromkeys(("height", "width", "orig_height", "orig_width", "flags"), 224)
    return {"key": b"class-0/photograph.jpg", "label": 3, **sizes, "image": image}


def write_ours(features: dict[str, Feature], path: Path, *, sha256: bool) -> None:
    with path.open("wb") as file:
        writer = RecordWriter(file, sha256=sha256)
        for _ in range(RECORDS):
            writer.write(*encode_pieces(features))


def write_theirs(features: dict[str, Feature], path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(RECORDS):
            example = tf.train.Example()
            for name, value in features.items():
                if isinstance(value, bytes):
                    example.features.feature[name].bytes_list.value.append(value)
                else:
                    example.features.feature[name].int64_list.value.append(value)
            writer.write(example.SerializeToString())


def report_writers(folder: Path, pixels: "np.ndarray[Any, Any]") -> None:
    for encode in ("jpeg", "raw"):
        features = features_of(pixels, encode)
        spent = in_turns(
            {
                "ours": lambda f=features: write_ours(f, folder / "ours", sha256=False),  # type: ignore[misc]
                "hashed": lambda f=features: write_ours(f, folder / "hashed", sha256=True),  # type: ignore[misc]
                "theirs": lambda features=features: write_theirs(features, folder / "theirs"),  # type: ignore[misc]
            }
        )
        ratio, hashed = (spent["theirs"] / spent[name] for name in ("ours", "hashed"))
        print(
            f"records: writing {encode}, ours with the crc32c of the shard is {ratio:.2f}x "
            f"TensorFlow's (at least 1.5), with the manifest's sha256 as well {hashed:.2f}x"
        )


def report_readers(folder: Path, photos: Path) -> None:
    """Print examples per CPU second of tf.data, its shuffle and batching included."""
    datasets = {}
    for encode in ENCODINGS:
        presize(photos, folder / encode, PresizeOptions(encode=encode))  # type: ignore[arg-type]
        batches = open_tf_dataset(folder / encode, BATCH, planes=encode == "yuv420")
        datasets[encode] = batches.take(STEPS)

    def read(dataset: Any) -> None:
        for _ in dataset:
            pass

    spent = in_turns({name: lambda d=d: read(d) for name, d in datasets.items()})  # type: ignore[misc]
    for encode in ENCODINGS:
        rate, ratio = BATCH * STEPS / spent[encode], spent["jpeg"] / spent[encode]
        print(f"records: reading {encode:7} {rate:7,.0f} examples per CPU s, {ratio:.2f}x JPEG")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = photographs(folder / "made", progressive=False)
        photos = folder / "photos"
        photos.mkdir()
        for number, path in enumerate(made):
            picture = Image.open(path).convert("RGB").resize((336, 224))
            for copy in range(COPIES):
                picture.save(photos / f"{number}-{copy}.jpg", quality=95)
        report_writers(folder, np.asarray(picture.crop((0, 0, 224, 224))))
        report_readers(folder, photos)


if __name__ == "__main__":
    main()
