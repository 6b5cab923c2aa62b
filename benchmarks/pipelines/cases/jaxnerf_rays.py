"""JaxNeRF's rays: a thread with a short queue, for a model that takes far longer."""

import queue
import threading
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import photograph, stage

SOURCE = "https://github.com/google-research/google-research/blob/master/jaxnerf/nerf/datasets.py"
NEEDS = "numpy"
STAGES = {
    "generate_rays": r"generate_rays",
    "pick": r"pick",
}
CONSUMER = "slow"


SIZE, BATCH = 200, 1024
IMAGES = np.stack([photograph(seed, SIZE, SIZE) for seed in range(8)]).astype("float32") / 255.0
RAYS = np.zeros((SIZE * SIZE, 9), "float32")
PICKED = np.zeros((BATCH, 3), "float32"), np.zeros((BATCH, 9), "float32")


@stage(lambda camera: RAYS)
def generate_rays(camera: Any) -> Any:
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="xy")
    ahead = np.stack([(x - SIZE / 2) / 140, (SIZE / 2 - y) / 140, -np.ones_like(x)], -1)
    directions = (ahead[..., None, :] * camera[:3, :3]).sum(-1)
    origins = np.broadcast_to(camera[:3, 3], directions.shape)
    views = directions / np.linalg.norm(directions, axis=-1, keepdims=True)
    return np.concatenate([origins, directions, views], -1).reshape(-1, 9).astype("float32")


@stage(lambda image, rays: PICKED)
def pick(image: Any, rays: Any) -> Any:
    chosen = np.random.randint(0, len(rays), (BATCH,))
    return image.reshape(-1, 3)[chosen], rays[chosen]


class Dataset(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.queue: queue.Queue[Any] = queue.Queue(3)
        self.start()

    def run(self) -> None:
        while True:
            index = np.random.randint(len(IMAGES))
            camera = np.eye(4) + 0.1 * index
            self.queue.put(pick(IMAGES[index], generate_rays(camera)))

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.queue.get()


def make() -> Any:
    return Dataset()
