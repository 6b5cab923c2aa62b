"""What the pipelines read, made on this machine, and the way to leave one of their stages out."""

import bz2
import gzip
import io
import itertools
import os
import re
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

WITHOUT = "TPUCTL_BENCH_WITHOUT"
FOLDER = "TPUCTL_BENCH_INPUTS"
PHOTOS, CLASSES, WIDTH, HEIGHT = 64, 4, 500, 375


def is_left_out(name: str) -> bool:
    """Whether the suite measures what the pipeline costs without this stage."""
    return os.environ.get(WITHOUT) == name


def stage(instead: Callable[..., Any]) -> Callable[[Any], Any]:
    """Mark a function as a stage; `instead` hands on what was computed before."""
    return lambda function: instead if is_left_out(function.__name__) else function


def photograph(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A picture with the structure of a photograph: soft shapes, edges and noise."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    picture = np.zeros((height, width, 3))
    for _ in range(12):
        phase, across, down = random.random(3) * (6.28, 0.1, 0.1)
        picture += random.random(3) * np.sin(phase + across * columns + down * rows)[..., None]
    picture += 2.0 * ((columns - width / 2) ** 2 + (rows - height / 2) ** 2 < 9000)[..., None]
    picture += random.normal(0, 0.15, picture.shape)
    low, high = picture.min(), picture.max()
    return ((picture - low) / (high - low) * 255).astype("uint8")


def folder() -> Path:
    """Where everything is kept; the suite names it, a run by hand has its own."""
    named = os.environ.get(FOLDER)
    place = Path(named) if named else Path(tempfile.gettempdir()) / "tpuctl-bench-inputs"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """A file or folder that is complete, since it gets its name last."""
    place = folder() / name
    if not place.exists():
        new = place.with_name(f"{name}.{os.getpid()}")
        write(new)
        new.replace(place)
    return place


def _encoded(picture: np.ndarray, kind: str = "jpeg") -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(picture).save(content, kind, quality=90)
    return content.getvalue()


def photo_folder() -> Path:
    """JPEGs of 500 by 375 pixels, a folder for each class."""

    def write(place: Path) -> None:
        for index in range(PHOTOS):
            file = place / f"class_{index % CLASSES}" / f"{index:04}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_encoded(photograph(index)))

    return _made("photos", write)


def photo_paths() -> list[str]:
    return sorted(map(str, photo_folder().rglob("*.jpg")))


def _crc(content: bytes) -> bytes:
    """The masked checksum of a TFRecord (CRC-32C)."""
    value = 0xFFFFFFFF
    for byte in content:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _row(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_row(value) for value in range(256)]


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _crc(length) + content + _crc(content)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _example(**features: bytes | int | list[bytes] | np.ndarray) -> bytes:
    """A tf.train.Example without TensorFlow."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes | list):
            values = value if isinstance(value, list) else [value]
            feature = _field(1, b"".join(_field(1, each) for each in values))
        elif isinstance(value, int) or value.dtype == int:
            numbers = np.atleast_1d(value).tolist()
            feature = _field(3, _field(1, b"".join(map(_varint, numbers))))
        else:
            feature = _field(2, _field(1, value.astype("<f4").tobytes()))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def photo_records(shards: int = 4) -> list[str]:
    """TFRecord shards of the photographs as tf.train.Examples, as ImageNet is kept."""
    contents = [Path(path).read_bytes() for path in photo_paths()]

    def write(place: Path) -> None:
        place.mkdir()
        for shard in range(shards):
            lines = [
                _record(_example(image=content, label=index % CLASSES))
                for index, content in enumerate(contents)
                if index % shards == shard
            ]
            (place / f"train-{shard:05}.tfrecord").write_bytes(b"".join(lines))

    return sorted(map(str, _made("records", write).glob("*.tfrecord")))


def small_records() -> list[str]:
    """PNGs of 32 by 32 pixels in TFRecord shards, as TensorFlow Datasets keeps CIFAR-10."""

    def write(place: Path) -> None:
        place.mkdir()
        pictures = [_encoded(photograph(seed, 32, 32), "png") for seed in range(64)]
        for shard in range(4):
            lines = [_record(_example(image=each, label=i % 10)) for i, each in enumerate(pictures)]
            (place / f"cifar-{shard}.tfrecord").write_bytes(b"".join(lines * 8))

    return sorted(map(str, _made("small", write).glob("*.tfrecord")))


def packed_records() -> list[str]:
    """GZIP TFRecord shards of 600 floats an example, as features of videos are kept."""

    def write(place: Path) -> None:
        place.mkdir()
        random = np.random.default_rng(0)
        for shard in range(4):
            lines = [
                _record(_example(values=random.random(600).round(2), label=i)) for i in range(200)
            ]
            (place / f"features-{shard}.gz").write_bytes(gzip.compress(b"".join(lines), 6))

    return sorted(map(str, _made("packed", write).glob("*.gz")))


def frame_records() -> list[str]:
    """TFRecord shards of videos, each of 32 JPEG frames of 200 by 150 pixels."""

    def write(place: Path) -> None:
        place.mkdir()
        for shard in range(4):
            lines = []
            for index in range(4 * shard, 4 * shard + 4):
                first = photograph(index, 150, 200)
                frames = [_encoded(np.roll(first, 2 * number, 1)) for number in range(32)]
                lines.append(_record(_example(frames=frames, label=index)))
            (place / f"videos-{shard}.tfrecord").write_bytes(b"".join(lines))

    return sorted(map(str, _made("frames", write).glob("*.tfrecord")))


def masked_records() -> list[str]:
    """TFRecord shards of masked sentences, as BERT's pre-training data is kept."""

    def write(place: Path) -> None:
        place.mkdir()
        random = np.random.default_rng(0)
        for shard in range(4):
            lines = [
                _record(_example(
                    input_ids=random.integers(0, 30_000, 128), input_mask=np.ones(128, int),
                    segment_ids=np.arange(128) // 64, next_sentence_labels=1,
                    masked_lm_positions=np.sort(random.integers(0, 128, 20)),
                    masked_lm_ids=random.integers(0, 30_000, 20), masked_lm_weights=np.ones(20),
                ))
                for _ in range(500)
            ]  # fmt: skip
            (place / f"masked-{shard}.tfrecord").write_bytes(b"".join(lines))

    return sorted(map(str, _made("masked", write).glob("*.tfrecord")))


def genome_records() -> list[str]:
    """ZLIB TFRecord shards of one-hot DNA and the signals measured along it."""

    def write(place: Path) -> None:
        place.mkdir()
        random = np.random.default_rng(0)
        for shard in range(4):
            lines = []
            for _ in range(24):
                letters = np.eye(4, dtype="uint8")[random.integers(0, 4, 32_768)]
                signals = random.gamma(0.5, 1.0, (256, 16)).round(1).astype("float16")
                lines.append(
                    _record(_example(sequence=letters.tobytes(), target=signals.tobytes()))
                )
            (place / f"train-{shard}.tfr").write_bytes(zlib.compress(b"".join(lines)))

    return sorted(map(str, _made("genome", write).glob("*.tfr")))


def sentences() -> str:
    """A text file of 4,000 lines of 5 to 80 words."""

    def write(place: Path) -> None:
        random = np.random.default_rng(0)
        words = ["".join(map(chr, random.integers(97, 123, size))) for size in [3, 5, 7, 9] * 500]
        lines = (" ".join(random.choice(words, random.integers(5, 80))) for _ in range(4000))
        place.write_text("\n".join(lines))

    return str(_made("sentences.txt", write))


def table() -> str:
    """A CSV file of 20,000 rows with numbers and words."""

    def write(place: Path) -> None:
        random = np.random.default_rng(0)
        numbers, kinds = random.random((20_000, 6)), random.choice(["a", "b", "c"], (20_000, 2))
        rows = [
            ",".join([*map("{:.4f}".format, n), *k]) for n, k in zip(numbers, kinds, strict=True)
        ]
        place.write_text("\n".join(["f0,f1,f2,f3,f4,f5,sex,deck", *rows]))

    return str(_made("table.csv", write))


def sounds() -> list[str]:
    """One-second WAV files at 16 kHz, as in the speech commands."""

    def write(place: Path) -> None:
        place.mkdir()
        random = np.random.default_rng(0)
        for index in range(32):
            samples = (random.normal(0, 3000, 16_000)).astype("<i2").tobytes()
            head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ",
                               16, 1, 1, 16_000, 32_000, 2, 16, b"data", len(samples))  # fmt: skip
            (place / f"{index}.wav").write_bytes(head + samples)

    return sorted(map(str, _made("sounds", write).glob("*.wav")))


