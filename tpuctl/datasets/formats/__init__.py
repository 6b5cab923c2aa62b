"""The file formats a shard can have, behind one interface; all hold the same records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tpuctl.datasets.formats.records import Digest, Preview
from tpuctl.errors import InvalidInputError
from tpuctl.lazy import need_modules

_SUFFIXES = {"tfrecord": ".tfrecord", "wds": ".tar", "arrayrecord": ".arrayrecord"}


class Container(Protocol):
    """A file format. Records go in and come out as the bytes of a `tf.train.Example`.

    Reading raises DamagedRecordError and OSError.
    """

    def pack(self, part: Path, shard: Path, index: int, known: Digest) -> Digest:
        """Make `shard` of the TFRecords in `part`, whose digest is `known`; raises WriteError.

        If it is killed, one of the two is complete. `index` is the number of the shard.
        """
        ...

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield where each record begins, and the record."""
        ...

    def preview(self, path: Path) -> Iterator[Preview]:
        """Yield the records without reading their images, as far as the format allows."""
        ...


def open_container(name: str, encode: str) -> Container:
    """Return a format by its name, for images of an encoding.

    Raises MissingExtraError, and InvalidInputError for an unknown format.
    """
    if name == "tfrecord":
        from tpuctl.datasets.formats._tfrecord import TfRecord

        return TfRecord()
    if name == "wds":
        from tpuctl.datasets.formats._tar import Tar

        return Tar(encode)
    if name == "arrayrecord":
        need_array_record()
        from tpuctl.datasets.formats._arrayrecord import ArrayRecord

        return ArrayRecord()
    raise InvalidInputError(
        f"The data set holds shards in the format {name!r}, which this tpuctl cannot read.",
        hint="Update tpuctl: pip install -U tpuctl",
    )


def suffix_of(name: str) -> str:
    """Return how the names of shards of a format end."""
    return _SUFFIXES.get(name, ".tfrecord")


def need_array_record() -> None:
    """Raise MissingExtraError if the library for ArrayRecord is not installed."""
    need_modules("--format arrayrecord", "array_record", extra="arrayrecord")
