"""The plan of a presize: which images have which label and go into which shard.

The same plan gives the same bytes, on any machine and in any number of runs.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tpuctl.codec import open_regular, to_plain
from tpuctl.datasets.images.geometry import yuv420_bytes
from tpuctl.datasets.inputs import UNREADABLE, ImageFile
from tpuctl.datasets.models import PresizeOptions
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.printable import printable

# Few shards shuffle and read in parallel badly; many small ones waste opens.
_SPREAD = 4
_PICTURES_PER_SMALL_SHARD = 4
_PARALLEL = 16
_PICTURES_PER_PARALLEL_SHARD = 64

# Names and numbers of a record, and the tables at the head of every JPEG.
_RECORD_OVERHEAD_BYTES = 300
_JPEG_TABLES_BYTES = 700

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class PlannedPicture(NamedTuple):
    """One image of the plan with everything that determines its record."""

    key: str
    bytes: int
    version: int
    label: int

    @property
    def is_readable(self) -> bool:
        """Whether the file could be read when the plan was made."""
        return self.bytes != UNREADABLE


@dataclass(frozen=True)
class SiblingShard:
    """The same images at another size: the job of another plan, and its work folder."""

    id: str
    work: str
    options: dict[str, Any]


@dataclass(frozen=True)
class ShardJob:
    """The work of one shard: a pure function from these images to its bytes.

    `siblings` are made from the same images in the same pass.
    """

    id: str
    index: int
    of: int
    pictures: tuple[PlannedPicture, ...]
    siblings: tuple[SiblingShard, ...] = ()

    def name(self, crc32c: str, suffix: str) -> str:
        """The shard's file name, which ends with the checksum of its content."""
        return f"train-{self.index:05}-of-{self.of:05}-{crc32c}{suffix}"

    def to_json(self) -> dict[str, Any]:
        """Write it for a worker; not field by field, since there may be 100,000 images."""
        return {**vars(self), "siblings": to_plain(self.siblings)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "ShardJob":
        """Read what `to_json` wrote."""
        pictures = tuple(PlannedPicture(*fields) for fields in document["pictures"])
        siblings = tuple(SiblingShard(**sibling) for sibling in document["siblings"])
        return cls(document["id"], document["index"], document["of"], pictures, siblings)


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
        """How many images there are."""
        return sum(len(job.pictures) for job in self.jobs)


def plan_presize(
    pictures: Sequence[ImageFile], options: PresizeOptions, versions: dict[str, str]
) -> Plan:
    """Shuffle by seed, split evenly, and name the outcome; raises InvalidInputError."""
    labelling = assign_labels(pictures, options.labels)
    classes = labelling.classes
    planned = [
        PlannedPicture(picture.key, picture.bytes, picture.version, label)
        for picture, label in zip(pictures, labelling.labels, strict=True)
    ]
    recipe = _recipe(options, labelling.source)
    record_bytes = estimate_record_bytes(options)
    # Sizes that are made together need the same images in the same shards.
    sizes = options.sizes or (options.size,)
    largest = max(estimate_record_bytes(replace(options, size=size)) for size in sizes)
    count = count_shards(len(planned), largest * len(planned), options.shard_bytes)
    # By a hash: the same on every Python, and stable when other files come or go.
    salt = f"{options.seed}\0".encode()
    shuffled = sorted(
        planned, key=lambda each: hashlib.sha256(salt + os.fsencode(each.key)).digest()
    )
    base = _canonical({"options": recipe, "versions": versions, "classes": list(classes)})
    parts = (tuple(shuffled[a:b]) for a, b in split_evenly(len(planned), count))
    jobs = tuple(
        ShardJob(_digest(base + f"{index}/{count}\n".encode(), part)[:32], index, count, part)
        for index, part in enumerate(parts)
    )
    return Plan(
        _digest(base, planned),
        recipe,
        versions,
        classes,
        jobs,
        record_bytes * len(planned),
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
    """Guess one record's size: exact for raw and yuv420, generous for images otherwise.

    Camera images at 224x224 measured 0.56 bytes per pixel as JPEG of quality 95, 0.33 as WebP
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


def _digest(head: bytes, pictures: Iterable[PlannedPicture]) -> str:
    # A line at a time: all lines of a million images take more memory than the images do.
    digest = hashlib.sha256(head)
    for picture in pictures:
        digest.update(_canonical(picture))
    return digest.hexdigest()


def digest_of(recipe: Mapping[str, Any]) -> str:
    """Return a digest of a recipe."""
    return hashlib.sha256(_canonical(dict(recipe))).hexdigest()


def _canonical(value: Any) -> bytes:
    return _CANONICAL.encode(value).encode() + b"\n"


_PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_id", "key", "id")
_LABEL_COLUMNS = ("label", "class", "category", "target", "labels", "class_name", "label_id")
_MOST_BYTES = 1 << 30
_SHOWN = 3


@dataclass(frozen=True)
class Labelling:
    """The classes in order, each image's index among them (-1: no label), and what to say."""

    classes: tuple[str, ...]
    labels: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()


def assign_labels(pictures: Sequence[ImageFile], how: str) -> Labelling:
    """Label images by `folder`, by a file `*.csv`, not at all (`none`), or as fits (`auto`).

    `auto` takes the first-level folders as classes when every image is in one and there are at
    least two. Raises InvalidInputError and NotFoundError if that is impossible.
    """
    if how.lower().endswith(".csv"):
        return _by_file(pictures, Path(how))
    tops = [key.partition("/")[0] if "/" in key else None for key in (p.key for p in pictures)]
    folders = sorted({top for top in tops if top is not None}, key=os.fsencode)
    loose = next((p.key for p, top in zip(pictures, tops, strict=True) if top is None), None)
    if how == "folder" and loose is not None:
        raise InvalidInputError(
            f"--labels folder: {printable(loose)} is not in a class folder.",
            hint="Move it into the folder of its class, or use --labels none.",
        )
    if how == "none" or (how == "auto" and (loose is not None or len(folders) < 2)):
        return Labelling((), (-1,) * len(pictures), "none")
    index = {name: number for number, name in enumerate(folders)}
    return Labelling(tuple(folders), tuple(index[top] for top in tops if top is not None), "folder")


def _by_file(pictures: Sequence[ImageFile], path: Path) -> Labelling:
    """Match lines with images by path, or by a name or stem that only one image has."""
    rows = list(_read_rows(path))
    keys = {picture.key for picture in pictures}
    nicknames = _nicknames(pictures)
    named: dict[str, str] = {}
    strangers = []
    for line, name, label in rows:
        key = name if name in keys else nicknames.get(name)
        if key is None:
            strangers.append(name)
        elif named.setdefault(key, label) != label:
            raise InvalidInputError(
                f"{path}, line {line}: {printable(key)} is {label!r}, and {named[key]!r} above."
            )
    missing = [picture.key for picture in pictures if picture.key not in named]
    if missing:
        raise InvalidInputError(
            f"{path} has no line for {len(missing)} of {len(pictures)} images: {_some(missing)}.",
            hint="Give each a line `path,label`, the path as seen from SRC, or move them away.",
        )
    classes = _in_order(set(named.values()))
    index = {name: number for number, name in enumerate(classes)}
    notes = (f"No image matches {len(strangers)} of the lines in {path}: {_some(strangers)}.",)
    labels = tuple(index[named[picture.key]] for picture in pictures)
    return Labelling(classes, labels, "csv", notes if strangers else ())


def _read_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, path and label; a header is recognised by the names of its columns."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidInputError(f"{path} is too large for a list of labels.")
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        raise NotFoundError(f"The file of labels {path} does not exist.") from None
    except OSError as error:
        raise InvalidInputError(f"Could not read {path}: {error.strerror or error}.") from error
    columns: tuple[int, int] | None = None
    # Not by its lines: a name in quotes may have several.
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if not any(row):
                continue
            header = _header(row) if columns is None else None
            columns = columns or header or (0, 1)
            if header is None:
                yield reader.line_num, *_pick(row, columns, path, reader.line_num)
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line {reader.line_num}: {error}.") from error


def _header(row: list[str]) -> tuple[int, int] | None:
    words = [word.strip().lower() for word in row]
    places = next((words.index(name) for name in _PATH_COLUMNS if name in words), None)
    labels = next((words.index(name) for name in _LABEL_COLUMNS if name in words), None)
    return None if places is None or labels is None else (places, labels)


def _pick(row: list[str], columns: tuple[int, int], path: Path, line: int) -> tuple[str, str]:
    cells = [row[column].strip() if column < len(row) else "" for column in columns]
    if not all(cells):
        raise InvalidInputError(
            f"{path}, line {line}: expected a path and a label, not {','.join(row)!r}.",
            hint="Write `path,label`, or a header with columns of these names.",
        )
    return cells[0].removeprefix("./"), cells[1]


def _nicknames(pictures: Sequence[ImageFile]) -> dict[str, str]:
    """Map the file names and stems that lists use to keys, if they mean only one image."""
    names: dict[str, str | None] = {}
    for picture in pictures:
        path = PurePosixPath(picture.key)
        for name in {path.name, path.stem, str(path.with_suffix(""))}:
            names[name] = None if name in names else picture.key
    return {name: key for name, key in names.items() if key is not None}


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """Sort numbers as numbers, so that labels 0 to n-1 keep their values."""
    if all(label.isascii() and label.isdigit() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels, key=os.fsencode))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(printable(name) for name in names[:_SHOWN]) + more
