"""Sentences for translation: split, look up, bucket by length, padded batches."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://www.tensorflow.org/text/tutorials/nmt_with_attention"
NEEDS = "tensorflow"
STAGES = {
    "standardize": r"standardize",
    "look_up": r"look_up",
}


WORDS = tf.constant(["abc"] * 40)
IDS = tf.ones(40, tf.int64)
TABLE = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(["abc", "xyz"], tf.constant([0, 1], tf.int64)), 100
)


@stage(lambda line: WORDS)
def standardize(line: Any) -> Any:
    line = tf.strings.lower(tf.strings.regex_replace(line, "[^ a-z.?!,]", ""))
    return tf.strings.split(tf.strings.regex_replace(line, "[.?!,]", r" \\0 "))


@stage(lambda words: IDS)
def look_up(words: Any) -> Any:
    return TABLE.lookup(words)


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).shuffle(500).repeat()
    data = data.map(standardize, tf.data.AUTOTUNE).map(look_up, tf.data.AUTOTUNE)
    data = data.bucket_by_sequence_length(
        tf.size, bucket_boundaries=[20, 40, 60], bucket_batch_sizes=[64, 64, 64, 64]
    )
    return data.prefetch(tf.data.AUTOTUNE)
