"""Decision Transformer: parts of trajectories with returns to go, padded and normalised."""

import random
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import stage

SOURCE = "https://github.com/kzl/decision-transformer/blob/master/gym/experiment.py"
NEEDS = "numpy"
STAGES = {
    "discount_cumsum": r"discount_cumsum",
    "pad": r"pad",
}

LENGTH, STATES, ACTIONS = 20, 11, 3
DRAW = np.random.default_rng(0)
TRAJECTORIES = [
    {"observations": DRAW.normal(size=(size, STATES)), "actions": DRAW.normal(size=(size, ACTIONS)),
     "rewards": DRAW.normal(size=size)} for size in DRAW.integers(100, 400, 100)
]  # fmt: skip
MEAN, STD = np.zeros(STATES), np.ones(STATES)
SIZES = np.array([len(each["rewards"]) for each in TRAJECTORIES])
READY = {
    "s": np.zeros((1, LENGTH, STATES)), "a": np.zeros((1, LENGTH, ACTIONS)),
    "r": np.zeros((1, LENGTH, 1)), "rtg": np.zeros((1, LENGTH, 1)), "mask": np.zeros((1, LENGTH)),
}  # fmt: skip


@stage(lambda x, gamma: x)
def discount_cumsum(x: Any, gamma: float) -> Any:
    found = np.zeros_like(x)
    found[-1] = x[-1]
    for t in reversed(range(x.shape[0] - 1)):
        found[t] = x[t] + gamma * found[t + 1]
    return found


@stage(lambda parts: READY)
def pad(parts: dict[str, Any]) -> Any:
    size = parts["s"].shape[1]
    fill = {"a": -10.0}
    found = {
        name: np.concatenate(
            [np.full((1, LENGTH - size, part.shape[2]), fill.get(name, 0.0)), part], axis=1
        )
        for name, part in parts.items()
    }
    found["s"] = (found["s"] - MEAN) / STD
    found["mask"] = np.concatenate([np.zeros((1, LENGTH - size)), np.ones((1, size))], axis=1)
    return found


def get_batch(size: int = 64) -> Any:
    chosen = np.random.choice(len(TRAJECTORIES), size, p=SIZES / SIZES.sum())
    parts = []
    for index in chosen:
        one = TRAJECTORIES[index]
        start = random.randint(0, len(one["rewards"]) - 1)
        end = start + LENGTH
        togo = discount_cumsum(one["rewards"][start:], 1.0)
        parts.append(pad({
            "s": one["observations"][start:end].reshape(1, -1, STATES),
            "a": one["actions"][start:end].reshape(1, -1, ACTIONS),
            "r": one["rewards"][start:end].reshape(1, -1, 1),
            "rtg": togo[:LENGTH].reshape(1, -1, 1),
        }))  # fmt: skip
    return {name: np.concatenate([p[name] for p in parts]).astype("float32") for name in parts[0]}


def make() -> Any:
    while True:
        yield get_batch()
