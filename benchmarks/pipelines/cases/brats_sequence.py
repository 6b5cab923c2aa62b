"""Three NIfTI volumes a case as floats, their slices resized one by one in a Keras Sequence."""

import struct
from pathlib import Path
from typing import Any

import cv2
import keras
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import _made, photograph, stage

SOURCE = "https://www.kaggle.com/code/rastislav/3d-mri-brain-tumor-segmentation-u-net"
NEEDS = "keras"
STAGES = {
    "get_fdata": r"get_fdata|load|memmap",
    "resize": r"resize",
    "one_hot": r"one_hot",
}
IS_PROGRAM = True

SHAPE, SLICES, START, SIZE = (160, 160, 96), 60, 22, 128


def write_cases(place: Path) -> None:
    for index in range(6):
        (place / f"BraTS20_{index:03}").mkdir(parents=True)
        picture = photograph(index, *SHAPE[:2])[..., 0]
        volume = np.stack([np.roll(picture, i, 0) for i in range(SHAPE[2])], 2)
        for kind, values in (("flair", volume), ("t1ce", volume // 2), ("seg", volume // 86)):
            content = struct.pack("<352x") + values.astype("<i2").tobytes(order="F")
            (place / f"BraTS20_{index:03}" / f"{kind}.nii").write_bytes(content)


CASES = sorted(_made("brats", write_cases).iterdir())
VOLUME = np.ones(SHAPE)
SLICE = np.ones((SIZE, SIZE))
MASKS = tf.ones((SLICES, SIZE, SIZE, 4))


@stage(lambda path: VOLUME)
def get_fdata(path: Path) -> Any:
    """As nibabel does: every voxel as a 64-bit float, in the order of the file."""
    return np.array(np.memmap(path, "<i2", "r", 352, SHAPE, order="F"), dtype="float64")


@stage(lambda values: SLICE)
def resize(values: Any) -> Any:
    return cv2.resize(values, (SIZE, SIZE))


@stage(lambda labels: MASKS)
def one_hot(labels: Any) -> Any:
    labels[labels == 4] = 3
    return tf.image.resize(tf.one_hot(labels, 4), (SIZE, SIZE))


class DataGenerator(keras.utils.Sequence):
    def __init__(self, cases: list[Path]) -> None:
        super().__init__()
        self.cases, self.indexes = cases, np.arange(len(cases))

    def __len__(self) -> int:
        return len(self.cases)

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.indexes)

    def __getitem__(self, index: int) -> Any:
        case = self.cases[self.indexes[index]]
        x, y = np.zeros((SLICES, SIZE, SIZE, 2)), np.zeros((SLICES, *SHAPE[:2]), "int32")
        flair, ce, seg = (get_fdata(case / f"{kind}.nii") for kind in ("flair", "t1ce", "seg"))
        for j in range(SLICES):
            x[j, :, :, 0] = resize(flair[:, :, j + START])
            x[j, :, :, 1] = resize(ce[:, :, j + START])
            y[j] = seg[:, :, j + START]
        return x / np.max(x), one_hot(y)


def make() -> Any:
    return DataGenerator(CASES)


if __name__ == "__main__":
    layers = [keras.layers.Conv2D(4, 1, strides=8, activation="softmax")]
    layers += [keras.layers.UpSampling2D(8)]
    model = keras.Sequential([keras.Input((SIZE, SIZE, 2)), *layers])
    model.compile("adam", "categorical_crossentropy")
    model.fit(make(), epochs=1000, verbose=0)
