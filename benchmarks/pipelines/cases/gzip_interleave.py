"""Compressed TFRecords of video features, interleaved, parsed and batched; finite."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out, packed_records, stage

SOURCE = "https://github.com/google/youtube-8m/blob/master/readers.py"
NEEDS = "tensorflow"
STAGES = {
    "read": r"interleave|TFRecord|open_shard",
    "parse": r"parse",
}


VALUES = tf.zeros(600)


def open_shard(path: Any) -> Any:
    return tf.data.TFRecordDataset(path, compression_type="GZIP")


@stage(lambda record: (VALUES, tf.constant(1, tf.int64)))
def parse(record: Any) -> Any:
    features = {
        "values": tf.io.FixedLenFeature((600,), tf.float32),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    return found["values"], found["label"]


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(packed_records())
    if is_left_out("read"):
        record = next(iter(open_shard(packed_records()[0])))
        data = tf.data.Dataset.from_tensors(record).repeat(800)
    else:
        data = data.interleave(open_shard, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(64, drop_remainder=True).prefetch(2)
