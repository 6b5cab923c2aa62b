"""WAV decoded by TensorFlow, noise and spectrogram by SciPy in numpy_function."""

from typing import Any

import numpy as np
import scipy.signal
import tensorflow as tf

from benchmarks.pipelines.inputs import sounds, stage

SOURCE = "https://keras.io/examples/audio/speaker_recognition_using_cnn/"
NEEDS = "tensorflow"
STAGES = {
    "decode": r"decode",
    "add_noise": r"add_noise",
    "spectrogram": r"spectrogram",
}

WAVE = np.zeros(16_000, "float32")
TWO = tf.zeros((2, 16_000))
READY = np.zeros((129, 71), "float32")


@stage(lambda path: TWO[0])
def decode(path: Any) -> Any:
    audio, _ = tf.audio.decode_wav(tf.io.read_file(path), desired_samples=16_000)
    return audio[:, 0]


@stage(lambda wave: WAVE)
def add_noise(wave: Any) -> Any:
    noise = np.random.normal(0, 0.01, len(wave))
    return (wave + np.convolve(noise, np.ones(9) / 9, "same")).astype("float32")


@stage(lambda wave: READY)
def spectrogram(wave: Any) -> Any:
    _, _, found = scipy.signal.spectrogram(wave, 16_000, nperseg=256)
    return np.log(found + 1e-6).astype("float32")


def features(wave: Any) -> Any:
    return spectrogram(add_noise(wave))


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(sounds()).shuffle(32)
    data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(lambda wave: tf.numpy_function(features, [wave], tf.float32))
    return data.batch(16).prefetch(tf.data.AUTOTUNE)
