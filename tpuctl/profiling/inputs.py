"""What a folder for `profile run` holds: images, or shards that `data presize` wrote."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.codec import read_json
from tpuctl.datasets.images import file_type
from tpuctl.datasets.images.headers import memory_for_tensorflow
from tpuctl.datasets.images.memory import MAX_IMAGE_BYTES, memory_budget_bytes
from tpuctl.datasets.quarantine import BadImageError
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.printable import printable
from tpuctl.units import format_bytes

if TYPE_CHECKING:
    from tpuctl.datasets.manifest import DataSet, Shard

# As in `tpuctl.datasets.manifest`, which need not be loaded for images and functions.
MANIFEST, SCHEMA = "manifest.json", "tpuctl.dataset/"
TF_ENCODINGS = ("jpeg", "png", "raw", "yuv420")
# Enough for a sample: every file is opened once before the measurement.
MAX_PHOTOS = 20_000
# The end marker of a complete file; empty for formats without one.
ENDINGS = {"jpeg": b"\xff\xd9", "png": b"IEND", "gif": b"", "bmp": b""}
# Cameras append some metadata after the end marker of a JPEG.
TAIL_BYTES = 1024


@dataclass(frozen=True)
class ShardSet:
    """The complete shards of a data set, and those that are missing or damaged."""

    data_set: "DataSet"
    shards: "tuple[Shard, ...]"
    left_out: tuple[tuple[str, str], ...]

    @property
    def is_for_tf_data(self) -> bool:
        """Whether tf.data can read the shards."""
        encode = self.data_set.encode
        is_readable = self.data_set.format == "tfrecord" and encode in TF_ENCODINGS
        is_planar = encode in ("raw", "yuv420")
        return is_readable and (self.data_set.size is not None or not is_planar)


def is_shard_folder(folder: Path) -> bool:
    """Whether a folder has the manifest of a tpuctl data set."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("schema", "")).startswith(SCHEMA)


def read_shards(folder: Path) -> ShardSet:
    """Read a manifest and check that every shard it lists has its full length.

    Raises InvalidInputError for a manifest that cannot be used, and if no shard is usable.
    """
    # Loaded only for folders of shards.
    from tpuctl.datasets.manifest import load_pictures

    data_set = load_pictures(folder)
    good, bad = [], []
    for shard in data_set.shards:
        path = data_set.path(shard)
        size = path.stat().st_size if path.is_file() else None
        if size == shard.bytes and size:
            good.append(shard)
        else:
            reason = "missing" if size is None else f"{size:,} of {shard.bytes:,} bytes"
            bad.append((shard.name, reason))
    if not any(shard.records for shard in good):
        raise InvalidInputError(
            f"The data set in {folder} cannot be read: none of its {len(data_set.shards):,} shards "
            "is usable.",
            hint=data_set.how_to_verify(),
        )
    return ShardSet(data_set, tuple(good), tuple(bad))


@dataclass(frozen=True)
class Photo:
    """An image file. `is_complete` is False if it may have been cut off."""

    path: Path
    size_bytes: int
    format: str
    is_complete: bool


@dataclass(frozen=True)
class FoundPhotos:
    """The images below a folder, and the unusable image files with the reason."""

    photos: tuple[Photo, ...]
    left_out: tuple[tuple[str, str], ...]
    is_complete: bool


def find_photos(folder: Path, *, most: int = MAX_PHOTOS) -> FoundPhotos:
    """Find the images below a folder, at most `most` of them, in a stable order.

    Raises NotFoundError for a missing folder and InvalidInputError for one without images.
    """
    if not folder.is_dir():
        raise NotFoundError(f"The folder {folder} does not exist.")
    photos: list[Photo] = []
    left_out: list[tuple[str, str]] = []
    files = 0
    # TensorFlow decodes on every core at once.
    limit_bytes = min(MAX_IMAGE_BYTES, memory_budget_bytes() // (os.cpu_count() or 1))
    for path in _files(folder):
        files += 1
        found = _inspect(path, limit_bytes)
        if isinstance(found, Photo):
            photos.append(found)
        elif found:
            left_out.append((show_path(path, folder), found))
        if len(photos) == most:
            break
    if photos:
        return FoundPhotos(tuple(photos), tuple(left_out), is_complete=len(photos) < most)
    if left_out:
        first, reason = left_out[0]
        raise InvalidInputError(
            f"None of the {len(left_out):,} image files in {folder} can be used: "
            f"{first}: {reason}.",
            hint="Check the files: interrupted downloads leave files like these.",
        )
    raise InvalidInputError(
        f"No images found in {folder} ({files:,} files checked).",
        hint="Give a folder of images, a folder of tpuctl shards, or path.py:function.",
    )


def show_path(path: Path, folder: Path) -> str:
    """Name a file relative to the folder, in printable text."""
    return printable(os.path.relpath(path, folder))


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def _inspect(path: Path, limit_bytes: int) -> Photo | str | None:
    """Return the image, the reason why an image file cannot be used, or None for another file."""
    is_named_like_one = file_type.has_image_suffix(path.name)
    try:
        if not path.is_file():
            return "not a regular file" if is_named_like_one else None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size and (kind := file_type.sniff(file.read(file_type.HEAD_BYTES))):
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                    if why := _why_refused(data, kind, limit_bytes):
                        return why
                    tail = data[-TAIL_BYTES:]
                return Photo(path, size, kind, kind in ENDINGS and ENDINGS[kind] in tail)
    except OSError as error:
        return (error.strerror or str(error)).lower() if is_named_like_one else None
    if not is_named_like_one:
        return None
    return "no image inside" if size else "empty file"


def _why_refused(data: Any, kind: str, limit_bytes: int) -> str | None:
    """Return why a file must not be decoded; None if it may be."""
    if kind not in file_type.DECODABLE:
        return None
    try:
        needed = memory_for_tensorflow(data, kind)
    except BadImageError as bad:
        return bad.detail if bad.reason == "bomb" else f"damaged {kind.upper()}"
    if needed <= limit_bytes:
        return None
    return (
        f"decoding needs about {format_bytes(needed)}, the limit is {format_bytes(limit_bytes)}; "
        "presize it first"
    )
