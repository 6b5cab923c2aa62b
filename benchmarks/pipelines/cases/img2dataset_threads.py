"""img2dataset's downloader: a pool of threads that wait for servers, OpenCV in the main one."""

import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.pipelines.inputs import photo_paths, photograph, stage

SOURCE = "https://github.com/rom1504/img2dataset/blob/main/img2dataset/downloader.py"
NEEDS = "cv2"
STAGES = {
    "download_image": r"download_image",
    "decode": r"decode",
    "resize_with_border": r"resize_with_border",
}


cv2.setNumThreads(1)
CONTENT = Path(photo_paths()[0]).read_bytes()
PHOTO = photograph()
SMALL = photograph(0, 256, 256)


@stage(lambda url: CONTENT)
def download_image(url: str) -> bytes:
    time.sleep(0.4)
    return Path(url).read_bytes()


@stage(lambda content: PHOTO)
def decode(content: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(content, "uint8"), 1)


@stage(lambda image: SMALL)
def resize_with_border(image: Any) -> Any:
    ratio = 256 / max(image.shape[:2])
    size = round(image.shape[1] * ratio), round(image.shape[0] * ratio)
    image = cv2.resize(image, size, interpolation=cv2.INTER_LANCZOS4)
    top = 256 - image.shape[0]
    return cv2.copyMakeBorder(image, top // 2, top - top // 2, 0, 0, cv2.BORDER_CONSTANT)


def make() -> Any:
    urls, images = photo_paths() * 100, []
    with ThreadPool(8) as pool:
        for content in pool.imap_unordered(download_image, urls):
            images.append(resize_with_border(decode(content)))
            if len(images) == 8:
                yield np.stack(images)
                images = []
