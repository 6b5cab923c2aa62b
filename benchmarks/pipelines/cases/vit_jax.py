"""ViT's input: cached bytes, decode and crop in one map, batches split for devices."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/google-research/vision_transformer/blob/main/vit_jax/input_pipeline.py"
NEEDS = "tensorflow"
STAGES = {
    "pp": r"(^|\W)pp($|\W)",
    "shard": r"shard|lambda",
}


IMAGE = tf.constant(photograph(0, 224, 224), tf.float32)


@stage(lambda content: {"image": IMAGE})
def pp(content: Any) -> Any:
    image = tf.io.decode_image(content, channels=3, expand_animations=False)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image), tf.zeros((0, 0, 4)), area_range=(0.05, 1.0), min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )  # fmt: skip
    image = tf.image.resize(tf.slice(image, begin, size), (224, 224))
    image = tf.image.random_flip_left_right(tf.ensure_shape(image, (224, 224, 3)))
    return {"image": (image - 127.5) / 127.5}


@stage(lambda batch: batch)
def shard(batch: Any) -> Any:
    return {name: tf.reshape(value, (8, -1, 224, 224, 3)) for name, value in batch.items()}


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_paths()).map(tf.io.read_file).cache()
    data = data.repeat().shuffle(64).map(pp, tf.data.AUTOTUNE).batch(32, drop_remainder=True)
    return data.map(shard, tf.data.AUTOTUNE).prefetch(1)
