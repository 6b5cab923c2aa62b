"""Camera frames and steering angles picked one by one at random from HDF5 files, endless."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.pipelines.inputs import _made, photograph, stage

SOURCE = "https://github.com/commaai/research/blob/master/dask_generator.py"
NEEDS = "h5py"
STAGES = {
    "choose": r"choose|choice",
    "read_frames": r"read_frames|h5py|Dataset|__getitem__",
}


def write_drives(place: Path) -> None:
    """Two drives with 300 frames of three by 160 by 320 and five times as many log lines."""
    random = np.random.default_rng(0)
    for index in range(2):
        frame = photograph(index, 160, 320).transpose(2, 0, 1)
        for kind in ("camera", "log"):
            (place / kind).mkdir(parents=True, exist_ok=True)
            with h5py.File(place / kind / f"{index}.h5", "w") as file:
                if kind == "camera":
                    file["X"] = np.stack([np.roll(frame, i, 2) for i in range(300)])
                else:
                    file["speed"] = random.random(1500)
                    file["steering_angle"] = random.normal(0, 90, 1500)


DRIVES = sorted(_made("commaai", write_drives).glob("camera/*.h5"))
FRAMES = np.zeros((1, 3, 160, 320), "uint8")


def concatenate(time_len: int) -> Any:
    cameras, angles, speeds, filters, last = [], [], [], [], 0
    for path in DRIVES:
        x = h5py.File(path, "r")["X"]
        with h5py.File(str(path).replace("camera", "log"), "r") as log:
            speed, steering = log["speed"][:], log["steering_angle"][:]
        rows = np.linspace(0, len(steering) - 1, len(x)).astype("int")
        cameras.append((last, last + len(x), x))
        angles.append(steering[rows])
        speeds.append(speed[rows])
        filters.append(np.argwhere(np.abs(angles[-1]) <= 200)[time_len - 1 :] + last + time_len - 1)
        last += len(x)
    return cameras, np.concatenate(angles), np.concatenate(speeds), np.concatenate(filters).ravel()


@stage(lambda filters, known, time_len: 100)
def choose(filters: Any, known: set[int], time_len: int) -> int:
    while True:
        i = int(np.random.choice(filters))
        if all(j in known for j in (i - time_len + 1, i + 1)):
            return i


@stage(lambda cameras, i, time_len: FRAMES)
def read_frames(cameras: Any, i: int, time_len: int) -> Any:
    for start, end, x in cameras:
        if start <= i < end:
            return x[i - start - time_len + 1 : i - start + 1]
    raise IndexError(i)


def make(time_len: int = 1, batch_size: int = 256) -> Any:
    cameras, angle, speed, filters = concatenate(time_len)
    known = set(filters.tolist())
    x_batch = np.zeros((batch_size, time_len, 3, 160, 320), "uint8")
    angles, speeds = (np.zeros((batch_size, time_len, 1), "float32") for _ in range(2))
    while True:
        for count in range(batch_size):
            i = choose(filters, known, time_len)
            x_batch[count] = read_frames(cameras, i, time_len)
            angles[count] = np.copy(angle[i - time_len + 1 : i + 1])[:, None]
            speeds[count] = np.copy(speed[i - time_len + 1 : i + 1])[:, None]
        yield x_batch, angles, speeds
