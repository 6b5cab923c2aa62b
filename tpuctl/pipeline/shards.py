"""Read the manifest of a folder of shards that `tpuctl data presize` wrote."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError

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
