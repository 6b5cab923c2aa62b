"""BERT's pre-training input: masked sentences parsed one by one from shuffled shards."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import masked_records, stage

SOURCE = "https://github.com/google-research/bert/blob/master/run_pretraining.py"
NEEDS = "tensorflow"
STAGES = {"decode_record": r"decode_record"}

LENGTHS = {
    **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), 128),
    **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 20),
    "next_sentence_labels": 1,
}
FEATURES = {
    name: tf.io.FixedLenFeature([size], tf.float32 if "weights" in name else tf.int64)
    for name, size in LENGTHS.items()
}
READY = {
    name: tf.zeros(size, tf.float32 if "weights" in name else tf.int32)
    for name, size in LENGTHS.items()
}


@stage(lambda record: READY)
def decode_record(record: Any) -> Any:
    example = tf.io.parse_single_example(record, FEATURES)
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in example.items()
    }


def make() -> Any:
    files = masked_records()
    data = tf.data.Dataset.from_tensor_slices(files).repeat().shuffle(len(files))
    data = data.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4, deterministic=False
    )
    data = data.shuffle(100).map(decode_record, num_parallel_calls=4)
    return data.batch(32, drop_remainder=True)
