"""Read the manifest of a folder of shards that `tpuctl data presize` wrote."""

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError, NotFoundError

MANIFEST = "manifest.json"
SCHEMA = "tpuctl.dataset/"
VERSION = 1
TF_ENCODINGS = ("jpeg", "png", "raw", "yuv420")


@dataclass(frozen=True)
class ShardSet:
    """The shards of a data set that are there in full, and those that are not."""

    folder: Path
    encode: str
    format: str
    paths: tuple[Path, ...]
    records: int
    size_bytes: int
    height: int
    width: int
    fixed_size: bool
    left_out: tuple[tuple[str, str], ...]

    @property
    def is_for_tf_data(self) -> bool:
        """Whether tf.data can read them."""
        is_planar = self.encode in ("raw", "yuv420")
        readable = self.format == "tfrecord" and self.encode in TF_ENCODINGS
        return readable and (self.fixed_size or not is_planar)


def is_shard_folder(folder: Path) -> bool:
    """Whether a folder says of itself that it holds tpuctl shards."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("schema", "")).startswith(SCHEMA)


def read_shards(folder: Path) -> ShardSet:
    """Read a manifest and check that every shard it lists has its full length.

    Raises InvalidInputError for a manifest that is damaged or of a newer version, and where no
    shard is usable.
    """
    place = folder / MANIFEST
    manifest = json.loads(place.read_bytes())
    version = str(manifest["schema"]).removeprefix(SCHEMA)
    if version != str(VERSION):
        raise InvalidInputError(
            f"{place} has version {version}; this tpuctl reads version {VERSION}.",
            hint="pip install --upgrade tpuctl",
        )
    try:
        return _shard_set(folder, manifest["options"], manifest["shards"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInputError(
            f"The manifest {place} is damaged: {type(error).__name__}: {error}.",
            hint=f"tpuctl data verify {shlex.quote(str(folder))}",
        ) from error


def _shard_set(folder: Path, options: dict[str, Any], listed: list[dict[str, Any]]) -> ShardSet:
    good, bad = [], []
    for shard in listed:
        path = folder / Path(str(shard["name"])).name
        size = path.stat().st_size if path.is_file() else None
        if size == int(shard["bytes"]) and size:
            good.append((path, int(shard["records"]), size))
        else:
            reason = "missing" if size is None else f"{size:,} of {int(shard['bytes']):,} bytes"
            bad.append((path.name, reason))
    if not sum(records for _, records, _ in good):
        raise InvalidInputError(
            f"No shard in {folder} is usable ({len(bad):,} of {len(listed):,} damaged or missing).",
            hint=f"tpuctl data verify {shlex.quote(str(folder))}",
        )
    return ShardSet(
        folder=folder,
        encode=str(options["encode"]),
        format=str(options["format"]),
        paths=tuple(path for path, _, _ in good),
        records=sum(records for _, records, _ in good),
        size_bytes=sum(size for _, _, size in good),
        height=int(options["size"][0]),
        width=int(options["size"][1]),
        fixed_size=options.get("mode") != "short",
        left_out=tuple(bad),
    )


EXTENSIONS = (".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".heic")
MAX_PHOTOS = 20_000
TAIL_BYTES = 1024


@dataclass(frozen=True)
class Photo:
    """A file that begins like an image. `whole` is False where its end is missing."""

    path: Path
    size_bytes: int
    format: str
    whole: bool


@dataclass(frozen=True)
class Found:
    """The photographs below a folder and the image files that cannot be used."""

    photos: tuple[Photo, ...]
    left_out: tuple[tuple[str, str], ...]
    complete: bool


def find_photos(folder: Path, *, most: int = MAX_PHOTOS) -> Found:
    """Look for photographs below a folder, at most `most` of them, in a stable order.

    Raises NotFoundError for a missing folder and InvalidInputError for one without images.
    """
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder {folder} to profile.")
    photos: list[Photo] = []
    left_out: list[tuple[str, str]] = []
    files = 0
    for path in _files(folder):
        files += 1
        found = _look_at(path)
        if isinstance(found, Photo):
            photos.append(found)
        elif found:
            left_out.append((show_path(path, folder), found))
        if len(photos) == most:
            break
    if not photos:
        raise InvalidInputError(_nothing(folder, files, left_out), hint=_hint(left_out))
    return Found(tuple(photos), tuple(left_out), complete=len(photos) < most)


def show_path(path: Path, folder: Path) -> str:
    """Name a file relative to the folder, in text that can be printed and sent as JSON."""
    relative = os.fsencode(os.path.relpath(path, folder)).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in relative)


def sniff(head: bytes) -> str | None:
    """Name the image format that a file begins with."""
    signatures = (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF8", "GIF"),
        (b"BM", "BMP"),
        (b"II*\x00", "TIFF"),
        (b"MM\x00*", "TIFF"),
    )
    for start, name in signatures:
        if head.startswith(start):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return "HEIC" if head[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1") else None


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def _look_at(path: Path) -> Photo | str | None:
    """Give the photograph, the reason why an image file is none, or None for another file."""
    named_like_one = path.suffix.lower() in EXTENSIONS
    try:
        if not path.is_file():
            return "not a regular file" if named_like_one else None
        with path.open("rb") as file:
            head = file.read(16)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read()
    except OSError as error:
        return (error.strerror or str(error)).lower() if named_like_one else None
    if not size:
        return "empty file" if named_like_one else None
    if not (found := sniff(head)) or (found == "BMP" and not named_like_one):
        return "no image inside" if named_like_one else None
    return Photo(path, size, found, _has_an_end(found, tail))


def _has_an_end(found: str, tail: bytes) -> bool:
    endings = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
    return found in ("GIF", "BMP") or (found in endings and endings[found] in tail)


def _nothing(folder: Path, files: int, left_out: list[tuple[str, str]]) -> str:
    if not left_out:
        return f"There is no image in {folder} ({files:,} files looked at)."
    path, reason = left_out[0]
    return f"None of the {len(left_out):,} image files in {folder} can be used: {path}: {reason}."


def _hint(left_out: list[tuple[str, str]]) -> str:
    if left_out:
        return "Look at the files; a download that broke off leaves such ones."
    return "Give a folder with photographs, a folder of tpuctl shards, or path.py:function."
