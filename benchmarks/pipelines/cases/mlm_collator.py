"""A collator that pads and masks tokens for every batch, over a Hugging Face data set of ids."""

from typing import Any

import datasets
import numpy as np
import torch

from benchmarks.pipelines.inputs import is_left_out, stage

SOURCE = (
    "https://github.com/huggingface/transformers/blob/main/src/transformers/data/data_collator.py"
)
NEEDS = "datasets"
STAGES = {
    "rows": r"__getitems__|__getitem__|rows",
    "pad": r"pad",
    "mask_tokens": r"mask_tokens",
}


LENGTH, WORDS = 256, 30_522
SIZES = np.random.default_rng(0).integers(128, LENGTH, 2048)
IDS = [np.random.default_rng(size).integers(999, WORDS, size).tolist() for size in SIZES]
PADDED = torch.full((32, LENGTH), 999)


@stage(lambda rows: PADDED)
def pad(rows: Any) -> Any:
    found = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for index, row in enumerate(rows):
        found[index, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    return found


@stage(lambda ids: (PADDED, PADDED))
def mask_tokens(ids: Any) -> Any:
    labels, ids = ids, ids.clone()
    chances = torch.full(ids.shape, 0.15).masked_fill(ids == 0, 0.0)
    masked = torch.bernoulli(chances).bool()
    replaced = torch.bernoulli(torch.full(ids.shape, 0.8)).bool() & masked
    ids[replaced] = 103
    random = torch.bernoulli(torch.full(ids.shape, 0.5)).bool() & masked & ~replaced
    words = torch.randint(WORDS, ids.shape)
    ids[random] = words[random]
    return ids, labels.masked_fill(~masked, -100)


def torch_call(rows: Any) -> Any:
    ids, labels = mask_tokens(pad(rows))
    return {"input_ids": ids, "labels": labels}


def make() -> Any:
    data: Any = [{"input_ids": ids} for ids in IDS]
    if not is_left_out("rows"):
        data = datasets.Dataset.from_dict({"input_ids": IDS})
    return torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, collate_fn=torch_call)
