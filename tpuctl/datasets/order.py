"""Which host reads which records when: a pure function of seed, epoch and host.

Every host makes the same number of full steps per epoch; whoever knows the step knows the place,
so training goes on after an interruption with the records that had not been seen.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpuctl.errors import InvalidInputError, UsageError


@dataclass(frozen=True)
class Turn:
    """A shard, by its number, and which of its records to take in which order."""

    shard: int
    positions: Sequence[int]


@dataclass(frozen=True)
class Order:
    """The order in which one of `hosts` reads shards of so many `records`.

    Whole shards go to the hosts when they can be dealt out evenly, otherwise every host takes its
    share of each. Raises UsageError for a host that is not there, InvalidInputError when a host
    would not fill one batch.
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
            raise UsageError(f"A batch of {self.batch_size} records is none.")
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

    def turns(self, epoch: int, *, skip: int = 0) -> Iterator[Turn]:
        """Yield what this host reads in an epoch after its first `skip` records, whole steps."""
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
                yield Turn(shard, positions[skip:])
            skip = max(0, skip - len(positions))

    def _mix(self, numbers: list[int], epoch: int, what: str) -> None:
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}/{what}").shuffle(numbers)
