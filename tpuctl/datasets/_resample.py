"""From many pixels to few: the exact rectangle, a good low-pass, nothing shifted.

A scaled JPEG of width W comes as ceil(W/d) columns that cover exactly W/d cells. Resampling the
rectangle (0, 0, W/d, H/d) instead of the array is worth 10 dB.
"""

import math
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

# Always of uint8; OpenCV's own annotations promise less.
Pixels = npt.NDArray[Any]
Rect = tuple[float, float, float, float]

# Below this many source pixels per result pixel the bilinear step alone is low-pass enough.
_FILTER_ABOVE = 1.05
_PHASES = 16
_RATIO_STEPS = 64
_NEGLIGIBLE_TAP = 0.004


def resample(pixels: Pixels, rect: Rect, width: int, height: int, *, keep: float) -> Pixels:
    """Resample `rect` of an array to `width` x `height`.

    Before the filter, the array is halved while at least `keep` pixels per result pixel remain:
    what a scaled JPEG decode does, for what is not a JPEG or still too large.
    """
    pixels, rect = _cut(pixels, rect, width, height)
    x_ratio, y_ratio = (rect[2] - rect[0]) / width, (rect[3] - rect[1]) / height
    while min(x_ratio, y_ratio) >= 2 * keep:
        pixels = _halve(pixels)
        rect = (rect[0] / 2, rect[1] / 2, rect[2] / 2, rect[3] / 2)
        x_ratio, y_ratio = x_ratio / 2, y_ratio / 2
    if x_ratio > _FILTER_ABOVE or y_ratio > _FILTER_ABOVE:
        pixels = cv2.sepFilter2D(
            pixels, -1, _kernel(x_ratio), _kernel(y_ratio), borderType=cv2.BORDER_REPLICATE
        )
    enlarges = x_ratio < 1 or y_ratio < 1
    return _sample(pixels, rect, width, height, cv2.INTER_CUBIC if enlarges else cv2.INTER_LINEAR)


def resample_exactly(pixels: Pixels, rect: Rect, width: int, height: int) -> Pixels:
    """Do the same with Pillow's Hamming filter (bicubic to enlarge): slower, the reference."""
    enlarges = rect[2] - rect[0] < width or rect[3] - rect[1] < height
    method = Image.Resampling.BICUBIC if enlarges else Image.Resampling.HAMMING
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    image = Image.frombuffer(
        {1: "L", 3: "RGB", 4: "CMYK"}[channels],
        (pixels.shape[1], pixels.shape[0]),
        np.ascontiguousarray(pixels),
    )
    return np.asarray(image.resize((width, height), method, box=rect))


def _cut(pixels: Pixels, rect: Rect, width: int, height: int) -> tuple[Pixels, Rect]:
    """Leave out what no result pixel can see."""
    left, top, right, bottom = rect
    x_margin, y_margin = 2 * (right - left) / width + 4, 2 * (bottom - top) / height + 4
    x0, y0 = max(0, int(left - x_margin)), max(0, int(top - y_margin))
    x1 = min(pixels.shape[1], math.ceil(right + x_margin))
    y1 = min(pixels.shape[0], math.ceil(bottom + y_margin))
    return pixels[y0:y1, x0:x1], (left - x0, top - y0, right - x0, bottom - y0)


def _halve(pixels: Pixels) -> Pixels:
    """Average cells of 2x2, the only ones for which OpenCV is fast."""
    below, beside = pixels.shape[0] % 2, pixels.shape[1] % 2
    if below or beside:
        pixels = cv2.copyMakeBorder(pixels, 0, below, 0, beside, cv2.BORDER_REPLICATE)
    size = (pixels.shape[1] // 2, pixels.shape[0] // 2)
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def _sample(pixels: Pixels, rect: Rect, width: int, height: int, method: int) -> Pixels:
    x_step, y_step = (rect[2] - rect[0]) / width, (rect[3] - rect[1]) / height
    inverse = np.array(
        [
            [x_step, 0.0, rect[0] + 0.5 * x_step - 0.5],
            [0.0, y_step, rect[1] + 0.5 * y_step - 0.5],
        ]
    )
    return cv2.warpAffine(
        pixels,
        inverse,
        (width, height),
        flags=method | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


def _kernel(ratio: float) -> npt.NDArray[np.float32]:
    if ratio <= _FILTER_ABOVE:
        return np.ones(1, np.float32)
    return _fitted_kernel(round(ratio * _RATIO_STEPS))


@lru_cache(maxsize=512)
def _fitted_kernel(ratio_steps: int) -> npt.NDArray[np.float32]:
    """Fit the taps that make "filter, then sample bilinearly" a Hamming resampler.

    Bilinear sampling at phase p mixes two neighbours with weights 1-p and p, so that the effective
    kernel at offset t is (1-p) h[t] + p h[t-1]. Least squares over all phases finds h: 5 dB better
    than a box of the right width at the same cost.
    """
    ratio = ratio_steps / _RATIO_STEPS
    reach = math.ceil(ratio)
    offsets = np.arange(-reach - 1, reach + 3)
    taps = np.arange(-reach, reach + 1)
    rows, wanted = [], []
    for phase in np.arange(_PHASES) / _PHASES:
        here = (offsets[:, None] == taps[None, :]).astype(np.float64)
        next_one = (offsets[:, None] - 1 == taps[None, :]).astype(np.float64)
        rows.append((1 - phase) * here + phase * next_one)
        wanted.append(_hamming((offsets - phase) / ratio) / ratio)
    solution = np.linalg.lstsq(np.concatenate(rows), np.concatenate(wanted), rcond=None)[0]
    symmetric: npt.NDArray[np.float64] = (solution + solution[::-1]) / 2
    return _in_256ths(symmetric / symmetric.sum())


def _in_256ths(taps: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Round taps to what OpenCV's fixed-point filter takes, where none is really negative.

    It filters bytes a third faster, provided that the sum is exactly one.
    """
    if taps.min() < -_NEGLIGIBLE_TAP:
        return taps.astype(np.float32)
    steps = np.round(256 * np.clip(taps, 0, None))
    steps[len(steps) // 2] += 256 - steps.sum()
    return (np.trim_zeros(steps) / 256).astype(np.float32)


def _hamming(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Pillow's Hamming filter of support 1."""
    inside = np.abs(x) < 1
    shape: npt.NDArray[np.float64] = np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x))
    return np.where(inside, shape, 0.0)
