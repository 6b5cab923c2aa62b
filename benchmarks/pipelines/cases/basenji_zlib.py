"""DNA and signals along it in ZLIB records, interleaved, parsed by a map that is not parallel."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import genome_records, is_left_out, stage

SOURCE = "https://github.com/calico/basenji/blob/master/basenji/dataset.py"
NEEDS = "tensorflow"
STAGES = {
    "file_to_records": r"file_to_records|interleave|TFRecord",
    "parse_proto": r"parse_proto",
}

LENGTH, TARGETS = 32_768, (256, 16)
FEATURES = {name: tf.io.FixedLenFeature([], tf.string) for name in ("sequence", "target")}
READY = tf.zeros((LENGTH, 4)), tf.zeros(TARGETS)


def _record() -> Any:
    values = np.ones(LENGTH * 4, "uint8").tobytes(), np.ones(TARGETS, "float16").tobytes()
    example = tf.train.Example()
    for name, value in zip(FEATURES, values, strict=True):
        example.features.feature[name].bytes_list.value.append(value)
    return tf.constant(example.SerializeToString())


RECORD = _record() if is_left_out("file_to_records") else None


@stage(lambda file: tf.data.Dataset.from_tensors(RECORD).repeat(24))
def file_to_records(file: Any) -> Any:
    return tf.data.TFRecordDataset(file, compression_type="ZLIB")


@stage(lambda record: READY)
def parse_proto(record: Any) -> Any:
    found = tf.io.parse_single_example(record, FEATURES)
    sequence = tf.io.decode_raw(found["sequence"], tf.uint8)
    target = tf.io.decode_raw(found["target"], tf.float16)
    sequence = tf.cast(tf.reshape(sequence, [LENGTH, 4]), tf.float32)
    return sequence, tf.cast(tf.reshape(target, TARGETS), tf.float32)


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(genome_records()).repeat()
    data = data.interleave(file_to_records, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.shuffle(64).map(parse_proto)
    return data.batch(4).prefetch(tf.data.AUTOTUNE)
