"""Resize images, and encode and decode the small ones for records."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from tpuctl.datasets.images.geometry import MAX_RESULT_PIXELS, chroma_sides
from tpuctl.datasets.images.headers import read_canvas
from tpuctl.datasets.images.jpeg import read_header
from tpuctl.datasets.quarantine import BadImageError

# Always of uint8; OpenCV's own annotations promise less.
Pixels = npt.NDArray[Any]
Rect = tuple[float, float, float, float]

# From here on whole cells of 2x2 are averaged first, which costs next to nothing.
_HALVE_FROM = 4.0
# One sample per result pixel is low-pass enough up to here.
_ONE_SAMPLE_UP_TO = 1.5
# Bilinear samples closer together than pixels blur, by up to 8 dB: bicubic ones up to these steps.
_CUBIC_UP_TO_ALONE = 1.25
_CUBIC_UP_TO_AVERAGED = 1.0
# A bilinear sample averages two pixels, so that steps of up to two overlook none.
_LONGEST_STEP = 2.0
_CUBIC_REACH = 2
# How far a sample may be moved, in pixels: too little to see.
_SNAP = 1 / 32
# A longer one would cost more than the reference does.
_LONGEST_LEAD = 128


def resample(pixels: Pixels, rect: Rect, width: int, height: int) -> Pixels:
    """Resample `rect` of an array to `width` x `height`."""
    x_ratio, y_ratio = (rect[2] - rect[0]) / width, (rect[3] - rect[1]) / height
    while min(x_ratio, y_ratio) >= _HALVE_FROM:
        pixels, rect = halve(pixels), (rect[0] / 2, rect[1] / 2, rect[2] / 2, rect[3] / 2)
        x_ratio, y_ratio = x_ratio / 2, y_ratio / 2
    x_samples, y_samples = _samples_per_pixel(x_ratio), _samples_per_pixel(y_ratio)
    x = _place_samples(rect[0], rect[2], width * x_samples)
    y = _place_samples(rect[1], rect[3], height * y_samples)
    if x is None or y is None:
        return resample_exactly(pixels, rect, width, height)
    method = _choose_method(x.step, y.step, x_samples * y_samples)
    dense = _interpolate(pixels, x, y, method)
    return _average(dense, width, height)


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


def halve(pixels: Pixels) -> Pixels:
    """Average cells of 2x2, the only ones for which OpenCV is fast; an odd edge is repeated."""
    below, beside = pixels.shape[0] % 2, pixels.shape[1] % 2
    if below or beside:
        pixels = cv2.copyMakeBorder(pixels, 0, below, 0, beside, cv2.BORDER_REPLICATE)
    size = (pixels.shape[1] // 2, pixels.shape[0] // 2)
    return cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)


def _samples_per_pixel(ratio: float) -> int:
    """Choose how many samples to average, a power of two, so that no source pixel is left out."""
    samples = 1 if ratio <= _ONE_SAMPLE_UP_TO else 2
    while ratio / samples > _LONGEST_STEP:
        samples *= 2
    return samples


def _choose_method(x_step: float, y_step: float, samples: int) -> int:
    """Choose how to interpolate: the steps between samples, and how many are averaged to one."""
    if samples == 1:
        is_fine = min(x_step, y_step) < _CUBIC_UP_TO_ALONE
    else:
        is_fine = x_step * y_step < _CUBIC_UP_TO_AVERAGED**2
    return cv2.INTER_CUBIC if is_fine else cv2.INTER_LINEAR


def _average(pixels: Pixels, width: int, height: int) -> Pixels:
    """Average neighbours in pairs until the size is right."""
    while pixels.shape[1] > width or pixels.shape[0] > height:
        size = (max(width, pixels.shape[1] // 2), max(height, pixels.shape[0] // 2))
        both = size[0] < pixels.shape[1] and size[1] < pixels.shape[0]
        # Halving one axis, bilinear is the same mean of two, with SIMD that "area" has not.
        method = cv2.INTER_AREA if both else cv2.INTER_LINEAR
        pixels = cv2.resize(pixels, size, interpolation=method)
    return pixels


class _Axis(NamedTuple):
    """Where one axis is sampled: every `step` pixels from pixel `begin` on, which is a whole one.

    The rectangle has `length` samples, after the `lead` that are there to begin at a whole pixel.
    """

    begin: int
    end: int
    step: float
    lead: int
    length: int


def _place_samples(first: float, last: float, length: int) -> _Axis | None:
    """Place `length` samples between two edges, each in the middle of its cell; None if none fit.

    `cv2.resize` can begin at whole pixels only; stepping back from a fractional edge, the samples
    come close enough to one sooner or later, unless the step is all but a whole number.
    """
    step, end = (last - first) / length, math.ceil(last) + _CUBIC_REACH
    if abs(first) <= _SNAP:
        return _Axis(0, end, step, 0, length)
    for lead in range(math.ceil(_CUBIC_REACH / step), _LONGEST_LEAD):
        begin = first - lead * step
        if begin < 0:
            return None
        if abs(begin - round(begin)) <= _SNAP:
            return _Axis(round(begin), end, step, lead, length)
    return None


def _interpolate(pixels: Pixels, x: _Axis, y: _Axis, method: int) -> Pixels:
    seen = pixels[y.begin : y.end, x.begin : x.end]
    samples = cv2.resize(seen, None, fx=1 / x.step, fy=1 / y.step, interpolation=method)
    return samples[y.lead : y.lead + y.length, x.lead : x.lead + x.length]


def encode_picture(pixels: Pixels, encode: str, quality: int | None) -> bytes:
    """Encode height x width x 3 of uint8; `quality` (1 to 100) is that of JPEG and WebP."""
    if encode == "raw":
        return pixels.tobytes()
    if encode == "yuv420":
        return _encode_planes(pixels)
    if encode == "jpeg":
        return encode_jpeg(pixels, quality or 95)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    how = [cv2.IMWRITE_WEBP_QUALITY, quality or 95] if encode == "webp" else []
    _, data = cv2.imencode(f".{encode}", bgr, how)
    return data.tobytes()


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Compress at 4:4:4: sub-sampling would cost more than all the shrinking before it."""
    return bytes(simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="444"))


