"""How an image is fitted into a size, what was done to it (`flags`), and YUV planes as RGB."""

import enum
from dataclasses import dataclass
from typing import Any, Literal

from tpuctl.datasets.quarantine import BadImageError

_ORIENTATION_SHIFT = 12


class Flag(enum.IntFlag):
    """One bit each; the Exif orientation that was applied sits above them."""

    SALVAGED = 1
    ENLARGED = 2
    GREY = 4
    CMYK = 8
    PROFILE_APPLIED = 16
    PROFILE_UNUSABLE = 32
    ALPHA_ON_WHITE = 64
    FROM_16_BIT = 128
    SCANS_DROPPED = 256
    FIRST_OF_SEVERAL = 512


def with_orientation(flags: int, orientation: int) -> int:
    """Store an Exif orientation of 1 to 8 among the flags."""
    return int(flags) | orientation << _ORIENTATION_SHIFT


Mode = Literal["cover", "contain", "stretch", "short"]
Fidelity = Literal["fast", "balanced", "high", "exact"]

# How many decoded pixels there must be for one of the result, in each direction.
OVERSAMPLING: dict[Fidelity, float] = {"fast": 1.0, "balanced": 1.5, "high": 2.0, "exact": 2.0}

# The largest `--size`, and a panorama in mode short.
MAX_RESULT_PIXELS = 8192 * 8192


@dataclass(frozen=True)
class Fit:
    """A rectangle of the source (left, top, right, bottom), its size in pixels, and the canvas."""

    rect: tuple[float, float, float, float]
    width: int
    height: int
    canvas_width: int
    canvas_height: int

    @property
    def enlarges(self) -> bool:
        """Whether the result has more pixels than the source can fill."""
        left, top, right, bottom = self.rect
        return right - left < self.width or bottom - top < self.height

    @property
    def transposed(self) -> "Fit":
        """The same with the two axes exchanged."""
        left, top, right, bottom = self.rect
        return Fit(
            (top, left, bottom, right),
            self.height,
            self.width,
            self.canvas_height,
            self.canvas_width,
        )


def plan_fit(width: int, height: int, size: tuple[int, int], mode: Mode) -> Fit:
    """Fit an image of `width` x `height` into `size` (height, width).

    `cover` fills the size and cuts the longer side evenly at both ends; `contain` shows the whole
    image on black; `stretch` ignores the aspect ratio; `short` makes the shorter side
    `size[0]` long and keeps the whole image, so that results differ in size.
    """
    whole = (0.0, 0.0, float(width), float(height))
    target_height, target_width = size
    if mode == "stretch":
        return Fit(whole, target_width, target_height, target_width, target_height)
    if mode == "cover":
        scale = max(target_width / width, target_height / height)
        cut_x = max(0.0, (width - target_width / scale) / 2)
        cut_y = max(0.0, (height - target_height / scale) / 2)
        rect = (cut_x, cut_y, width - cut_x, height - cut_y)
        return Fit(rect, target_width, target_height, target_width, target_height)
    if mode == "contain":
        scale = min(target_width / width, target_height / height)
        inner_width = min(target_width, max(1, round(width * scale)))
        inner_height = min(target_height, max(1, round(height * scale)))
        return Fit(whole, inner_width, inner_height, target_width, target_height)
    scale = target_height / min(width, height)
    inner_width, inner_height = max(1, round(width * scale)), max(1, round(height * scale))
    if inner_width * inner_height > MAX_RESULT_PIXELS:
        raise BadImageError("unsupported", f"would become {inner_width}x{inner_height}")
    return Fit(whole, inner_width, inner_height, inner_width, inner_height)


def choose_denominator(fit: Fit, fidelity: Fidelity) -> int:
    """Choose how much smaller a JPEG may be decoded: 1, 2, 4 or 8.

    Only these are exact block means and fast (libjpeg-turbo#297).
    """
    if fidelity == "exact":
        return 1
    left, top, right, bottom = fit.rect
    wanted = OVERSAMPLING[fidelity]
    fits = (
        d
        for d in (8, 4, 2)
        if (right - left) / d >= wanted * fit.width and (bottom - top) / d >= wanted * fit.height
    )
    return next(fits, 1)


def chroma_sides(height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the U and the V plane: half, rounded up."""
    return (height + 1) // 2, (width + 1) // 2


def yuv420_bytes(height: int, width: int) -> int:
    """Return how many bytes an image takes as planes."""
    rows, columns = chroma_sides(height, width)
    return height * width + 2 * rows * columns


def yuv420_to_rgb(planes: Any, height: int, width: int, *, xp: Any) -> Any:
    """Convert a batch of flat I420 (batch x bytes) to float RGB (batch x height x width x 3).

    Values are 0 to 255 of float32. `xp` is numpy, jax.numpy or tensorflow.experimental.numpy.
    Full-range BT.601, as in JFIF; chroma is interpolated bilinearly around its centres.
    """
    rows, columns = chroma_sides(height, width)
    chroma_bytes = rows * columns
    start = height * width
    flat = xp.asarray(planes, dtype=xp.float32)
    luma = xp.reshape(flat[:, :start], (-1, height, width))
    blue = xp.reshape(flat[:, start : start + chroma_bytes], (-1, rows, columns)) - 128.0
    red = xp.reshape(flat[:, start + chroma_bytes :], (-1, rows, columns)) - 128.0
    blue, red = (_doubled(plane, xp)[:, :height, :width] for plane in (blue, red))
    rgb = (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
    return xp.clip(xp.stack(rgb, axis=-1), 0.0, 255.0)


def _doubled(planes: Any, xp: Any) -> Any:
    """Double rows and columns bilinearly: three quarters of a cell, one of its neighbour."""
    for axis in (1, 2):
        cells = planes if axis == 1 else xp.swapaxes(planes, 1, 2)
        before = xp.concatenate([cells[:, :1], cells[:, :-1]], axis=1)
        after = xp.concatenate([cells[:, 1:], cells[:, -1:]], axis=1)
        pairs = xp.stack([0.75 * cells + 0.25 * before, 0.75 * cells + 0.25 * after], axis=2)
        wide = xp.reshape(pairs, (-1, 2 * cells.shape[1], cells.shape[2]))
        planes = wide if axis == 1 else xp.swapaxes(wide, 1, 2)
    return planes
