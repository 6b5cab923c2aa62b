"""Batches of a data set for NumPy, JAX or PyTorch: no TensorFlow, no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.datasets import manifest
from tpuctl.datasets.local_copies import local_data_set
from tpuctl.datasets.models import DataSet, Shard
from tpuctl.datasets.order import Order
from tpuctl.datasets.reading import Record, need_images_extra, read_shard
from tpuctl.errors import InvalidInputError, UsageError

if TYPE_CHECKING:
    from tpuctl.datasets._decoding import Labels
    from tpuctl.datasets.images._resample import Pixels


@dataclass(frozen=True)
class Batch:
    """Pictures (batch x height x width x 3 of uint8), labels (int32, -1: none) and their keys.

    With `planes`, pictures are flat I420 (batch x bytes) for `yuv420_to_rgb`.
    """

    step: int
    images: "Pixels"
    labels: "Labels"
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Batches:
    """Batches of a data set, endless without `steps`; each iteration begins at `start_step`.

    Of `workers` processes that share the work, each makes every n-th batch.
    """

    data_set: DataSet
    order: Order
    start_step: int = 0
    steps: int | None = None
    planes: bool = False
    threads: int = 2
    worker: int = 0
    workers: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """How many batches every host takes before all of them begin anew."""
        return self.order.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        from tpuctl.datasets._decoding import decode_ahead

        size = self.order.batch_size
        wanted = None
        if self.steps is not None:
            wanted = len(range(self.worker, self.steps, self.workers)) * size
        return decode_ahead(
            islice(self._records(), wanted),
            size,
            first_step=self.start_step + self.worker,
            stride=self.workers,
            planes=self.planes,
            threads=self.threads,
        )

    def _records(self) -> Iterator[Record]:
        """The records of this worker's batches."""
        taken = 0
        for shard, positions in self._turns():
            records: list[Record] = []
            for position in positions:
                if taken // self.order.batch_size % self.workers == self.worker:
                    records = records or self._read(shard)
                    yield records[position]
                taken += 1

    def _read(self, shard: Shard) -> list[Record]:
        records = list(read_shard(self.data_set, shard))
        if len(records) != shard.records:
            raise _another_count(self.data_set, shard.name, len(records), shard.records)
        return records

    def _turns(self) -> Iterator[tuple[Shard, Sequence[int]]]:
        """Which records of which shard come next, without end."""
        epoch, step = divmod(self.start_step, self.steps_per_epoch)
        skip = step * self.order.batch_size
        while True:
            for turn in self.order.turns(epoch, skip=skip):
                yield self.data_set.shards[turn.shard], turn.positions
            epoch, skip = epoch + 1, 0


def open_batches(
    dst: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    host: int = 0,
    hosts: int = 1,
    start_step: int = 0,
    steps: int | None = None,
    planes: bool = False,
    threads: int = 2,
) -> Batches:
    """Read a data set in batches, the part of this host, from a step on: `for batch in ...`.

    Only what the manifest lists is read, checksums verified. `batch_size` is that of one host. The
    same arguments give the same batches; after step N, `start_step=N` gives the rest. `steps` ends
    the iteration. Raises NotFoundError, UsageError and InvalidInputError.
    """
    need_images_extra()
    data_set = open_uniform(dst, planes=planes)
    if start_step < 0:
        raise UsageError(f"Step {start_step} is before the first.")
    records = tuple(shard.records for shard in data_set.shards)
    order = Order(records, batch_size, seed, shuffle, host, hosts)
    return Batches(data_set, order, start_step, steps, planes, threads)


def open_uniform(dst: str | Path, *, planes: bool) -> DataSet:
    """Open a data set whose pictures all have one size, so that they can be stacked."""
    data_set = manifest.load_pictures(local_data_set(dst))
    if data_set.options.get("mode") == "short":
        raise InvalidInputError(
            f"The pictures in {data_set.folder} differ in size and cannot be stacked.",
            hint="Read them one by one with tpuctl.datasets.read_records, or presize anew with "
            "another --mode.",
        )
    if planes and data_set.options.get("encode") != "yuv420":
        raise UsageError(
            f"{data_set.folder} holds {data_set.options.get('encode')} pictures, not planes.",
            hint="Presize with --encode yuv420, or leave planes out.",
        )
    return data_set


def _another_count(data_set: DataSet, name: str, found: int, listed: int) -> InvalidInputError:
    return InvalidInputError(
        f"{data_set.folder / name} holds {found} records, the manifest lists {listed}.",
        hint=data_set.how_to_verify(),
    )
