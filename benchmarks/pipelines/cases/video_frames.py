"""Frames of videos read with OpenCV in a generator that tf.data waits for."""

import random
from typing import Any

import cv2
import keras
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import clips, photograph, stage

SOURCE = "https://www.tensorflow.org/tutorials/load_data/video"
NEEDS = "cv2"
STAGES = {
    "read_frames": r"read_frames",
    "format_frames": r"format_frames",
}
IS_PROGRAM = True


COUNT, STEP = 8, 7
FRAMES = [photograph(0, 240, 320)] * COUNT
READY = np.zeros((COUNT, 112, 112, 3), "float32")


@stage(lambda path: FRAMES)
def read_frames(path: str) -> Any:
    source = cv2.VideoCapture(path, cv2.CAP_ANY, [cv2.CAP_PROP_N_THREADS, 1])
    length = int(source.get(cv2.CAP_PROP_FRAME_COUNT))
    source.set(cv2.CAP_PROP_POS_FRAMES, random.randint(0, length - COUNT * STEP))
    frames = []
    for number in range(COUNT * STEP):
        _, frame = source.read()
        if number % STEP == 0:
            frames.append(frame)
    source.release()
    return frames


@stage(lambda frames: READY)
def format_frames(frames: Any) -> Any:
    found = [cv2.resize(each, (112, 84), interpolation=cv2.INTER_AREA) for each in frames]
    images = np.pad(np.stack(found), ((0, 0), (14, 14), (0, 0), (0, 0)))
    return images[..., ::-1].astype("float32") / 255.0


class FrameGenerator:
    def __call__(self) -> Any:
        paths = clips() * 8
        random.shuffle(paths)
        for path in paths:
            yield format_frames(read_frames(path)), 0


def make() -> Any:
    spec = (tf.TensorSpec((COUNT, 112, 112, 3), tf.float32), tf.TensorSpec((), tf.int16))
    data = tf.data.Dataset.from_generator(FrameGenerator(), output_signature=spec)
    return data.batch(4).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    model = keras.Sequential(
        [keras.layers.GlobalAveragePooling3D(), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(make(), epochs=1000, verbose=0)
