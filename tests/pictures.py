"""Real photographs, and every way a file of one can be odd or broken."""

import importlib.util
import io
import math
import struct
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tpuctl.datasets.models import PresizeOptions

if TYPE_CHECKING:
    from tpuctl.datasets.images._shrink import Shrunk

FILES = {
    "china": "sklearn/datasets/images/china.jpg",
    "flower": "sklearn/datasets/images/flower.jpg",
    "astronaut": "skimage/data/astronaut.png",
    "coffee": "skimage/data/coffee.png",
    "rocket": "skimage/data/rocket.jpg",
    "chelsea": "skimage/data/chelsea.png",
}
SUBJECTS = tuple(FILES)


@lru_cache
def photograph(subject: str = "china", width: int = 640, height: int = 427) -> Image.Image:
    """One of the photographs that scikit-learn and scikit-image carry, at a size of our choice."""
    return _original(subject).resize((width, height), Image.Resampling.BICUBIC)


@lru_cache
def _original(subject: str) -> Image.Image:
    # As a file: to import either library takes seconds.
    library, _, path = FILES[subject].partition("/")
    found = importlib.util.find_spec(library)
    assert found, f"{library} is not installed"
    assert found.submodule_search_locations
    with Image.open(Path(found.submodule_search_locations[0], path)) as picture:
        original: Image.Image = picture.convert("RGB")
    return original


def encoded(picture: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    if kind == "JPEG":
        options = {"quality": 92, **options}
    picture.save(out, kind, **options)
    return out.getvalue()


def shrink_all(data: bytes, sizes: Sequence[tuple[int, int]], **options: Any) -> "list[Shrunk]":
    """As the product does it, with the usual options and memory for everything."""
    from tpuctl.datasets.images import _shrink

    usual = {"mode": "cover", "fidelity": "balanced", "admit": lambda needed_bytes: nullcontext()}
    return _shrink.shrink_all(data, sizes, **{**usual, **options})


def shrink(data: bytes, size: tuple[int, int], **options: Any) -> "Shrunk":
    return shrink_all(data, (size,), **options)[0]


def pixels_of(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"))


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    assert one.shape == other.shape
    error = float(((one.astype(np.float64) - other.astype(np.float64)) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else 99.0


def exif(orientation: int, order: str = "<") -> bytes:
    head = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHI", 0x0112, 3, 1) + struct.pack(order + "HH", orientation, 0)
    block = head + struct.pack(order + "IH", 8, 1) + entry + struct.pack(order + "I", 0)
    return b"Exif\0\0" + block


def fill(folder: Path, count: int = 8, *, classes: int = 0, width: int = 320) -> Path:
    """Write `count` small JPEGs, in class folders if wanted."""
    for index in range(count):
        subject = SUBJECTS[index % len(SUBJECTS)]
        name = f"{index:03}.jpg"
        place = folder / f"class-{index % classes}" / name if classes else folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(_file(subject, width + 8 * index))
    return folder


@lru_cache
def _file(subject: str, width: int) -> bytes:
    return encoded(photograph(subject, width, 240))


def small(**options: Any) -> PresizeOptions:
    """Options for a presize that is over at once."""
    return PresizeOptions(**{"size": (48, 64), "workers": 1, **options})


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, byte for byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
