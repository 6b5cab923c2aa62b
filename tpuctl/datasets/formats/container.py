"""The file formats a shard can have, behind one interface; all hold the same records."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tpuctl.errors import InvalidInputError, MissingExtraError

SUFFIXES = {"tfrecord": ".tfrecord", "wds": ".tar", "arrayrecord": ".arrayrecord"}


class DamagedRecordError(Exception):
    """A record that is not what was written. Never leaves the package."""

    def __init__(self, offset: int, what: str, unit: str = "byte") -> None:
        super().__init__(f"{what} at {unit} {offset}")
        self.offset = offset


@dataclass(frozen=True)
class Digest:
    """What a file's bytes add up to."""

    bytes: int
    crc32c: str
    sha256: str


@dataclass(frozen=True)
class Glance:
    """The beginning of a record, its features but for the picture; `whole` reads all of it."""

    length: int
    head: bytes
    whole: Callable[[], bytes]


class Container(Protocol):
    """A format. Records go in and come out as the bytes of a `tf.train.Example`.

    Reading raises DamagedRecordError and OSError.
    """

    def pack(self, part: Path, shard: Path, index: int, known: Digest) -> Digest:
        """Make `shard` of the TFRecords in `part`, whose digest is `known`; raises WriteError.

        A kill leaves either of them whole. `index` is the number of the shard.
        """
        ...

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield where each record begins, and the record."""
        ...

    def glance(self, path: Path) -> Iterator[Glance]:
        """Yield the records without reading their pictures, as far as the format allows."""
        ...


def open_container(options: Mapping[str, object]) -> Container:
    """Return the format that a data set's options name.

    Raises MissingExtraError, and InvalidInputError for a format that is not known here.
    """
    name, encode = options.get("format", "tfrecord"), str(options.get("encode"))
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


def suffix_of(options: Mapping[str, object]) -> str:
    """Return how the names of a data set's shards end."""
    return SUFFIXES.get(str(options.get("format")), ".tfrecord")


def need_array_record() -> None:
    """Raise MissingExtraError where the library for ArrayRecord is not installed."""
    if importlib.util.find_spec("array_record") is None:
        raise MissingExtraError("--format arrayrecord", extra="arrayrecord", module="array_record")
