"""ImageNet for the Flax example: the decoder cuts out a random box, then a bicubic resize."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photo_records, photograph, stage

SOURCE = "https://github.com/google/flax/blob/main/examples/imagenet/input_pipeline.py"
NEEDS = "tensorflow"
STAGES = {
    "decode_and_crop": r"decode_and_crop",
    "resize": r"resize",
    "normalize": r"normalize",
}


CONTENT = tf.io.read_file(photo_paths()[0])
CROP = tf.constant(photograph(0, 260, 300))
IMAGE = tf.constant(photograph(0, 224, 224), tf.float32)


@stage(lambda record: (CONTENT, tf.constant(1, tf.int64)))
def parse(record: Any) -> Any:
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    found = tf.io.parse_single_example(record, features)
    return found["image"], found["label"]


@stage(lambda content, label: (CROP, label))
def decode_and_crop(content: Any, label: Any) -> Any:
    shape = tf.io.extract_jpeg_shape(content)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape, tf.zeros((0, 0, 4)), area_range=(0.08, 1.0), min_object_covered=0.1,
        max_attempts=10, use_image_if_no_bounding_boxes=True,
    )  # fmt: skip
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    return tf.image.decode_and_crop_jpeg(content, window, channels=3), label


@stage(lambda image, label: (IMAGE, label))
def resize(image: Any, label: Any) -> Any:
    return tf.image.resize([image], (224, 224), method="bicubic")[0], label


@stage(lambda image, label: (IMAGE, label))
def normalize(image: Any, label: Any) -> Any:
    image = tf.image.random_flip_left_right(tf.reshape(image, (224, 224, 3)))
    return (image - (123.7, 116.3, 103.5)) / (58.4, 57.1, 57.4), label


def make() -> Any:
    data = tf.data.TFRecordDataset(photo_records()).cache().repeat().shuffle(64)
    data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    for function in (decode_and_crop, resize, normalize):
        data = data.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(32, drop_remainder=True).prefetch(10)
