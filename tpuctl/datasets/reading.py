"""Read records with nothing more than NumPy, and the order in which each host reads them."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.datasets import manifest
from tpuctl.datasets.formats import open_container
from tpuctl.datasets.formats.records import NUMBERS, DamagedRecordError, Feature, decode_example
from tpuctl.datasets.local_copies import local_data_set
from tpuctl.datasets.manifest import DataSet, Shard
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.lazy import need_modules

if TYPE_CHECKING:
    from tpuctl.datasets.images._pixels import Pixels


@dataclass(frozen=True)
class Record:
    """One image of a data set: still encoded, with its label (-1: none) and its origin."""

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
        from tpuctl.datasets.images._pixels import decode_picture

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
        for data in read_shard(data_set, shard):
            yield to_record(decode_example(data), data_set)


def read_shard(data_set: DataSet, shard: Shard) -> Iterator[bytes]:
    """Yield the records of one shard; raises InvalidInputError if it is damaged."""
    container, count = open_container(data_set.format, data_set.encode), 0
    with translated_damage(data_set, shard):
        for _, record in container.read(data_set.path(shard)):
            count += 1
            yield record
    if count != shard.records:
        raise InvalidInputError(
            f"{data_set.path(shard)} holds {count} records, the manifest lists {shard.records}.",
            hint=data_set.how_to_verify(),
        )


@contextmanager
def translated_damage(data_set: DataSet, shard: Shard) -> Iterator[None]:
    """Turn errors while a shard is read into InvalidInputError."""
    try:
        yield
    except (OSError, DamagedRecordError) as error:
        raise InvalidInputError(
            f"Could not read {data_set.path(shard)}: {error}.", hint=data_set.how_to_verify()
        ) from error


def to_record(features: Mapping[str, Feature], data_set: DataSet) -> Record:
    """Turn the features of one example into a record; raises InvalidInputError."""
    key, image = features.get("key"), features.get("image", b"")
    numbers = {name: features.get(name) for name in NUMBERS}
    if not isinstance(key, bytes) or not isinstance(image, bytes):
        lacks = "key or no image"
    elif bad := [name for name, value in numbers.items() if not isinstance(value, int)]:
        lacks = f"number {bad[0]!r}"
    else:
        return Record(os.fsdecode(key), image=image, encode=data_set.encode, **numbers)  # type: ignore[arg-type]
    raise InvalidInputError(
        f"A record in {data_set.folder} has no {lacks}.",
        hint=data_set.how_to_verify(deep=True),
    )


def need_images_extra() -> None:
    """Raise MissingExtraError if the libraries for records are not installed."""
    modules = ("google_crc32c", "simplejpeg", "cv2", "PIL")
    need_modules("Reading a data set", *modules, extra="images")


@dataclass(frozen=True)
class ReadOrder:
    """Which records one of `hosts` reads when: a pure function of seed, epoch and host.

    Every host makes the same number of full steps per epoch, and the step alone tells the place, so
    that training resumes with the records that it had not seen. Whole shards go to the hosts if
    they can be dealt out evenly, otherwise every host takes its share of each. Raises UsageError
    for a host out of range, InvalidInputError if a host would not fill one batch.
    """

    records: tuple[int, ...]
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    host: int = 0
    hosts: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise UsageError(f"Host {self.host} is not one of 0 to {self.hosts - 1}.")
        if self.batch_size < 1:
            raise UsageError(f"The batch size has to be at least 1, not {self.batch_size}.")
        if self.steps_per_epoch < 1:
            raise InvalidInputError(
                f"{sum(self.records)} records do not fill one batch of {self.batch_size} on each "
                f"of {self.hosts} hosts.",
                hint="Take a smaller batch.",
            )

    @property
    def by_shard(self) -> bool:
        """Whether a host reads some of the shards, and not a part of each."""
        return len(self.records) % self.hosts == 0

    @property
    def steps_per_epoch(self) -> int:
        """Full batches that the host with the fewest records can make, in any epoch."""
        if self.by_shard:
            fewest = sum(sorted(self.records)[: len(self.records) // self.hosts])
        else:
            fewest = sum(count // self.hosts for count in self.records)
        return fewest // self.batch_size

    def turns(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield what this host reads in an epoch after its first `skip` records, whole steps.

        That is the number of a shard, and which of its records to take in which order.
        """
        left = self.steps_per_epoch * self.batch_size
        shards = list(range(len(self.records)))
        self._mix(shards, epoch, "shards")
        for shard in shards[self.host :: self.hosts] if self.by_shard else shards:
            first, stride = (0, 1) if self.by_shard else (self.host, self.hosts)
            positions = list(range(first, self.records[shard], stride))
            self._mix(positions, epoch, str(shard))
            positions = positions[:left]
            left -= len(positions)
            if skip < len(positions):
                yield shard, positions[skip:]
            skip = max(0, skip - len(positions))

    def _mix(self, numbers: list[int], epoch: int, what: str) -> None:
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}/{what}").shuffle(numbers)  # noqa: S311 (repeatable)
