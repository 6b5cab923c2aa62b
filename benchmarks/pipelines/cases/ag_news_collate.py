"""News split by regular expressions and looked up in the collate function, without workers."""

import re
from pathlib import Path
from typing import Any

import torch

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://pytorch.org/tutorials/beginner/text_sentiment_ngrams_tutorial.html"
NEEDS = "torch"
STAGES = {
    "tokenizer": r"tokenizer|basic_english",
    "vocab": r"vocab",
}

PATTERNS = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\'", " '  "), (r"\"", ""), (r"\.", " . "), (r"<br \/>", " "), (r",", " , "),
        (r"\(", " ( "), (r"\)", " ) "), (r"\!", " ! "), (r"\?", " ? "), (r"\;", " "),
        (r"\:", " "), (r"\s+", " "),
    )
]  # fmt: skip
LINES = Path(sentences()).read_text().splitlines()
NEWS = [
    (index % 4 + 1, f"{line[:60].title()} (Reuters) Reuters - {line[60:260]}, officials said.")
    for index, line in enumerate(LINES)
]
INDICES = {
    word: i + 1 for i, word in enumerate(sorted({w for line in LINES for w in line.split()}))
}
WORDS = LINES[0].split()[:30]


@stage(lambda text: WORDS)
def tokenizer(text: str) -> list[str]:
    text = text.lower()
    for pattern, new in PATTERNS:
        text = pattern.sub(new, text)
    return text.split()


@stage(lambda words: [1] * 40)
def vocab(words: list[str]) -> list[int]:
    return [INDICES.get(word, 0) for word in words]


def text_pipeline(text: str) -> list[int]:
    return list(vocab(tokenizer(text)))


def collate_batch(batch: Any) -> Any:
    labels, texts, offsets = [], [], [0]
    for label, text in batch:
        labels.append(int(label) - 1)
        processed = torch.tensor(text_pipeline(text), dtype=torch.int64)
        texts.append(processed)
        offsets.append(processed.size(0))
    starts = torch.tensor(offsets[:-1]).cumsum(dim=0)
    return torch.tensor(labels, dtype=torch.int64), torch.cat(texts), starts


def make() -> Any:
    train, _ = torch.utils.data.random_split(NEWS, [0.95, 0.05])  # type: ignore[arg-type, var-annotated]
    return torch.utils.data.DataLoader(train, batch_size=64, shuffle=True, collate_fn=collate_batch)