def decode_picture(image: bytes, encode: str, shape: tuple[int, int, int]) -> Pixels:
    """Decode the image of a record; raises ValueError when it is damaged."""
    _check_shape(image, encode, shape)
    if encode not in _DECODERS:
        raise ValueError(f"{encode!r} is not an encoding of images")
    pixels = _DECODERS[encode](image, shape)
    if pixels.shape != shape:
        raise ValueError(f"it is {pixels.shape}, not {shape}")
    return pixels


def _check_shape(image: bytes, encode: str, shape: tuple[int, int, int]) -> None:
    """Compare the size that an image announces with its record; raises ValueError."""
    height, width, _ = shape
    if not (height > 0 and width > 0 and height * width <= MAX_RESULT_PIXELS):
        raise ValueError(f"{height}x{width} is not the size of an image that presize writes")
    if encode in ("jpeg", "png", "webp"):
        try:
            header = read_canvas(image, encode) if encode != "jpeg" else read_header(image)
        except BadImageError as bad:
            raise ValueError(bad.detail) from bad
        if (header.height, header.width) != (height, width):
            raise ValueError(f"it is {header.height}x{header.width}, not {height}x{width}")


def _decode_jpeg(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    pixels: Pixels = simplejpeg.decode_jpeg(image, "RGB", strict=True)
    return pixels


def _decode_by_opencv(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    decoded = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) if image else None
    if decoded is None:
        raise ValueError("OpenCV cannot decode it")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def _encode_planes(pixels: Pixels) -> bytes:
    """Write full-range BT.601 as I420: all of Y, then U and V at half size (JPEG's own siting)."""
    luma, red, blue = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_RGB2YCrCb))
    return b"".join(plane.tobytes() for plane in (luma, halve(blue), halve(red)))


def _decode_planes(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    height, width, _ = shape
    rows, columns = chroma_sides(height, width)
    flat = np.frombuffer(image, np.uint8)
    luma, blue, red = np.split(flat, [height * width, height * width + rows * columns])
    chroma = [
        cv2.resize(plane.reshape(rows, columns), None, fx=2, fy=2)[:height, :width]
        for plane in (red, blue)
    ]
    return cv2.cvtColor(cv2.merge([luma.reshape(height, width), *chroma]), cv2.COLOR_YCrCb2RGB)


_DECODERS: dict[str, Callable[[bytes, tuple[int, int, int]], Pixels]] = {
    "raw": lambda image, shape: np.frombuffer(image, np.uint8).reshape(shape),
    "yuv420": _decode_planes,
    "jpeg": _decode_jpeg,
    "webp": _decode_by_opencv,
    "png": _decode_by_opencv,
}
