"""The whole of a presize decided beforehand: the same plan gives the same bytes, whoever works."""

import hashlib
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from tpuctl.datasets.images.geometry import yuv420_bytes
from tpuctl.datasets.inputs import UNREADABLE, Input
from tpuctl.datasets.labels import assign_labels
from tpuctl.datasets.models import PresizeOptions

# Few shards shuffle and read in parallel badly; many small ones waste opens.
_SPREAD = 4
_PICTURES_PER_SMALL_SHARD = 4
_PARALLEL = 16
_PICTURES_PER_PARALLEL_SHARD = 64

# Names and numbers of a record, and the tables at the head of every JPEG.
_RECORD_OVERHEAD_BYTES = 300
_JPEG_TABLES_BYTES = 700

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class Entry(NamedTuple):
    """One picture of the plan with everything that decides about its record."""

    key: str
    bytes: int
    version: int
    label: int

    @property
    def readable(self) -> bool:
        """Whether the file could at least be looked at when the plan was made."""
        return self.bytes != UNREADABLE


@dataclass(frozen=True)
class Twin:
    """The same entries at another size: the job of another plan, and where it is worked on."""

    id: str
    work: str
    options: dict[str, Any]


@dataclass(frozen=True)
class ShardJob:
    """The work of one shard: a pure function from these entries to its bytes.

    `twins` are made of the same entries in the same pass.
    """

    id: str
    index: int
    of: int
    entries: tuple[Entry, ...]
    twins: tuple[Twin, ...] = ()

    @property
    def prefix(self) -> str:
        """The shard's name without the checksum that its content will give it."""
        return f"train-{self.index:05}-of-{self.of:05}"

    def name(self, crc32c: str, suffix: str) -> str:
        """The shard's file name: what it is followed by what is in it."""
        return f"{self.prefix}-{crc32c}{suffix}"


@dataclass(frozen=True)
class Plan:
    """Inputs, options and versions, and the shards they lead to."""

    id: str
    options: dict[str, Any]
    versions: dict[str, str]
    classes: tuple[str, ...]
    jobs: tuple[ShardJob, ...]
    estimated_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """How many inputs there are."""
        return sum(len(job.entries) for job in self.jobs)


def plan_presize(
    pictures: Sequence[Input], options: PresizeOptions, versions: dict[str, str]
) -> Plan:
    """Shuffle by seed, split evenly, and name the outcome; raises InvalidInputError."""
    labelling = assign_labels(pictures, options.labels)
    classes = labelling.classes
    entries = [
        Entry(picture.key, picture.bytes, picture.version, label)
        for picture, label in zip(pictures, labelling.labels, strict=True)
    ]
    recipe = _recipe(options, labelling.source)
    record_bytes = estimate_record_bytes(options)
    # Sizes that are made together need the same pictures in the same shards.
    largest = max(estimate_record_bytes(replace(options, size=size)) for size in _sizes(options))
    count = count_shards(len(entries), largest * len(entries), options.shard_bytes)
    shuffled = sorted(entries, key=lambda entry: _rank(entry.key, options.seed))
    base = _canonical({"options": recipe, "versions": versions, "classes": list(classes)})
    lines = {entry.key: _line(entry) for entry in entries}
    jobs = tuple(
        _job(base, index, count, shuffled[start:stop], lines)
        for index, (start, stop) in enumerate(split_evenly(len(entries), count))
    )
    return Plan(
        hashlib.sha256(b"".join((base, *lines.values()))).hexdigest(),
        recipe,
        versions,
        classes,
        jobs,
        record_bytes * len(entries),
        labelling.notes,
    )


