"""WAV files opened with Python's module, turned into mel bands by NumPy in a generator."""

import random
import wave
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import sounds, stage

SOURCE = "https://github.com/DemisEom/SpecAugment"
NEEDS = "tensorflow"
STAGES = {
    "read_wave": r"read_wave",
    "mel_bands": r"mel_bands",
    "mask": r"mask",
}

WAVE = np.zeros(16_000, "float32")
BANDS = np.zeros((97, 40), "float32")
FILTERS = np.random.default_rng(0).random((257, 40), "float32")


@stage(lambda path: WAVE)
def read_wave(path: str) -> Any:
    with wave.open(path) as file:
        return np.frombuffer(file.readframes(16_000), "<i2").astype("float32") / 32768


@stage(lambda samples: BANDS)
def mel_bands(samples: Any) -> Any:
    starts = range(0, len(samples) - 512, 160)
    frames = np.stack([samples[i : i + 512] * np.hanning(512) for i in starts])
    return np.log(np.abs(np.fft.rfft(frames, 512)) ** 2 @ FILTERS + 1e-6).astype("float32")


@stage(lambda bands: BANDS)
def mask(bands: Any) -> Any:
    bands = bands.copy()
    for _ in range(2):
        time, band = random.randrange(80), random.randrange(30)
        bands[time : time + 10] = 0
        bands[:, band : band + 6] = 0
    return bands


class Sounds:
    def __iter__(self) -> Any:
        for path in sounds():
            yield mask(mel_bands(read_wave(path)))


def make() -> Any:
    spec = tf.TensorSpec((97, 40), tf.float32)
    data = tf.data.Dataset.from_generator(lambda: Sounds(), output_signature=spec)
    return data.shuffle(32).batch(8)
