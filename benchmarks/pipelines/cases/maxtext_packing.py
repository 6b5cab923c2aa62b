"""MaxText's Grain pipeline: texts tokenised, packed by first fit, targets shifted."""

from typing import Any

import grain
import numpy as np

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = (
    "https://github.com/AI-Hypercomputer/maxtext/"
    "blob/main/src/MaxText/input_pipeline/_grain_data_processing.py"
)
NEEDS = "grain"
STAGES = {
    "tokenize": r"tokenize",
    "shift": r"shift",
}


LENGTH = 2048
TOKENS = {"inputs": np.ones(1300, "int32"), "targets": np.ones(1300, "int32")}
SCORES = {chr(a) + chr(b): (a * 31 + b * 17) % 97 for a in range(97, 123) for b in range(97, 123)}


@stage(lambda text: TOKENS)
def tokenize(text: str) -> Any:
    ids = [1]
    for word in text.split():
        # The best way to cut a word into one and two letters, as a unigram model does.
        best = [(0, 0)]
        for end in range(1, len(word) + 1):
            options = [(best[end - 1][0] - 60, end - 1)]
            if end > 1:
                options.append((best[end - 2][0] - SCORES.get(word[end - 2 : end], 99), end - 2))
            best.append(max(options))
        end = len(word)
        while end:
            start = best[end][1]
            ids.append(hash(word[start:end]) % 32_000)
            end = start
    tokens = np.array(ids[:LENGTH], "int32")
    return {"inputs": tokens, "targets": tokens}


@stage(lambda packed: packed)
def shift(packed: Any) -> Any:
    moved = np.zeros_like(packed["inputs"])
    moved[1:] = packed["inputs"][:-1]
    return {**packed, "inputs": np.where(packed["inputs_positions"] == 0, 0, moved)}


def make() -> Any:
    with open(sentences()) as file:
        lines = file.read().splitlines()
    texts = [" ".join(lines[i : i + 8]) for i in range(0, len(lines), 8)]
    data = grain.MapDataset.source(texts).shuffle(seed=0).repeat().map(tokenize)
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    data = grain.experimental.FirstFitPackIterDataset(
        data, length_struct={"inputs": LENGTH, "targets": LENGTH}, num_packing_bins=4
    )
    return data.map(shift).batch(4, drop_remainder=True)
