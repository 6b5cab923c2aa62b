"""EfficientDet: TFRecords interleaved, image scaled at random and cropped, anchors labelled."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import photo_records, photograph, stage

SOURCE = "https://github.com/google/automl/blob/master/efficientdet/dataloader.py"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode|dataset_parser",
    "resize_and_crop": r"resize_and_crop|dataset_parser",
    "label_anchors": r"label_anchors|dataset_parser",
    "process_example": r"process_example",
}

SIZE, BATCH, MOST = 512, 8, 100


def make_anchors() -> Any:
    found = []
    for step in (8, 16, 32, 64, 128):
        at = np.arange(step / 2, SIZE, step)
        center = np.stack(np.meshgrid(at, at), -1).reshape(-1, 2)
        for scale in (1, 1.26, 1.59):
            for aspect in ((1, 1), (1.4, 0.7), (0.7, 1.4)):
                half = 2 * step * scale * np.array(aspect)
                found.append(np.concatenate([center - half, center + half], 1))
    return np.concatenate(found).astype("float32")


ANCHORS = make_anchors()
PHOTO, IMAGE = tf.constant(photograph()), tf.constant(photograph(0, SIZE, SIZE), tf.float32)
FEW = tf.constant(np.tile([[0.1, 0.1, 0.6, 0.5]], (8, 1)), tf.float32)


@stage(lambda record: (PHOTO, FEW))
def decode(record: Any) -> Any:
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature((), tf.string)})
    corners = tf.random.uniform((8, 2), 0, 0.6)
    boxes = tf.concat([corners, corners + tf.random.uniform((8, 2), 0.1, 0.4)], 1)
    return tf.io.decode_image(found["image"], channels=3, expand_animations=False), boxes


@stage(lambda image, boxes: (IMAGE, boxes * SIZE))
def resize_and_crop(image: Any, boxes: Any) -> Any:
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = (image - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    if tf.random.uniform(()) < 0.5:
        left, right = 1 - boxes[:, 3], 1 - boxes[:, 1]
        image = tf.image.flip_left_right(image)
        boxes = tf.stack([boxes[:, 0], left, boxes[:, 2], right], 1)
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    scaled = shape * tf.reduce_min(tf.random.uniform((), 0.1, 2.0) * SIZE / shape)
    begin = tf.cast(tf.maximum(0.0, scaled - SIZE) * tf.random.uniform(()), tf.int32)
    image = tf.image.resize(image, tf.cast(scaled, tf.int32))
    image = image[begin[0] : begin[0] + SIZE, begin[1] : begin[1] + SIZE]
    boxes = boxes * tf.tile(scaled, [2]) - tf.cast(tf.tile(begin, [2]), tf.float32)
    boxes = tf.clip_by_value(boxes, 0, SIZE - 1)
    kept = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], 1) > 0
    return tf.image.pad_to_bounding_box(image, 0, 0, SIZE, SIZE), tf.boolean_mask(boxes, kept)


@stage(lambda boxes: (tf.zeros(len(ANCHORS)), tf.zeros((len(ANCHORS), 4))))
def label_anchors(boxes: Any) -> Any:
    boxes = tf.concat([boxes, tf.zeros((1, 4))], 0)
    low = tf.maximum(ANCHORS[:, None, :2], boxes[None, :, :2])
    high = tf.minimum(ANCHORS[:, None, 2:], boxes[None, :, 2:])
    shared = tf.reduce_prod(tf.maximum(high - low, 0), -1)
    areas = tf.reduce_prod(ANCHORS[:, 2:] - ANCHORS[:, :2], -1)[:, None]
    iou = shared / (areas + tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], -1) - shared)
    best = tf.gather(boxes, tf.argmax(iou, 1))
    return tf.cast(tf.reduce_max(iou, 1) > 0.5, tf.float32), (best - ANCHORS) / SIZE


def dataset_parser(record: Any) -> Any:
    image, boxes = resize_and_crop(*decode(record))
    classes, targets = label_anchors(boxes)
    padded = tf.pad(boxes, [[0, MOST - tf.shape(boxes)[0]], [0, 0]], constant_values=-1)
    return image, classes, targets, tf.reshape(padded, (MOST, 4))


@stage(lambda image, *rest: (image, {"boxes": rest[2]}))
def process_example(image: Any, classes: Any, targets: Any, boxes: Any) -> Any:
    positive = tf.tile(tf.reduce_mean(tf.reduce_sum(classes, 1))[None], [BATCH])
    return image, {"mean": positive, "class": classes, "box": targets, "boxes": boxes}


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(photo_records()).shuffle(4).repeat()
    read = tf.data.experimental.parallel_interleave(
        lambda file: tf.data.TFRecordDataset(file).prefetch(1), cycle_length=32, sloppy=True
    )
    data = data.apply(read).shuffle(64).map(dataset_parser, num_parallel_calls=64)
    data = data.prefetch(BATCH).batch(BATCH, drop_remainder=True)
    return data.map(process_example).prefetch(tf.data.AUTOTUNE)
