"""Speech commands: decode WAV, spectrogram, finite, no repeat."""

from typing import Any

import tensorflow as tf

from benchmarks.pipelines.inputs import sounds, stage

SOURCE = "https://www.tensorflow.org/tutorials/audio/simple_audio"
NEEDS = "tensorflow"
STAGES = {
    "decode_audio": r"decode_audio",
    "get_spectrogram": r"get_spectrogram",
}


WAVE = tf.random.normal((16_000,))
SPECTROGRAM = tf.zeros((124, 129, 1))


@stage(lambda path: WAVE)
def decode_audio(path: Any) -> Any:
    audio, _ = tf.audio.decode_wav(tf.io.read_file(path), desired_samples=16_000)
    return tf.squeeze(audio, axis=-1)


@stage(lambda wave: SPECTROGRAM)
def get_spectrogram(wave: Any) -> Any:
    spectrogram = tf.signal.stft(wave, frame_length=255, frame_step=128)
    return tf.abs(spectrogram)[..., tf.newaxis]


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices(sounds())
    data = data.map(decode_audio, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.map(get_spectrogram, num_parallel_calls=tf.data.AUTOTUNE)
    return data.batch(16, drop_remainder=True).prefetch(2)
