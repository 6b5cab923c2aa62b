"""A data set as a `tf.data.Dataset`, for Keras and whoever feeds a TPU with TensorFlow."""

import importlib.util
from pathlib import Path
from typing import Any

from tpuctl.datasets.batches import open_batches, open_uniform
from tpuctl.datasets.order import Order
from tpuctl.errors import InvalidInputError, MissingExtraError, UsageError


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
    if importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("Reading with tf.data", extra="tf", module="tensorflow")
    data_set = open_uniform(dst, planes=planes)
    if data_set.options.get("format") != "tfrecord":
        raise InvalidInputError(
            f"{data_set.folder} holds {data_set.options.get('format')} shards; tf.data reads "
            "TFRecords.",
            hint="Read it with tpuctl.datasets.open_batches, or presize with --format tfrecord.",
        )
    if start_step < 0:
        raise UsageError(f"Step {start_step} is before the first.")
    records = tuple(shard.records for shard in data_set.shards)
    order = Order(records, batch_size, seed, shuffle, host, hosts)
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
            hint="pip install torch (or read NumPy arrays: tpuctl.datasets.open_batches)",
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