def count_shards(images: int, total_bytes: int, shard_bytes: int) -> int:
    """Choose the number of shards: by size, but enough to shuffle and to read in parallel.

    Four from 16 images up (one per 4 below), sixteen from 1024 up (one per 64 below).
    """
    by_size = -(-total_bytes // shard_bytes)
    to_shuffle = min(_SPREAD, images // _PICTURES_PER_SMALL_SHARD)
    to_parallelise = min(_PARALLEL, images // _PICTURES_PER_PARALLEL_SHARD)
    return max(1, min(images, max(by_size, to_shuffle, to_parallelise)))


def split_evenly(total: int, parts: int) -> Iterable[tuple[int, int]]:
    """Cut 0..total into ranges whose lengths differ by at most one."""
    edges = [index * total // parts for index in range(parts + 1)]
    return pairwise(edges)


def estimate_record_bytes(options: PresizeOptions) -> int:
    """Guess one record's size: exact for raw and yuv420, generous for photographs otherwise.

    Camera photographs at 224x224 measured 0.56 bytes per pixel as JPEG of quality 95, 0.33 as WebP
    of quality 95, 1.8 as PNG.
    """
    height, width = options.size
    if options.mode == "short":
        width = width * 3 // 2
    if options.encode == "yuv420":
        return yuv420_bytes(height, width) + _RECORD_OVERHEAD_BYTES
    per_pixel = {"raw": 3.0, "png": 2.4}.get(options.encode) or _lossy_bytes_per_pixel(options)
    tables = _JPEG_TABLES_BYTES if options.encode == "jpeg" else 0
    return int(height * width * per_pixel) + tables + _RECORD_OVERHEAD_BYTES


def _lossy_bytes_per_pixel(options: PresizeOptions) -> float:
    share = 0.6 if options.encode == "webp" else 1.0
    for limit, per_pixel in ((85, 0.3), (90, 0.4), (95, 0.6), (98, 1.0)):
        if options.quality <= limit:
            return per_pixel * share
    return 2.0 * share


def _sizes(options: PresizeOptions) -> tuple[tuple[int, int], ...]:
    return options.sizes or (options.size,)


def _recipe(options: PresizeOptions, labels: str) -> dict[str, Any]:
    together = [list(size) for size in options.sizes]
    return {
        **({"sizes": together} if len(together) > 1 else {}),
        "size": list(options.size),
        "mode": options.mode,
        "fidelity": options.fidelity,
        "encode": options.encode,
        "format": options.format,
        "quality": options.quality if options.encode in ("jpeg", "webp") else None,
        "labels": labels,
        "shard_bytes": options.shard_bytes,
        "seed": options.seed,
    }


def _rank(key: str, seed: int) -> bytes:
    """Order by a hash: the same on every Python, and stable when other files come or go."""
    return hashlib.sha256(f"{seed}\0".encode() + os.fsencode(key)).digest()


def _job(
    base: bytes, index: int, count: int, entries: Sequence[Entry], lines: Mapping[str, bytes]
) -> ShardJob:
    parts = (base, f"{index}/{count}\n".encode(), *(lines[entry.key] for entry in entries))
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return ShardJob(digest[:32], index, count, tuple(entries))


def _line(entry: Entry) -> bytes:
    return _canonical(entry)


def digest_of(recipe: Mapping[str, Any]) -> str:
    """Name what is asked for by its content."""
    return hashlib.sha256(_canonical(dict(recipe))).hexdigest()


def _canonical(value: Any) -> bytes:
    return _CANONICAL.encode(value).encode() + b"\n"


# Two-sided 95 % of Student's t for 1 to 10 degrees of freedom, then every tenth; then 1.96.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_T95_BY_TENS = (2.09, 2.05, 2.02, 2.01, 2.00)


@dataclass(frozen=True)
class Interval:
    """A total: most likely, and the ends of its 95 % interval."""

    low: float
    mean: float
    high: float


def predict_total(sample: Sequence[float], count: int) -> Interval:
    """Predict the sum over `count` items of which `sample` is a part; it counts as it is.

    Mean ± t · s/√n of Student's distribution for what is not sampled yet.
    """
    known, left = sum(sample), max(0, count - len(sample))
    mean = known / len(sample)
    if len(sample) < 2:
        return Interval(known, known + left * mean, known + left * 2 * mean)
    spread = statistics.stdev(sample) / math.sqrt(len(sample)) * _t95(len(sample) - 1)
    low, high = max(0.0, mean - spread), mean + spread
    return Interval(known + left * low, known + left * mean, known + left * high)


def _t95(freedom: int) -> float:
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    tens = freedom // 10 - 1
    return _T95[-1] if tens < 1 else _T95_BY_TENS[tens - 1] if tens <= 5 else 1.96
