"""Keras text classification from raw files: a TextVectorization layer in tf.data."""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out, review_folder, stage

SOURCE = "https://keras.io/examples/nlp/text_classification_from_scratch/"
NEEDS = "tensorflow"
STAGES = {
    "read": r"text_dataset|path_to_string|read_file",
    "custom_standardization": r"standardi[sz]",
    "vectorize_text": r"vectorize_text",
}


TEXTS = tf.constant([(review_folder() / "pos" / "1_1.txt").read_text()] * 32)
IDS = tf.ones((32, 500), tf.int64)


@stage(lambda texts: texts)
def custom_standardization(texts: Any) -> Any:
    texts = tf.strings.regex_replace(tf.strings.lower(texts), "<br />", " ")
    return tf.strings.regex_replace(texts, r"[!-/:-@\[-`{-~]", "")


LAYER = keras.layers.TextVectorization(
    standardize=None, max_tokens=20_000, output_sequence_length=500
)
LAYER.set_vocabulary(sorted(set(review_folder().joinpath("pos/1_1.txt").read_text().split())))


@stage(lambda texts, labels: (IDS, labels))
def vectorize_text(texts: Any, labels: Any) -> Any:
    return LAYER(texts), labels


def standardize(texts: Any, labels: Any) -> Any:
    return custom_standardization(texts), labels


def make() -> Any:
    if is_left_out("read"):
        data = tf.data.Dataset.from_tensors((TEXTS, tf.zeros(32, tf.int32))).repeat(16)
    else:
        data = keras.utils.text_dataset_from_directory(
            review_folder(), batch_size=32, verbose=False
        )
    return data.map(standardize).map(vectorize_text).prefetch(10)
