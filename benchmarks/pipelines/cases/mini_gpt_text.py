"""Reviews in a file each, vectorized by a Keras layer in a map and shifted by a word, finite."""

import string
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.pipelines.inputs import _made, is_left_out, sentences, stage

SOURCE = "https://keras.io/examples/generative/text_generation_with_miniature_gpt/"
NEEDS = "tensorflow"
STAGES = {
    "read": r"TextLine|text_line|read",
    "prepare_lm_inputs_labels": r"prepare_lm_inputs_labels|vectoriz|standardiz",
}


def reviews() -> list[str]:
    """Files of one review of about 200 words, with punctuation and line breaks of HTML."""

    def write(place: Path) -> None:
        place.mkdir()
        lines = Path(sentences()).read_text().splitlines()
        for index in range(0, len(lines), 5):
            text = ", ".join(lines[index : index + 3]) + ".<br /><br />" + lines[index + 4]
            (place / f"{index}.txt").write_text(text.capitalize() + "!\n")

    return sorted(map(str, _made("reviews", write).glob("*.txt")))


PATHS = reviews()
LINE = tf.constant(Path(PATHS[0]).read_text())
WORDS = sorted({word for path in PATHS[:100] for word in Path(path).read_text().lower().split()})
TOKENS = tf.ones((32, 100), tf.int64)


def custom_standardization(text: Any) -> Any:
    stripped = tf.strings.regex_replace(tf.strings.lower(text), "<br />", " ")
    return tf.strings.regex_replace(stripped, f"([{string.punctuation}])", r" \1")


vectorize_layer = keras.layers.TextVectorization(
    standardize=custom_standardization, max_tokens=19_999, output_mode="int",
    output_sequence_length=101, vocabulary=[word for word in WORDS if word.isalpha()],
)  # fmt: skip


@stage(lambda text: (TOKENS, TOKENS))
def prepare_lm_inputs_labels(text: Any) -> Any:
    tokens = vectorize_layer(tf.expand_dims(text, -1))
    return tokens[:, :-1], tokens[:, 1:]


def make() -> Any:
    if is_left_out("read"):
        data = tf.data.Dataset.from_tensors(LINE).repeat(len(PATHS))
    else:
        data = tf.data.TextLineDataset(PATHS)
    data = data.shuffle(buffer_size=256).batch(32)
    return data.map(prepare_lm_inputs_labels).prefetch(tf.data.AUTOTUNE)
