"""Video classification: SequenceExamples of JPEG frames, a random clip decoded and cropped."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import _encoded, _made, photograph, stage

SOURCE = (
    "https://github.com/tensorflow/models/blob/master/official/vision/dataloaders/video_input.py"
)
NEEDS = "tensorflow"
STAGES = {
    "decode_example": r"decode_example",
    "parse_train_data": r"parse_train_data|decode_jpeg|random_crop_resize|map_fn",
}

FRAMES, SIZE, IMAGE, LABEL = 16, 172, "image/encoded", "clip/label/index"


def write_clips(place: Path) -> None:
    """Four TFRecord files of six clips with 32 frames of 320 by 240 pixels."""
    place.mkdir()
    for shard in range(4):
        with tf.io.TFRecordWriter(str(place / f"{shard}.tfrecord")) as file:
            for clip in range(6):
                example, picture = (
                    tf.train.SequenceExample(),
                    photograph(shard * 6 + clip, 240, 320),
                )
                example.context.feature[LABEL].int64_list.value.append(clip)
                for move in range(32):
                    frame = example.feature_lists.feature_list[IMAGE].feature.add()
                    frame.bytes_list.value.append(_encoded(np.roll(picture, move, 1)))
                file.write(example.SerializeToString())


PATHS = sorted(map(str, _made("video_records", write_clips).glob("*.tfrecord")))
SEQUENCE = {IMAGE: tf.io.FixedLenSequenceFeature((), tf.string)}
RECORD = next(iter(tf.data.TFRecordDataset(PATHS)))
CONTENTS = tf.io.parse_single_sequence_example(RECORD, sequence_features=SEQUENCE)[1][IMAGE]


@stage(lambda record: (CONTENTS, tf.ones(1, tf.int64)))
def decode_example(record: Any) -> Any:
    context = {LABEL: tf.io.VarLenFeature(tf.int64)}
    context, sequences = tf.io.parse_single_sequence_example(record, context, SEQUENCE)
    return sequences[IMAGE], tf.sparse.to_dense(context[LABEL])


@stage(lambda contents, label: ({"image": tf.zeros((FRAMES, SIZE, SIZE, 3))}, tf.zeros(6)))
def parse_train_data(contents: Any, label: Any) -> Any:
    offset = tf.random.uniform((), maxval=tf.shape(contents)[0] - FRAMES + 1, dtype=tf.int32)
    contents = tf.gather(contents, tf.range(offset, offset + FRAMES))
    frames = tf.map_fn(lambda x: tf.io.decode_jpeg(x, 3), contents, fn_output_signature=tf.uint8)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(frames)[1:], tf.constant([0.0, 0.0, 1.0, 1.0], shape=(1, 1, 4)),
        min_object_covered=0.1, aspect_ratio_range=(0.5, 2.0), area_range=(0.49, 1.0),
    )  # fmt: skip
    frames = tf.slice(frames, tf.concat([[0], begin], 0), tf.concat([[FRAMES], size], 0))
    frames = tf.cast(tf.image.resize(frames, (SIZE, SIZE)), tf.uint8)
    flipped = tf.random.uniform(()) < 0.5
    frames = tf.cond(flipped, lambda: tf.image.flip_left_right(frames), lambda: frames)
    frames = tf.ensure_shape(frames, (FRAMES, SIZE, SIZE, 3))
    return {"image": tf.cast(frames, tf.float32) / 255.0}, tf.reduce_sum(tf.one_hot(label, 6), 0)


def make() -> Any:
    auto = tf.data.AUTOTUNE
    data = tf.data.Dataset.from_tensor_slices(PATHS).shuffle(4).repeat()
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=10, num_parallel_calls=auto)
    data = data.shuffle(16).map(decode_example, num_parallel_calls=auto)
    data = data.map(parse_train_data, num_parallel_calls=auto)
    return data.batch(4, drop_remainder=True).prefetch(auto)
