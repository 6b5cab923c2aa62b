"""Source files streamed by datasets, shuffled, tokenized by the buffer, cut into equal chunks."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import torch

from benchmarks.pipelines.inputs import _made, is_left_out, sentences, stage

SOURCE = (
    "https://github.com/huggingface/transformers/blob/v4.49.0/"
    "examples/research_projects/codeparrot/scripts/codeparrot_training.py"
)
NEEDS = "datasets"
STAGES = {
    "stream": r"stream|load_dataset|json|shuffle|arrow|IterableDataset",
    "tokenizer": r"tokenizer|tokenize|bpe",
}

LENGTH, BUFFER = 1024, 128 * 1024 * 3.6


def write_files(place: Path) -> None:
    """Two JSON lines files of 400 sources each, of 10 to 60 lines."""
    place.mkdir()
    lines = Path(sentences()).read_text().splitlines()
    for shard in range(2):
        with (place / f"file-{shard:012}.json").open("w") as file:
            for index in range(400):
                start = (shard * 400 + index) * 4
                body = [
                    f"    {line[:12]} = {line[12:52]!r}\n" for line in lines[start : start + 60]
                ]
                file.write(json.dumps({"content": "def f(self):\n" + "".join(body)}) + "\n")


PATHS = sorted(map(str, _made("codeparrot", write_files).glob("*.json")))
PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
CONTENT = json.loads(Path(PATHS[0]).read_text().split("\n")[0])
CACHE: dict[str, list[int]] = {}


def bpe(piece: str) -> list[int]:
    """Pairs of bytes, kept as the tokenizer of GPT-2 keeps what it has merged."""
    if piece not in CACHE:
        content = piece.encode()
        CACHE[piece] = [hash(content[i : i + 2]) % 32_768 for i in range(0, len(content), 2)]
    return CACHE[piece]


@stage(lambda texts: [[1] * (len(text) // 3) for text in texts])
def tokenizer(texts: list[str]) -> list[list[int]]:
    return [[i for piece in PIECES.findall(text) for i in bpe(piece)] for text in texts]


class ConstantLengthDataset(torch.utils.data.IterableDataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Any:
        rows = iter(self.data)
        while True:
            buffer, size = [], 0
            while size < BUFFER:
                try:
                    buffer.append(next(rows)["content"])
                    size += len(buffer[-1])
                except StopIteration:
                    rows = iter(self.data)
            ids: list[int] = []
            for each in tokenizer(buffer):
                ids.extend([*each, 0])
            for i in range(0, len(ids) - LENGTH + 1, LENGTH):
                yield torch.tensor(ids[i : i + LENGTH])


def make() -> Any:
    data: Any = [CONTENT] * 800
    if not is_left_out("stream"):
        data = datasets.load_dataset("json", data_files=PATHS, split="train", streaming=True)
        data = data.shuffle(buffer_size=1000, seed=1)
    return torch.utils.data.DataLoader(ConstantLengthDataset(data), batch_size=12)
