"""A data set as a tf.data pipeline of graph operations only: no Python runs while it is read."""

from typing import Any

import tensorflow as tf

from tpuctl.datasets.images.geometry import yuv420_bytes, yuv420_to_rgb
from tpuctl.datasets.manifest import DataSet
from tpuctl.datasets.reading import ReadOrder
from tpuctl.errors import InvalidInputError

_FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def make_dataset(data_set: DataSet, order: ReadOrder, *, start_step: int, planes: bool) -> Any:
    """Return endless batches of (uint8 images, int32 labels), in the order of `ReadOrder`.

    Shards are read one after the other and shuffled whole: the plan has mixed them already.
    """
    encode = data_set.encode
    records = _records(data_set, order, start_step)
    if encode in ("raw", "yuv420"):
        # One parse for the whole batch costs a fifth of one for every record.
        batched = records.batch(order.batch_size, drop_remainder=True)
        examples = batched.map(lambda batch: tf.io.parse_example(batch, _FEATURES))
        return examples.map(_unpacker(data_set, planes), tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        )
    decoded = records.map(_decoder(data_set, encode), tf.data.AUTOTUNE)
    return decoded.batch(order.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _records(data_set: DataSet, order: ReadOrder, start_step: int) -> Any:
    first_epoch, step = divmod(start_step, order.steps_per_epoch)
    first_skip = step * order.batch_size
    wanted = order.steps_per_epoch * order.batch_size
    paths = tf.constant([str(data_set.folder / shard.name) for shard in data_set.shards])
    first, stride = (0, 1) if order.by_shard else (order.host, order.hosts)
    shares = [len(range(first, count, stride)) for count in order.records]
    counts = tf.constant(shares, tf.int64)
    most = max(order.records)

    def shard_records(path: Any, seed: Any, skip: Any) -> Any:
        records = tf.data.TFRecordDataset(path)
        if not order.by_shard:
            records = records.shard(order.hosts, order.host)
        if not order.shuffle:
            return records.skip(skip)

        def shuffled(shard: Any) -> Any:
            mixed = tf.random.experimental.stateless_shuffle(shard, seed=[seed, 0])
            return tf.data.Dataset.from_tensor_slices(mixed[skip:])

        # Dataset.shuffle would mix the user's tf.random.set_seed in, and refuses a seed of 0 here.
        return records.batch(most).flat_map(shuffled)

    def epoch_records(epoch: Any) -> Any:
        shards = tf.range(len(order.records))
        if order.shuffle:
            shards = tf.random.experimental.stateless_shuffle(shards, seed=[order.seed, epoch])
        if order.by_shard:
            shards = shards[order.host :: order.hosts]
        sizes = tf.gather(counts, shards)
        before = tf.cumsum(sizes, exclusive=True)
        skip = tf.where(epoch == first_epoch, tf.constant(first_skip, tf.int64), 0)
        skips = tf.clip_by_value(skip - before, 0, sizes)
        unread = tf.reshape(tf.where(skips < sizes), [-1])
        seeds = tf.cast(shards, tf.int64) + (epoch + 1) * 1_000_003 + order.seed
        turns = tuple(tf.gather(each, unread) for each in (tf.gather(paths, shards), seeds, skips))
        files = tf.data.Dataset.from_tensor_slices(turns)
        return files.flat_map(shard_records).take(wanted - skip)

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_records)


def _unpacker(data_set: DataSet, planes: bool) -> Any:
    assert data_set.size
    height, width = data_set.size
    flat = yuv420_bytes(height, width) if data_set.encode == "yuv420" else None

    def unpack(examples: Any) -> Any:
        labels = tf.cast(examples["label"], tf.int32)
        if flat is None:
            images = tf.io.decode_raw(examples["image"], tf.uint8, fixed_length=height * width * 3)
            return tf.reshape(images, (-1, height, width, 3)), labels
        images = tf.io.decode_raw(examples["image"], tf.uint8, fixed_length=flat)
        if not planes:
            rgb = yuv420_to_rgb(images, height, width, xp=tf.experimental.numpy)
            images = tf.cast(tf.round(rgb), tf.uint8)
        return images, labels

    return unpack


def _decoder(data_set: DataSet, encode: str) -> Any:
    decoders = {"jpeg": tf.io.decode_jpeg, "png": tf.io.decode_png}
    if encode not in decoders:
        raise InvalidInputError(
            f"{data_set.folder} holds {encode} images, which tf.data cannot decode.",
            hint="Read it with tpuctl.data.open_batches, or presize with --encode jpeg.",
        )
    assert data_set.size
    size = data_set.size

    def decode(record: Any) -> Any:
        example = tf.io.parse_single_example(record, _FEATURES)
        image = decoders[encode](example["image"], channels=3)
        return tf.ensure_shape(image, (*size, 3)), tf.cast(example["label"], tf.int32)

    return decode
