"""SimCLR: two random views of each photograph, with colours distorted and the views blurred."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import photo_records, photograph, stage

SOURCE = "https://github.com/google-research/simclr/blob/master/data_util.py"
NEEDS = "tensorflow"
STAGES = {
    "parse": r"parse",
    "map_fn": r"map_fn",
    "batch_random_blur": r"batch_random_blur",
}

SIZE, BATCH = 96, 16
PHOTO = tf.constant(photograph())
VIEWS = tf.zeros((SIZE, SIZE, 6))


@stage(lambda record: PHOTO)
def parse(record: Any) -> Any:
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.image.decode_jpeg(found["image"], 3)


def random_apply(function: Any, chance: float, image: Any) -> Any:
    return tf.cond(tf.random.uniform([]) < chance, lambda: function(image), lambda: image)


def color_jitter(image: Any) -> Any:
    image = image * tf.random.uniform([], 0.2, 1.8)
    image = tf.image.random_contrast(tf.clip_by_value(image, 0.0, 1.0), 0.2, 1.8)
    image = tf.image.random_saturation(tf.clip_by_value(image, 0.0, 1.0), 0.2, 1.8)
    return tf.image.random_hue(tf.clip_by_value(image, 0.0, 1.0), 0.2)


def view(image: Any) -> Any:
    box = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image), box, min_object_covered=0.1, area_range=(0.08, 1.0)
    )
    image = tf.image.resize(tf.slice(image, begin, size), (SIZE, SIZE), "bicubic")
    image = tf.image.random_flip_left_right(tf.ensure_shape(image, (SIZE, SIZE, 3)))
    image = random_apply(color_jitter, 0.8, image)
    gray = lambda each: tf.tile(tf.image.rgb_to_grayscale(each), [1, 1, 3])  # noqa: E731
    return tf.clip_by_value(random_apply(gray, 0.2, image), 0.0, 1.0)


@stage(lambda image: VIEWS)
def map_fn(image: Any) -> Any:
    image = tf.image.convert_image_dtype(image, tf.float32)
    return tf.concat([view(image), view(image)], -1)


@stage(lambda images: images)
def batch_random_blur(images: Any) -> Any:
    sigma = tf.random.uniform([], 0.1, 2.0)
    kernel = tf.exp(-(tf.range(-4.0, 5.0) ** 2) / (2 * sigma**2))
    kernel = tf.tile(tf.reshape(kernel / tf.reduce_sum(kernel), [9, 1, 1, 1]), [1, 1, 6, 1])
    blurred = tf.nn.depthwise_conv2d(images, kernel, [1] * 4, "SAME")
    blurred = tf.nn.depthwise_conv2d(blurred, tf.transpose(kernel, [1, 0, 2, 3]), [1] * 4, "SAME")
    chosen = tf.cast(tf.random.uniform([BATCH, 1, 1, 1]) < 0.5, tf.float32)
    return blurred * chosen + images * (1 - chosen)


def make() -> Any:
    data = tf.data.TFRecordDataset(photo_records()).shuffle(64).repeat()
    data = data.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(map_fn, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(BATCH, drop_remainder=True)
    data = data.map(batch_random_blur, num_parallel_calls=tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE)
