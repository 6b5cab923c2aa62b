"""Scenic's video input: frames sampled from a record, decoded, scaled, cropped and centred."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import frame_records, stage

SOURCE = (
    "https://github.com/google-research/scenic/"
    "blob/main/scenic/projects/vivit/data/video_tfrecord_dataset.py"
)
NEEDS = "tensorflow"
STAGES = {
    "parse_and_sample": r"parse_and_sample",
    "decode_and_preprocess": r"decode_and_preprocess",
    "postprocess": r"postprocess",
}

FRAMES, SIZE, CROP = 8, 128, 112
JPEG = tf.io.encode_jpeg(np.full((150, 200, 3), 127, "uint8"))
CLIP = tf.zeros((FRAMES, CROP, CROP, 3), tf.uint8)
BATCH = tf.zeros((4, FRAMES, CROP, CROP, 3))


@stage(lambda record: (tf.fill([FRAMES], JPEG), tf.constant(1, tf.int64)))
def parse_and_sample(record: Any) -> Any:
    features = {
        "frames": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    begin = tf.random.uniform([], 0, 32 - 2 * FRAMES, tf.int32)
    return found["frames"][begin : begin + 2 * FRAMES : 2], found["label"]


@stage(lambda frames, label: (CLIP, label))
def decode_and_preprocess(frames: Any, label: Any) -> Any:
    decode = tf.image.decode_jpeg
    clip = tf.map_fn(lambda each: decode(each, 3), frames, fn_output_signature=tf.uint8)
    clip = tf.cast(tf.image.resize(clip, (SIZE, SIZE * 4 // 3)), tf.uint8)
    clip = tf.image.random_crop(clip, (FRAMES, CROP, CROP, 3))
    return tf.image.random_flip_left_right(clip), label


@stage(lambda clips, labels: (BATCH, labels))
def postprocess(clips: Any, labels: Any) -> Any:
    return tf.cast(clips, tf.float32) / 127.5 - 1, labels


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(frame_records()).repeat().shuffle(4)
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=4)
    data = data.map(parse_and_sample, num_parallel_calls=tf.data.AUTOTUNE).shuffle(16)
    data = data.map(decode_and_preprocess, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(4, drop_remainder=True).map(postprocess, num_parallel_calls=tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE)