def tar_shards() -> list[str]:
    """Tar files of JPEGs and classes, as webdataset reads them."""

    def write(place: Path) -> None:
        place.mkdir()
        for shard in range(4):
            with tarfile.open(place / f"train-{shard:06}.tar", "w") as archive:
                for index, path in enumerate(photo_paths()[shard::4]):
                    for end, content in (("jpg", Path(path).read_bytes()), ("cls", b"1")):
                        entry = tarfile.TarInfo(f"{shard}-{index:05}.{end}")
                        entry.size = len(content)
                        archive.addfile(entry, io.BytesIO(content))

    return sorted(map(str, _made("tars", write).glob("*.tar")))


def caption_shards() -> list[str]:
    """Tar files of JPEGs of 1024 by 768 pixels and captions, as from a crawl of the web."""

    def write(place: Path) -> None:
        place.mkdir()
        lines = Path(sentences()).read_text().splitlines()
        for shard in range(4):
            with tarfile.open(place / f"{shard:05}.tar", "w") as archive:
                for index in range(8 * shard, 8 * shard + 8):
                    content = _encoded(photograph(index, 768, 1024))
                    for end, each in (("jpg", content), ("txt", lines[index].encode())):
                        entry = tarfile.TarInfo(f"{index:09}.{end}")
                        entry.size = len(each)
                        archive.addfile(entry, io.BytesIO(each))

    return sorted(map(str, _made("captions", write).glob("*.tar")))


