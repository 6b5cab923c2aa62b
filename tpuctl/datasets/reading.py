"""Records of a data set, one after the other, with NumPy at most: no TensorFlow."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.datasets import manifest
from tpuctl.datasets.formats.container import DamagedRecordError, open_container
from tpuctl.datasets.formats.example import Feature, decode_example
from tpuctl.datasets.local_copies import local_data_set
from tpuctl.datasets.models import DataSet, Shard
from tpuctl.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from tpuctl.datasets.images._resample import Pixels


@dataclass(frozen=True)
class Record:
    """One picture of a data set: still encoded, with its label (-1: none) and where it was from."""

    key: str
    label: int
    image: bytes
    encode: str
    height: int
    width: int
    orig_height: int
    orig_width: int
    flags: int

    def array(self) -> "Pixels":
        """Decode to height x width x 3 of uint8; raises InvalidInputError for damaged bytes."""
        from tpuctl.datasets.images._encoding import decode_picture

        try:
            return decode_picture(self.image, self.encode, (self.height, self.width, 3))
        except ValueError as error:
            raise InvalidInputError(f"Could not decode the record {self.key!r}: {error}") from error


def read_records(dst: str | Path) -> Iterator[Record]:
    """Yield every record of a data set in the order of its shards, checksums verified.

    Only what the manifest lists is read. Raises NotFoundError and InvalidInputError.
    """
    need_images_extra()
    data_set = manifest.load_pictures(local_data_set(dst))
    for shard in data_set.shards:
        yield from read_shard(data_set, shard)


def read_shard(data_set: DataSet, shard: Shard) -> Iterator[Record]:
    """Yield the records of one shard; raises InvalidInputError where it is damaged."""
    path = data_set.folder / shard.name
    try:
        for _, record in open_container(data_set.options).read(path):
            yield to_record(decode_example(record), data_set)
    except (OSError, DamagedRecordError) as error:
        raise InvalidInputError(
            f"Could not read {path}: {error}.",
            hint=data_set.how_to_verify(),
        ) from error


def to_record(features: Mapping[str, Feature], data_set: DataSet) -> Record:
    """Turn the features of one example into a record; raises InvalidInputError."""

    def damaged(lacks: str) -> InvalidInputError:
        return InvalidInputError(
            f"A record in {data_set.folder} has no {lacks}.",
            hint=data_set.how_to_verify(deep=True),
        )

    def number(name: str) -> int:
        value = features.get(name)
        if not isinstance(value, int):
            raise damaged(f"number {name!r}")
        return value

    key, image = features.get("key"), features.get("image", b"")
    if not isinstance(key, bytes) or not isinstance(image, bytes):
        raise damaged("key or no image")
    return Record(
        key=os.fsdecode(key),
        label=number("label"),
        image=image,
        encode=str(data_set.options.get("encode", "jpeg")),
        height=number("height"),
        width=number("width"),
        orig_height=number("orig_height"),
        orig_width=number("orig_width"),
        flags=number("flags"),
    )


def need_images_extra() -> None:
    """Raise MissingExtraError where the libraries for records are not installed."""
    for module in ("google_crc32c", "simplejpeg", "cv2", "PIL"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("Reading a data set", extra="images", module=module)
