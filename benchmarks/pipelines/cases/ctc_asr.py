"""Speech for a CTC model: WAV to a normalized spectrogram, characters looked up, padded batches."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import _made, sentences, stage

SOURCE = "https://keras.io/examples/audio/ctc_asr/"
NEEDS = "tensorflow"
STAGES = {"encode_single_sample": r"encode_single_sample"}


def speeches() -> tuple[list[str], list[str]]:
    """Clips of 2 to 10 seconds at 22,050 Hz, as in LJSpeech, and what is said."""

    def write(place: Path) -> None:
        place.mkdir()
        random = np.random.default_rng(0)
        for index in range(64):
            count = int(random.uniform(2, 10) * 22_050)
            wave = random.normal(0, 0.1, (count, 1)).astype("float32")
            content = tf.audio.encode_wav(wave, 22_050).numpy()
            (place / f"LJ001-{index:04}.wav").write_bytes(content)

    paths = sorted(map(str, _made("speeches", write).glob("*.wav")))
    lines = Path(sentences()).read_text().splitlines()
    return paths, [line[:120].capitalize() for line in lines[: len(paths)]]


PATHS, LABELS = speeches()
CHARACTERS = list("abcdefghijklmnopqrstuvwxyz'?! ")
char_to_num = keras.layers.StringLookup(vocabulary=CHARACTERS, oov_token="")
SPECTROGRAM = tf.zeros((820, 193))
LABEL = tf.ones(100, tf.int64)


@stage(lambda path, label: (SPECTROGRAM, LABEL))
def encode_single_sample(path: Any, label: Any) -> Any:
    audio, _ = tf.audio.decode_wav(tf.io.read_file(path))
    audio = tf.cast(tf.squeeze(audio, axis=-1), tf.float32)
    found = tf.signal.stft(audio, frame_length=256, frame_step=160, fft_length=384)
    found = tf.math.pow(tf.abs(found), 0.5)
    means = tf.math.reduce_mean(found, 1, keepdims=True)
    found = (found - means) / (tf.math.reduce_std(found, 1, keepdims=True) + 1e-10)
    return found, char_to_num(tf.strings.unicode_split(tf.strings.lower(label), "UTF-8"))


def make() -> Any:
    data = tf.data.Dataset.from_tensor_slices((PATHS, LABELS))
    data = data.map(encode_single_sample, num_parallel_calls=tf.data.AUTOTUNE)
    return data.padded_batch(32).prefetch(tf.data.AUTOTUNE)
