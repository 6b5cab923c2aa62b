"""What `data cache` kept, read again: another variant in every epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.datasets import manifest
from tpuctl.datasets.formats.container import DamagedRecordError, open_container
from tpuctl.datasets.formats.example import decode_example
from tpuctl.datasets.local_copies import local_data_set
from tpuctl.datasets.models import DataSet, Shard
from tpuctl.datasets.order import Order
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from tpuctl.datasets._elements import Structure


@dataclass(frozen=True)
class Cache:
    """The elements of a cached pipeline, the part of this host, by epoch.

    An element is as the pipeline gave it, tensors being NumPy arrays and lists tuples.
    """

    data_set: DataSet
    variants: int
    seed: int = 0
    shuffle: bool = True
    host: int = 0
    hosts: int = 1

    def variant_of(self, epoch: int) -> int:
        """Say which variant an epoch reads: one after the other, and again."""
        return epoch % self.variants

    def count(self, epoch: int = 0) -> int:
        """Say how many elements this host reads in an epoch."""
        return self._order(self._shards(epoch)).steps_per_epoch

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[Any]:
        """Yield the elements of an epoch after the first `skip`; the same ones every time.

        Raises InvalidInputError for a shard that is damaged.
        """
        from tpuctl.datasets._elements import rebuild

        shards = self._shards(epoch)
        for turn in self._order(shards).turns(epoch, skip=skip):
            records = self._read(shards[turn.shard])
            for position in turn.positions:
                yield rebuild(decode_example(records[position]), self._structure)

    def __iter__(self) -> Iterator[Any]:
        """Yield epoch after epoch, without end."""
        epoch = 0
        while True:
            yield from self.epoch(epoch)
            epoch += 1

    @property
    def _structure(self) -> "Structure":
        structure = self.data_set.options["structure"]
        assert isinstance(structure, dict)
        return structure

    def _shards(self, epoch: int) -> tuple[Shard, ...]:
        prefix = f"v{self.variant_of(epoch):03}-"
        return tuple(shard for shard in self.data_set.shards if shard.name.startswith(prefix))

    def _order(self, shards: tuple[Shard, ...]) -> Order:
        records = tuple(shard.records for shard in shards)
        return Order(records, 1, self.seed, self.shuffle, self.host, self.hosts)

    def _read(self, shard: Shard) -> list[bytes]:
        path = self.data_set.folder / shard.name
        hint = self.data_set.how_to_verify()
        try:
            container = open_container(self.data_set.options)
            records = [record for _, record in container.read(path)]
        except (OSError, DamagedRecordError) as error:
            raise InvalidInputError(f"Could not read {path}: {error}.", hint=hint) from error
        if len(records) != shard.records:
            counts = f"{len(records)} records, the manifest lists {shard.records}"
            raise InvalidInputError(f"{path} holds {counts}.", hint=hint)
        return records


def open_cache(
    dst: str | Path, *, seed: int = 0, shuffle: bool = True, host: int = 0, hosts: int = 1
) -> Cache:
    """Open what `data cache` made; raises NotFoundError, UsageError and InvalidInputError."""
    data_set = manifest.load(local_data_set(dst))
    if data_set.options.get("encode") != manifest.ELEMENTS:
        raise InvalidInputError(
            f"{data_set.folder} holds pictures, not the elements of a pipeline.",
            hint="Read it with tpuctl.datasets.open_batches.",
        )
    variants = data_set.options["variants"]
    assert isinstance(variants, int)
    opened = Cache(data_set, variants, seed, shuffle, host, hosts)
    opened.count()
    return opened
