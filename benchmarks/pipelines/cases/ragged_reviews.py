"""Reviews split into ragged words and characters, hashed, ragged batches made dense."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://www.tensorflow.org/guide/ragged_tensor"
NEEDS = "tensorflow"
STAGES = {
    "split_words": r"split_words",
    "hash_bigrams": r"hash_bigrams",
    "to_dense": r"to_dense",
}

WORDS = tf.constant(["abc"] * 40)
IDS = tf.ones(79, tf.int64)


@stage(lambda line: WORDS)
def split_words(line: Any) -> Any:
    return tf.strings.split(tf.strings.regex_replace(tf.strings.lower(line), "[aeiou]+", "a"))


@stage(lambda words: IDS)
def hash_bigrams(words: Any) -> Any:
    pairs = tf.strings.join([words[:-1], words[1:]], separator="#")
    return tf.strings.to_hash_bucket_strong(tf.concat([words, pairs], 0), 1000, [7, 9])


@stage(lambda ids: tf.zeros((64, 160), tf.int64))
def to_dense(ids: Any) -> Any:
    return ids.to_tensor(shape=(None, 160)) if isinstance(ids, tf.RaggedTensor) else ids


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).cache().shuffle(4000)
    data = data.map(split_words, num_parallel_calls=2).map(hash_bigrams, num_parallel_calls=2)
    return data.ragged_batch(64, drop_remainder=True).map(to_dense).prefetch(2)
