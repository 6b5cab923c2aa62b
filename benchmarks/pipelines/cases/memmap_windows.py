"""Windows of a memory map, differenced and scaled, picked by index, finite."""

from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import stage, tokens

SOURCE = "https://github.com/thuml/Autoformer/blob/main/data_provider/data_loader.py"
NEEDS = "numpy"
STAGES = {
    "window": r"window",
    "time_features": r"time_features",
    "normalize": r"normalize",
}

READY = np.ones(4096, "float32")
FEATURES = np.ones((4096, 4), "float32")


@stage(lambda series, start: READY)
def window(series: Any, start: int) -> Any:
    return np.diff(series[start : start + 4097].astype("float32"))


@stage(lambda start: FEATURES)
def time_features(start: int) -> Any:
    minutes = np.arange(start, start + 4096)
    parts = [minutes % 60 / 59, minutes // 60 % 24 / 23, minutes // 1440 % 7 / 6]
    return np.stack([*parts, np.sin(minutes / 525_600)], -1).astype("float32") - 0.5


@stage(lambda values: READY)
def normalize(values: Any) -> Any:
    return (values - values.mean()) / (values.std() + 1e-5)


class Windows:
    def __init__(self) -> None:
        self.series = np.memmap(tokens(), "uint16", mode="r")

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        start = index * 4096
        return np.c_[normalize(window(self.series, start)), time_features(start)]


def make() -> Any:
    return Windows()
