"""Which part of a picture becomes which pixels: pure arithmetic in its own coordinates."""

from dataclasses import dataclass
from typing import Literal

from tpuctl.datasets.quarantine import BadImageError

Mode = Literal["cover", "contain", "stretch", "short"]
Fidelity = Literal["fast", "balanced", "high", "exact"]

# How many decoded pixels there must be for one of the result, in each direction.
OVERSAMPLING: dict[Fidelity, float] = {"fast": 1.0, "balanced": 1.5, "high": 2.0, "exact": 2.0}

MAX_RESULT_PIXELS = 50_000_000


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
    """Fit a picture of `width` x `height` into `size` (height, width).

    `cover` fills the size and cuts the longer side evenly at both ends; `contain` shows the whole
    picture on black; `stretch` ignores the aspect ratio; `short` makes the shorter side
    `size[0]` long and keeps the whole picture, so that results differ in size.
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
