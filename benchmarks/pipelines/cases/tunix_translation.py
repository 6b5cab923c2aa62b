"""Pairs of sentences in records of a distant bucket, tokenized, joined, masked and filtered."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from grain import python as grain

from benchmarks.pipelines.inputs import _example, is_left_out, sentences, stage

SOURCE = "https://github.com/google/tunix/blob/main/tunix/examples/data/translation_dataset.py"
NEEDS = "grain"
STAGES = {
    "read_record": r"read_record|__getitem__|ArrayRecord",
    "Tokenize": r"Tokenize|tokenize",
    "BuildTrainInput": r"BuildTrainInput|pad_up_to",
}

LONGEST = 128
LINES = Path(sentences()).read_text().splitlines()
RECORDS = [
    _example(inputs=source[:300].encode(), targets=target[:300].encode())
    for source, target in zip(LINES[::2], LINES[1::2], strict=True)
]
WORDS = sorted({word for line in LINES for word in line.split()})
RANKS = {word: rank for rank, word in enumerate(WORDS, 4)}
TOKENS = np.ones(40, "int64"), np.ones(40, "int64")
READY = {"input_tokens": np.ones(LONGEST, "int64"), "input_mask": np.ones(LONGEST, "bool")}


@stage(lambda index: RECORDS[0])
def read_record(index: int) -> bytes:
    time.sleep(0.02)
    return RECORDS[index]


class ArrayRecordDataSource:
    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, index: int) -> bytes:
        return bytes(read_record(index))


class Tokenize(grain.MapTransform):
    def tokenize(self, text: str, add_eos: bool) -> Any:
        return np.array(
            [2, *(RANKS.get(word, 3) for word in text.split()), *[1] * add_eos], "int64"
        )

    def map(self, element: bytes) -> Any:
        if is_left_out("Tokenize"):
            return TOKENS
        feature = tf.train.Example.FromString(element).features.feature
        source, target = (
            feature[key].bytes_list.value[0].decode() for key in ("inputs", "targets")
        )
        source = "Translate this into French:\n" + source + "\n"
        return self.tokenize(source, False), self.tokenize(target, True)


class BuildTrainInput(grain.MapTransform):
    def pad_up_to_max_len(self, values: Any) -> Any:
        to_pad = np.maximum(LONGEST - values.shape[0], 0)
        return np.pad(values, [[0, to_pad]], mode="constant", constant_values=0)

    def map(self, tokens: Any) -> Any:
        if is_left_out("BuildTrainInput"):
            return READY
        source, target = tokens
        mask = np.concatenate([np.zeros(len(source), "bool"), np.ones(len(target), "bool")])
        joined = self.pad_up_to_max_len(np.concatenate([source, target]))
        return {"input_tokens": joined, "input_mask": self.pad_up_to_max_len(mask)}


class FilterOverlength(grain.FilterTransform):
    def filter(self, element: Any) -> bool:
        return len(element["input_tokens"]) <= LONGEST


def make() -> Any:
    sampler = grain.IndexSampler(len(RECORDS), grain.NoSharding(), num_epochs=None)
    batch = grain.Batch(batch_size=16, drop_remainder=True)
    return grain.DataLoader(
        data_source=ArrayRecordDataSource(),
        sampler=sampler,
        operations=[Tokenize(), BuildTrainInput(), FilterOverlength(), batch],
    )
