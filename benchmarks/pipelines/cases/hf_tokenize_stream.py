"""Text tokenised in a map of a streamed Hugging Face data set, then grouped."""

from typing import Any

import datasets
import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://huggingface.co/docs/datasets/stream"
NEEDS = "datasets"
STAGES = {
    "tokenize": r"tokenize",
    "pad": r"pad",
}


IDS = {"ids": [1] * 60}
PADDED = {"ids": np.ones(128, "int64")}


@stage(lambda example: IDS)
def tokenize(example: Any) -> Any:
    ids = []
    for word in example["text"].split():
        while word:
            ids.append(sum(map(ord, word[:3])) % 30_000)
            word = word[3:]
    return {"ids": ids}


@stage(lambda example: PADDED)
def pad(example: Any) -> Any:
    ids = np.zeros(128, "int64")
    ids[: len(example["ids"])] = example["ids"][:128]
    return {"ids": ids}


def rows() -> Any:
    with open(sentences()) as file:
        for line in file:
            yield {"text": line}


def make() -> Any:
    data = datasets.IterableDataset.from_generator(rows).map(tokenize, remove_columns="text")
    return data.map(pad).batch(32)
