"""Tacotron 2's pairs of text and mel spectrogram, the transform as a convolution, one worker."""

import math
from typing import Any

import numpy as np
import torch
from scipy.io import wavfile

from benchmarks.pipelines.inputs import sentences, sounds, stage

SOURCE = "https://github.com/NVIDIA/tacotron2/blob/master/data_utils.py"
NEEDS = "torch"
STAGES = {
    "load_wav": r"load_wav",
    "mel_spectrogram": r"mel_spectrogram",
    "text_to_sequence": r"text_to_sequence",
    "collate": r"collate",
}


SAMPLES = torch.zeros(1, 1, 16_000)
MEL = torch.zeros(80, 63)
TEXT = torch.ones(250, dtype=torch.int32)
BATCH = torch.zeros(8, 600, dtype=torch.int32), torch.zeros(8, 80, 64)
WAVES = torch.arange(513)[:, None] * torch.arange(1024) * (2 * math.pi / 1024)
WINDOW = torch.hann_window(1024)
FILTERS = (torch.cat([WAVES.cos(), WAVES.sin()]) * WINDOW)[:, None]
BANDS = torch.rand(80, 513)


@stage(lambda path: SAMPLES)
def load_wav(path: str) -> Any:
    _, samples = wavfile.read(path)
    return torch.from_numpy(samples.astype("float32"))[None, None] / 32768.0


@stage(lambda samples: MEL)
def mel_spectrogram(samples: Any) -> Any:
    padded = torch.nn.functional.pad(samples, (512, 512), mode="reflect")
    found = torch.nn.functional.conv1d(padded, FILTERS, stride=256)[0]
    return torch.log((BANDS @ torch.sqrt(found[:513] ** 2 + found[513:] ** 2)).clamp(min=1e-5))


@stage(lambda text: TEXT)
def text_to_sequence(text: str) -> Any:
    words = " ".join(text.lower().split())
    return torch.tensor([ord(char) - 32 for char in words[:600]], dtype=torch.int32)


@stage(lambda items: BATCH)
def collate(items: Any) -> Any:
    texts, mels = torch.zeros(8, 600, dtype=torch.int32), torch.zeros(8, 80, 64)
    for row, index in enumerate(np.argsort([-len(text) for text, _ in items])):
        text, mel = items[index]
        texts[row, : len(text)] = text
        mels[row, :, : mel.shape[1]] = mel
    return texts, mels


class TextMelLoader(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        with open(sentences()) as file:
            self.pairs = list(zip(sounds() * 20, file.read().splitlines(), strict=False))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        path, text = self.pairs[index]
        return text_to_sequence(text), mel_spectrogram(load_wav(path))


def make() -> Any:
    return torch.utils.data.DataLoader(
        TextMelLoader(), batch_size=8, num_workers=1, collate_fn=collate, drop_last=True
    )