def documents() -> list[str]:
    """Parquet files of texts of 1 to 12 lines, in row groups, as FineWeb is kept."""

    def write(place: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        place.mkdir()
        lines = Path(sentences()).read_text().splitlines()
        ends = np.cumsum(np.random.default_rng(0).integers(1, 13, 600))
        texts = ["\n".join(lines[a:b]) for a, b in itertools.pairwise(ends) if b < len(lines)]
        for index in range(2):
            rows = pyarrow.table({"text": texts[index::2]})
            pyarrow.parquet.write_table(rows, place / f"{index:05}.parquet", row_group_size=64)

    return sorted(map(str, _made("documents", write).glob("*.parquet")))


def wiki_dump() -> str:
    """A bz2 file of articles and talk pages with markup, as Wikipedia is published."""

    def write(place: Path) -> None:
        lines = Path(sentences()).read_text().splitlines()
        with bz2.open(place, "wt") as file:
            for index in range(0, len(lines), 4):
                text = f"'''{lines[index]}''' {lines[index + 1]}\n[[{lines[index + 2][:20]}]]"
                file.write(f"<page>\n<ns>{index // 4 % 2}</ns>\n<text>{text}\n")
                file.write(f"{lines[index + 3]} {{{{cite}}}}</text>\n</page>\n")

    return str(_made("pages.xml.bz2", write))


def scans() -> list[str]:
    """gzip HDF5 files of complex slices from four coils, as raw MRI data is kept."""

    def write(place: Path) -> None:
        import h5py

        place.mkdir()
        random = np.random.default_rng(0)
        for index in range(4):
            values = random.normal(size=(4, 4, 256, 256, 2)).astype("float32").view("complex64")
            with h5py.File(place / f"{index}.h5", "w") as file:
                file.create_dataset(
                    "kspace", data=values[..., 0].round(2), chunks=(1, 4, 256, 256),
                    compression="gzip",
                )  # fmt: skip

    return sorted(map(str, _made("scans", write).glob("*.h5")))


def clips() -> list[str]:
    """Motion JPEG files of 60 frames of 320 by 240 pixels."""

    def write(place: Path) -> None:
        import cv2

        place.mkdir()
        frames = [photograph(seed, 240, 320) for seed in range(6)]
        for index in range(8):
            code = cv2.VideoWriter.fourcc(*"MJPG")
            file = cv2.VideoWriter(str(place / f"{index}.avi"), code, 30, (320, 240))
            for number in range(60):
                file.write(np.roll(frames[(index + number // 20) % 6], number, 1))
            file.release()

    return sorted(map(str, _made("clips", write).glob("*.avi")))


def tokens() -> str:
    """A file of 16-bit token ids."""

    def write(place: Path) -> None:
        place.write_bytes(np.random.default_rng(0).integers(0, 50_000, 2**21, "uint16").tobytes())

    return str(_made("tokens.bin", write))


def packed_arrays() -> list[str]:
    """Arrays in zlib files, as medical volumes are kept."""

    def write(place: Path) -> None:
        place.mkdir()
        for index in range(8):
            volume = photograph(index, 256, 256).astype("<i2")
            (place / f"{index}.z").write_bytes(zlib.compress(volume.tobytes(), 6))

    return sorted(map(str, _made("arrays", write).glob("*.z")))


def make_all() -> None:
    """Make every file before anything is measured."""
    for make in (photo_records, small_records, packed_records, sentences, table, sounds):
        make()
    for make_other in (frame_records, masked_records, genome_records, tar_shards, tokens):
        make_other()
    packed_arrays()
    caption_shards()
    wiki_dump()
    for package, made in (("pyarrow", documents), ("h5py", scans), ("cv2", clips)):
        if find_spec(package):
            made()


_KEPT: list[Any] = []


def allow_torchvision() -> None:
    """Let torchvision built for CUDA be imported beside a PyTorch for CPUs.

    Its transforms need none of the operators that it cannot load there, but it asks for them all.
    """
    import torch

    package = Path(str(find_spec("torchvision").origin)).parent  # type: ignore[union-attr]
    if torch.version.cuda or "+cu" not in (package / "version.py").read_text() or _KEPT:
        return
    _KEPT.append(kept := torch.library.Library("torchvision", "DEF"))
    asked = (package / "_meta_registrations.py").read_text()
    for name in set(re.findall(r'(?:register_meta\("|register_fake\("torchvision::)(\w+)"', asked)):
        kept.define(f"{name}(Tensor x) -> Tensor")
