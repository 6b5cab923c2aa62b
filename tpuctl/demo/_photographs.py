"""Make the demo's images with OpenCV from images in scikit-image and scikit-learn."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import skimage.data
import sklearn.datasets

from tpuctl.demo.photographs import Picture
from tpuctl.progress import OnProgress, Progress
from tpuctl.storage.local import write_atomically

Image = np.ndarray[Any, Any]

_SOURCES: dict[str, Callable[[], Image]] = {
    "astronaut": skimage.data.astronaut,
    "cat": skimage.data.chelsea,
    "coffee": skimage.data.coffee,
    "flower": lambda: sklearn.datasets.load_sample_image("flower.jpg"),
    "galaxies": skimage.data.hubble_deep_field,
    "motorcycle": lambda: skimage.data.stereo_motorcycle()[0],
    "rocket": skimage.data.rocket,
    "temple": lambda: sklearn.datasets.load_sample_image("china.jpg"),
}
# Camera JPEGs have 1 to 2 bits per pixel; this much noise brings the enlargements there.
_NOISE_SIGMA = 3.0
_NOISE_SIDE = 1024


def make_photographs(pictures: list[Picture], folder: Path, on_progress: OnProgress) -> None:
    """Write the missing images; a file under its final name is complete."""
    missing = [picture for picture in pictures if not (folder / picture.name).exists()]
    sources = {subject: _SOURCES[subject]() for subject in {p.subject for p in missing}}
    noise = np.random.default_rng(0).normal(0, _NOISE_SIGMA, (_NOISE_SIDE, _NOISE_SIDE, 1))
    noise = noise.astype(np.float32)

    def make(picture: Picture) -> None:
        image = _draw(picture, sources[picture.subject], noise)
        write_atomically(folder / picture.name, _encode(image, picture.quality))

    done = len(pictures) - len(missing)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(make, picture) for picture in missing]
        try:
            for future in futures:
                future.result()
                done += 1
                on_progress(Progress("images", done, len(pictures), "images"))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _draw(picture: Picture, source: Image, noise: Any) -> Image:
    """Crop, flip, enlarge and expose one source, then add sensor noise."""
    height, width = source.shape[:2]
    crop_width = int(width * picture.scale)
    crop_height = min(int(crop_width * picture.height / picture.width), height)
    left = int((width - crop_width) * picture.left / (1 - picture.scale))
    top = int((height - crop_height) * picture.top / (1 - picture.scale))
    crop = source[top : top + crop_height, left : left + crop_width]
    crop = crop[:, ::-1] if picture.flip else crop
    size = (picture.width, picture.height)
    large = cv2.resize(np.ascontiguousarray(crop), size, interpolation=cv2.INTER_CUBIC)
    shifts = np.random.default_rng(picture.noise_seed).integers(0, _NOISE_SIDE, 2)
    tiles = (-(-picture.height // _NOISE_SIDE), -(-picture.width // _NOISE_SIDE), 1)
    grain = np.tile(np.roll(noise, tuple(shifts), (0, 1)), tiles)[: picture.height, : picture.width]
    exposed = cv2.convertScaleAbs(large, alpha=picture.gain)
    noisy: Image = cv2.add(exposed, np.repeat(grain, 3, axis=2), dtype=cv2.CV_8U)
    return noisy


def _encode(image: Image, quality: int) -> bytes:
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    ok, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not ok:
        raise ValueError(f"OpenCV could not encode an image of shape {image.shape}")
    return bytes(data)
