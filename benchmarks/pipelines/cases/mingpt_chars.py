"""minGPT's character data set: a dictionary look-up per character in __getitem__."""

from typing import Any

import torch

from benchmarks.pipelines.inputs import sentences, stage

SOURCE = "https://github.com/karpathy/minGPT/blob/master/projects/chargpt/chargpt.py"
NEEDS = "torch"
STAGES = {
    "look_up": r"look_up",
    "__getitem__": r"__getitem__",
}


IDS = [1] * 513
READY = torch.zeros(512, dtype=torch.long)


class CharDataset(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        with open(sentences()) as file:
            self.data = file.read(200_000)
        self.codes = {char: i for i, char in enumerate(sorted(set(self.data)))}

    def __len__(self) -> int:
        return len(self.data) - 512

    @stage(
        lambda self, index: (look_up(self.codes, self.data[index : index + 513]), (READY, READY))[1]
    )
    def __getitem__(self, index: int) -> Any:
        ids = look_up(self.codes, self.data[index : index + 513])
        found = torch.tensor(ids, dtype=torch.long)
        return found[:-1], found[1:]


@stage(lambda codes, text: IDS)
def look_up(codes: Any, text: str) -> Any:
    return [codes[char] for char in text]


def make() -> Any:
    return torch.utils.data.DataLoader(CharDataset(), batch_size=64, shuffle=True)
