"""Open a data set, or a cache of a pipeline, for NumPy, JAX, PyTorch or TensorFlow."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.datasets import manifest
from tpuctl.datasets.formats.records import decode_example
from tpuctl.datasets.local_copies import local_data_set
from tpuctl.datasets.manifest import DataSet, Shard
from tpuctl.datasets.reading import ReadOrder, Record, need_images_extra, read_shard, to_record
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.lazy import need_modules

if TYPE_CHECKING:
    from tpuctl.datasets._decoding import Batch


@dataclass(frozen=True)
class Batches:
    """Batches of a data set, endless without `steps`; each iteration begins at `start_step`.

    Of `workers` processes that share the work, each makes every n-th batch.
    """

    data_set: DataSet
    order: ReadOrder
    start_step: int = 0
    steps: int | None = None
    planes: bool = False
    threads: int = 2
    worker: int = 0
    workers: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """How many batches every host takes in an epoch."""
        return self.order.steps_per_epoch

    def __iter__(self) -> "Iterator[Batch]":
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
            records: list[bytes] = []
            for position in positions:
                if taken // self.order.batch_size % self.workers == self.worker:
                    records = records or list(read_shard(self.data_set, shard))
                    yield to_record(decode_example(records[position]), self.data_set)
                taken += 1

    def _turns(self) -> Iterator[tuple[Shard, Sequence[int]]]:
        """Which records of which shard come next, without end."""
        epoch, step = divmod(self.start_step, self.steps_per_epoch)
        skip = step * self.order.batch_size
        while True:
            for shard, positions in self.order.turns(epoch, skip=skip):
                yield self.data_set.shards[shard], positions
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
    data_set = _open_uniform(dst, start_step, planes=planes)
    order = _order(data_set.shards, batch_size, seed, shuffle, host, hosts)
    return Batches(data_set, order, start_step, steps, planes, threads)


def _order(
    shards: Sequence[Shard], batch_size: int, seed: int, shuffle: bool, host: int, hosts: int
) -> ReadOrder:
    records = tuple(shard.records for shard in shards)
    return ReadOrder(records, batch_size, seed, shuffle, host, hosts)


def _open_uniform(dst: str | Path, start_step: int, *, planes: bool) -> DataSet:
    """Open a data set whose images all have one size, so that they can be stacked."""
    data_set = manifest.load_pictures(local_data_set(dst))
    if data_set.size is None:
        raise InvalidInputError(
            f"The images in {data_set.folder} differ in size and cannot be stacked.",
            hint="Read them one by one with tpuctl.data.read_records, or presize again with "
            "another --mode.",
        )
    if planes and data_set.encode != "yuv420":
        raise UsageError(
            f"{data_set.folder} holds {data_set.encode} images, not planes.",
            hint="Presize with --encode yuv420, or leave planes out.",
        )
    if start_step < 0:
        raise UsageError(f"Step {start_step} is before the first.")
    return data_set


def open_tf_dataset(
    dst: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    host: int = 0,
    hosts: int = 1,
    start_step: int = 0,
    planes: bool = False,
) -> Any:
    """Return endless batches of (uint8 images, int32 labels) as a `tf.data.Dataset`.

    Only what the manifest lists is read. `batch_size` is that of one host. The same arguments give
    the same batches; after step N, `start_step=N` gives the rest, at the price of one shard read.
    With `planes`, images are flat I420 for `yuv420_to_rgb` on the device. Raises NotFoundError,
    UsageError, InvalidInputError and MissingExtraError.
    """
    need_modules("Reading with tf.data", "tensorflow", extra="tf")
    data_set = _open_uniform(dst, start_step, planes=planes)
    if data_set.format != "tfrecord":
        raise InvalidInputError(
            f"{data_set.folder} holds {data_set.format} shards; tf.data reads TFRecords.",
            hint="Read it with tpuctl.data.open_batches, or presize with --format tfrecord.",
        )
    order = _order(data_set.shards, batch_size, seed, shuffle, host, hosts)
    from tpuctl.datasets._tfdata import make_dataset

    return make_dataset(data_set, order, start_step=start_step, planes=planes)


def open_torch_dataset(
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
) -> Any:
    """Return a `torch.utils.data.IterableDataset` of (uint8 images, int64 labels), batch by batch.

    Load it with `DataLoader(dataset, batch_size=None, num_workers=N)`: each process decodes every
    n-th batch, and they come in the order of the steps, whatever N is. Images are N x 3 x H x W
    with the channels last in memory. Otherwise as `open_batches`, which it reads with. Raises
    InvalidInputError where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise InvalidInputError(
            "Reading with PyTorch needs torch, which is not installed.",
            hint="pip install torch (or read NumPy arrays: tpuctl.data.open_batches)",
        )
    batches = open_batches(
        dst,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        host=host,
        hosts=hosts,
        start_step=start_step,
        steps=steps,
        planes=planes,
    )
    from tpuctl.datasets._torchdata import TorchBatches

    return TorchBatches(batches)


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
        """Return which variant an epoch reads: all in turn, then again."""
        return epoch % self.variants

    def count(self, epoch: int = 0) -> int:
        """Return how many elements this host reads in an epoch."""
        return self._order(self._shards(epoch)).steps_per_epoch

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[Any]:
        """Yield the elements of an epoch after the first `skip`; the same ones every time.

        Raises InvalidInputError for a shard that is damaged.
        """
        from tpuctl.datasets._elements import rebuild

        shards = self._shards(epoch)
        for shard, positions in self._order(shards).turns(epoch, skip=skip):
            records = list(read_shard(self.data_set, shards[shard]))
            for position in positions:
                features = decode_example(records[position])
                try:
                    yield rebuild(features, self.data_set.options["structure"])
                except (ValueError, TypeError) as error:
                    raise InvalidInputError(
                        f"An element in {self.data_set.path(shards[shard])} is damaged: {error}.",
                        hint=self.data_set.how_to_verify(deep=True),
                    ) from error

    def __iter__(self) -> Iterator[Any]:
        """Yield epoch after epoch, without end."""
        epoch = 0
        while True:
            yield from self.epoch(epoch)
            epoch += 1

    def _shards(self, epoch: int) -> tuple[Shard, ...]:
        prefix = f"v{self.variant_of(epoch):03}-"
        return tuple(shard for shard in self.data_set.shards if shard.name.startswith(prefix))

    def _order(self, shards: Sequence[Shard]) -> ReadOrder:
        return _order(shards, 1, self.seed, self.shuffle, self.host, self.hosts)


def open_cache(
    dst: str | Path, *, seed: int = 0, shuffle: bool = True, host: int = 0, hosts: int = 1
) -> Cache:
    """Open what `data cache` made; raises NotFoundError, UsageError and InvalidInputError."""
    data_set = manifest.load(local_data_set(dst))
    if data_set.encode != manifest.ELEMENTS:
        raise InvalidInputError(
            f"{data_set.folder} holds images, not the elements of a pipeline.",
            hint="Read it with tpuctl.data.open_batches.",
        )
    opened = Cache(data_set, int(data_set.options["variants"]), seed, shuffle, host, hosts)
    opened.count()  # Fails if a host would have nothing to read.
    return opened
