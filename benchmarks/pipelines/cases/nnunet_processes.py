"""nnU-Net: patches made by processes of a multi-threaded augmenter, handed over in queues."""

import multiprocessing
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage

from benchmarks.pipelines.inputs import packed_arrays, stage

SOURCE = (
    "https://github.com/MIC-DKFZ/nnUNet/blob/master/nnunetv2/training/dataloading/data_loader.py"
)
NEEDS = "scipy"
STAGES = {
    "load_case": r"load_case",
    "spatial_transform": r"spatial_transform",
    "gaussian_blur": r"gaussian_blur",
}

PATCH, PROCESSES = 96, 2
CASE = np.ones((256, 256, 3), "float32")
READY = np.ones((PATCH, PATCH, 3), "float32")


@stage(lambda path: CASE)
def load_case(path: str) -> Any:
    values = np.frombuffer(zlib.decompress(Path(path).read_bytes()), "<i2")
    return values.reshape(256, 256, 3).astype("float32")


@stage(lambda case, draw: READY)
def spatial_transform(case: Any, draw: Any) -> Any:
    angle, scale = draw.uniform(-0.5, 0.5), draw.uniform(0.7, 1.4)
    matrix = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    begin = draw.integers(0, 100, 2)
    planes = [
        scipy.ndimage.affine_transform(case[..., i], matrix, begin, (PATCH, PATCH), order=1)
        for i in range(3)
    ]
    return np.stack(planes, -1)


@stage(lambda patch, draw: patch)
def gaussian_blur(patch: Any, draw: Any) -> Any:
    return scipy.ndimage.gaussian_filter(patch, (draw.uniform(0.5, 1), draw.uniform(0.5, 1), 0))


def produce(queue: Any, seed: int) -> None:
    draw, paths = np.random.default_rng(seed), packed_arrays()
    while True:
        cases = [load_case(paths[i]) for i in draw.integers(0, len(paths), 4)]
        patches = [gaussian_blur(spatial_transform(case, draw), draw) for case in cases]
        queue.put({"data": np.stack(patches), "seed": seed})


def make() -> Any:
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(2) for _ in range(PROCESSES)]
    workers = [
        context.Process(target=produce, args=(queue, seed), daemon=True)
        for seed, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    try:
        while True:
            for queue in queues:
                yield queue.get()
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
