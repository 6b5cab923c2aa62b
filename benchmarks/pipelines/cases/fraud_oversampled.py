"""Rows of two classes, each shuffled and repeated, drawn in equal parts into large batches."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import is_left_out

SOURCE = "https://www.tensorflow.org/tutorials/structured_data/imbalanced_data#oversampling"
NEEDS = "tensorflow"
STAGES = {
    "make_ds": r"make_ds|shuffle|tensor_slices|TensorSlice|repeat",
    "resample": r"resample|sample_from|SampleFrom|irected",
}

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(100_000, 29))
LABELS = RANDOM.random(100_000) < 0.002


def make_ds(features: Any, labels: Any) -> Any:
    if is_left_out("make_ds"):
        return tf.data.Dataset.from_tensors((features[0], labels[0])).repeat()
    return tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(100_000).repeat()


def resample(positive: Any, negative: Any) -> Any:
    if is_left_out("resample"):
        return negative
    return tf.data.Dataset.sample_from_datasets([positive, negative], weights=[0.5, 0.5])


def make() -> Any:
    positive = make_ds(FEATURES[LABELS], LABELS[LABELS])
    negative = make_ds(FEATURES[~LABELS], LABELS[~LABELS])
    return resample(positive, negative).batch(2048).prefetch(2)
