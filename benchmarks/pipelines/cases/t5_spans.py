"""T5's span corruption in tf.data: tokens from text, noise spans replaced by sentinels."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = (
    "https://github.com/google-research/text-to-text-transfer-transformer/"
    "blob/main/t5/data/preprocessors.py"
)
NEEDS = "tensorflow"
STAGES = {
    "tokenize": r"tokenize",
    "random_spans": r"random_spans",
    "trim_and_pad": r"trim_and_pad",
}


LENGTH = 512
TOKENS = tf.ones(1300, tf.int64)
PADDED = tf.zeros(LENGTH, tf.int32)


@stage(lambda text: TOKENS)
def tokenize(text: Any) -> Any:
    text = tf.strings.regex_replace(tf.strings.lower(text), r"[^a-z0-9 ]", "")
    pieces = tf.strings.split(tf.strings.regex_replace(text, r"([a-z]{1,2})", r"\1 "))
    return tf.strings.to_hash_bucket_fast(pieces, 32_000 - 100)


@stage(lambda ids: tf.cast(ids[:450], tf.int32))
def random_spans(ids: Any) -> Any:
    begin = tf.random.uniform([], 0, tf.maximum(1, tf.size(ids) - LENGTH), tf.int32)
    ids = tf.cast(ids[begin : begin + LENGTH], tf.int32)
    starts = tf.random.uniform([tf.size(ids)]) < 0.05
    noise = starts | tf.roll(starts, 1, 0) | tf.roll(starts, 2, 0)
    first = noise & ~tf.roll(noise, 1, 0)
    sentinels = 32_000 - tf.cumsum(tf.cast(first, tf.int32))
    return tf.boolean_mask(tf.where(first, sentinels, ids), first | ~noise)


@stage(lambda ids: PADDED)
def trim_and_pad(ids: Any) -> Any:
    ids = ids[:LENGTH]
    return tf.ensure_shape(tf.pad(ids, [[0, LENGTH - tf.size(ids)]]), [LENGTH])


def make() -> Any:
    data = tf.data.TextLineDataset(sentences()).repeat().batch(10).shuffle(200)
    data = data.map(lambda lines: tf.strings.reduce_join(lines, separator=" "))
    data = data.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(random_spans, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(trim_and_pad, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(32, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
