"""Point clouds sampled by farthest points, turned and jittered, in a plain generator."""

import random
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import stage

SOURCE = "https://github.com/yanx27/Pointnet_Pointnet2_pytorch"
NEEDS = "numpy"
STAGES = {
    "farthest": r"farthest",
    "turn": r"turn",
    "jitter": r"jitter",
}

CLOUDS = np.random.default_rng(0).random((16, 2000, 3), "float32")
POINTS = CLOUDS[0, :128]


@stage(lambda cloud: POINTS)
def farthest(cloud: Any) -> Any:
    found, distance = [0], np.full(len(cloud), 1e9)
    for _ in range(127):
        distance = np.minimum(distance, ((cloud - cloud[found[-1]]) ** 2).sum(1))
        found.append(int(distance.argmax()))
    return cloud[found]


@stage(lambda cloud: cloud)
def turn(cloud: Any) -> Any:
    angle = random.random() * 6.28
    matrix = [[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    return cloud @ np.array(matrix, "float32")


@stage(lambda points: points)
def jitter(points: Any) -> Any:
    return points + np.clip(np.random.normal(0, 0.01, points.shape), -0.05, 0.05)


def make() -> Any:
    while True:
        yield np.stack([jitter(farthest(turn(random.choice(CLOUDS)))) for _ in range(8)])
