"""Lines of JSON parsed, cut into pieces and padded in a generator, finite."""

import json
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/google-research/bert/blob/master/run_squad.py"
NEEDS = "tensorflow"
STAGES = {
    "parse": r"parse",
    "word_pieces": r"word_pieces",
    "spans": r"spans",
}

RECORD = {"text": "abc def " * 20, "answers": [{"start": 5, "end": 9}] * 8}
IDS = list(range(120))
SPANS = np.zeros((2, 130), "int32")
VOCABULARY = {chr(a) + chr(b): 26 * a + b for a in range(97, 123) for b in range(97, 123)}


with open(sentences()) as file:
    LINES = [json.dumps({"text": each, "answers": [{"start": 5, "end": 9}] * 8}) for each in file]


@stage(lambda line: RECORD)
def parse(line: str) -> Any:
    return json.loads(line)


@stage(lambda text: IDS)
def word_pieces(text: str) -> Any:
    found = []
    for word in text.split():
        start = 0
        while start < len(word):
            end = len(word)
            while end > start + 1 and word[start:end] not in VOCABULARY:
                end -= 1
            found.append(VOCABULARY.get(word[start:end], 1))
            start = end
    return found


@stage(lambda ids, answers: SPANS)
def spans(ids: Any, answers: Any) -> Any:
    marks = np.zeros((2, len(ids) + 10), "int32")
    marks[0, : len(ids)] = ids
    for each in answers:
        marks[1, each["start"] : each["end"]] = 1
    return marks


def examples() -> Any:
    for line in LINES:
        record = parse(line)
        yield spans(word_pieces(record["text"]), record["answers"])


def make() -> Any:
    spec = tf.TensorSpec((2, None), tf.int32)
    data = tf.data.Dataset.from_generator(examples, output_signature=spec)
    return data.padded_batch(32).prefetch(tf.data.AUTOTUNE)
