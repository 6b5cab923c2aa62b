"""Decode and shrink a photograph: ours against the best that other wheels can do.

One process, one core, CPU seconds; the candidates take turns on the same photographs in an order
that changes every round. Quality is PSNR against a full decode resampled by Pillow with the filter
that suits the candidate best. Only ratios within one run mean anything.
"""

import io
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from tpuctl.datasets._images import prepare_decoders, shrink
from tpuctl.datasets.geometry import choose_denominator, plan_fit
from tpuctl.demo._photographs import make_photographs
from tpuctl.demo.recipe import list_pictures
from tpuctl.progress import silent

SIDE = 224
SIZE = (SIDE, SIDE)
ROUNDS = 5
FILTERS = (
    Image.Resampling.BOX,
    Image.Resampling.HAMMING,
    Image.Resampling.LANCZOS,
    Image.Resampling.BICUBIC,
)
REDUCED = {
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}

Pixels = np.ndarray[Any, Any]
Candidate = Callable[[bytes], Pixels]


def ours(fidelity: Any) -> Candidate:
    return lambda data: shrink(data, SIZE, mode="stretch", fidelity=fidelity).pixels


def pillow_at_its_best(data: bytes) -> Pixels:
    """Scaled decode to 1.5 times the target, the exact box that draft() returns, Hamming."""
    image = Image.open(io.BytesIO(data))
    width, height = image.size
    ratios = (d for d in (8, 4, 2) if min(width, height) / d >= 1.5 * SIDE)
    divisor = next(ratios, 1)
    drafted = image.draft("RGB", (width // divisor, height // divisor))
    box = (0.0, 0.0, *map(float, image.size)) if drafted is None else drafted[1]
    return np.asarray(image.resize(SIZE, Image.Resampling.HAMMING, box=box))


def pillow_full(data: bytes) -> Pixels:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize(SIZE, Image.Resampling.LANCZOS))


def opencv_full(data: bytes) -> Pixels:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return cv2.cvtColor(cv2.resize(image, SIZE, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def opencv_reduced(data: bytes) -> Pixels:
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    divisor = next((d for d in (8, 4, 2) if min(width, height) / d >= SIDE), 1)
    flag = REDUCED.get(divisor, cv2.IMREAD_COLOR)
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    assert image is not None
    return cv2.cvtColor(cv2.resize(image, SIZE, interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def decode_only(data: bytes) -> Pixels:
    """simplejpeg at the scale that `balanced` chooses, and nothing after it."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    divisor = choose_denominator(plan_fit(width, height, SIZE, "stretch"), "balanced")
    pixels: Pixels = simplejpeg.decode_jpeg(
        data, min_height=-(-height // divisor), min_width=-(-width // divisor)
    )
    return pixels


CANDIDATES: dict[str, Candidate] = {
    "ours, fast": ours("fast"),
    "ours, balanced": ours("balanced"),
    "ours, high": ours("high"),
    "ours, exact": ours("exact"),
    "Pillow draft 1.5x, Hamming, box": pillow_at_its_best,
    "Pillow full, Lanczos": pillow_full,
    "OpenCV full, area": opencv_full,
    "OpenCV REDUCED 1x, area": opencv_reduced,
    "simplejpeg decode only": decode_only,
}


def photographs(folder: Path, *, progressive: bool) -> list[bytes]:
    make_photographs(list_pictures(2), folder, silent)
    rng = random.Random(1)
    found = []
    for path in sorted(folder.rglob("*.jpg")):
        picture = Image.open(path)
        scale = rng.uniform(0.5, 1.0)
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=90, progressive=progressive)
        found.append(out.getvalue())
    return found


def cpu_seconds(images: list[bytes], names: list[str]) -> dict[str, float]:
    """Sum over the images of the median CPU seconds that a candidate takes for one."""
    total = dict.fromkeys(names, 0.0)
    order = random.Random(2)
    for data in images:
        spent: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in order.sample(names, len(names)):
                start = time.process_time()
                CANDIDATES[name](data)
                spent[name].append(time.process_time() - start)
        for name, seconds in spent.items():
            total[name] += statistics.median(seconds)
    return total


def quality(images: list[bytes], name: str) -> tuple[float, float]:
    """Median and worst PSNR against the reference filter nearest to the candidate."""
    found = []
    for data in images:
        full = Image.open(io.BytesIO(data)).convert("RGB")
        small = CANDIDATES[name](data)
        found.append(max(psnr(small, np.asarray(full.resize(SIZE, f))) for f in FILTERS))
    return statistics.median(found), min(found)


def psnr(one: Pixels, other: Pixels) -> float:
    error = float(((one.astype(np.float64) - other) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else 99.0


def report(title: str, images: list[bytes], names: list[str]) -> None:
    prepare_decoders()
    spent = cpu_seconds(images, names)
    print(f"presize kernel, {title}, {len(images)} photographs to {SIDE}x{SIDE}:")
    print(f"  {'':34}{'speed':>7}  {'PSNR median / worst':>20}")
    for name in names:
        ratio = spent["ours, balanced"] / spent[name]
        if name == "simplejpeg decode only":
            print(f"  {name:34}{ratio:7.2f}")
        else:
            median, worst = quality(images, name)
            print(f"  {name:34}{ratio:7.2f}  {median:12.1f} / {worst:.1f} dB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        baseline = photographs(Path(folder), progressive=False)
        progressive = photographs(Path(folder), progressive=True)
    report("baseline", baseline, list(CANDIDATES))
    report(
        "progressive",
        progressive,
        [
            "ours, fast",
            "ours, balanced",
            "Pillow draft 1.5x, Hamming, box",
            "OpenCV REDUCED 1x, area",
        ],
    )


if __name__ == "__main__":
    main()
