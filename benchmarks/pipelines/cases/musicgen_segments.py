"""MusicGen's audio: random segments read from WAV files, resampled, mixed and padded."""

import random
import wave
from typing import Any

import numpy as np
import torch

from benchmarks.pipelines.inputs import sounds, stage

SOURCE = "https://github.com/facebookresearch/audiocraft/blob/main/audiocraft/data/audio_dataset.py"
NEEDS = "torch"
STAGES = {
    "audio_read": r"audio_read",
    "convert_audio": r"convert_audio|resample",
}

SECONDS, RATE, WANTED = 0.5, 16_000, 24_000
READ = torch.zeros(1, int(SECONDS * RATE))
CONVERTED = torch.zeros(1, int(SECONDS * WANTED))


@stage(lambda path, seek: READ)
def audio_read(path: str, seek: float) -> Any:
    with wave.open(path) as file:
        file.setpos(int(seek * RATE))
        values = np.frombuffer(file.readframes(int(SECONDS * RATE)), "<i2")
    return torch.from_numpy(values.astype("float32") / 32768)[None]


def kernels(old: int = 2, new: int = 3, zeros: int = 24) -> Any:
    steps = torch.arange(-zeros * old, (zeros + 1) * old)
    times = (steps[None] / old - torch.arange(new)[:, None] / new) * 0.945 * min(old, new)
    times = times.clamp(-zeros, zeros) * torch.pi
    return (torch.sinc(times / torch.pi) * torch.cos(times / zeros / 2) ** 2)[:, None]


@stage(lambda audio: CONVERTED)
def convert_audio(audio: Any) -> Any:
    filters = kernels()
    padded = torch.nn.functional.pad(audio[None], (48, 50))
    found = torch.nn.functional.conv1d(padded, filters, stride=2)
    return found.transpose(1, 2).reshape(1, -1)[:, : int(SECONDS * WANTED)]


class AudioDataset:
    def __init__(self) -> None:
        self.paths = sounds()

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        draw = random.Random(index)
        audio = audio_read(draw.choice(self.paths), draw.random() * 0.45)
        audio = convert_audio(audio)
        return torch.nn.functional.pad(audio, (0, int(SECONDS * WANTED) - audio.shape[-1]))


def make() -> Any:
    data: Any = AudioDataset()
    return torch.utils.data.DataLoader(
        data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
    )
