"""The resampler alone, on exact rectangles: nothing shifted, nothing overlooked."""

import cv2
import numpy as np
import pytest

from tests.pictures import photograph, psnr
from tpuctl.datasets._resample import (
    Rect,
    _interpolate,
    _interpolate_anywhere,
    _start,
    resample,
    resample_exactly,
)

PIXELS = np.asarray(photograph("astronaut", 701, 467))


def smooth() -> np.ndarray:
    """A picture without detail, whose every shift would show in its values."""
    y, x = np.mgrid[0:467, 0:701]
    channels = np.dstack([x / 701, y / 467, (x + y) / 1168])
    pixels: np.ndarray = (255 * channels).round().astype(np.uint8)
    return pixels


def rectangles(count: int) -> list[Rect]:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        left, top = (float(edge) for edge in np.round(rng.uniform(0, 90, 2) * 8) / 8)
        found.append((left, top, 700.625 - left, 466.25 - top))
    return [(0.0, 0.0, 700.25, 466.75), (88.5, 0.0, 612.25, 467.0), *found]


@pytest.mark.parametrize("rect", rectangles(12))
@pytest.mark.parametrize("method", [cv2.INTER_LINEAR, cv2.INTER_CUBIC])
def test_starting_at_a_whole_pixel_gives_what_starting_anywhere_gives(
    rect: Rect, method: int
) -> None:
    for pixels in (PIXELS, smooth()):
        quick = _interpolate(pixels, rect, 448, 448, method)
        exact = _interpolate_anywhere(pixels, rect, 448, 448, method)
        assert psnr(quick, exact) > 44


def test_half_a_pixel_too_far_would_be_seen() -> None:
    left, top, right, bottom = 88.5, 10.0, 612.25, 460.0
    here = _interpolate(PIXELS, (left, top, right, bottom), 448, 448, cv2.INTER_LINEAR)
    there = (left + 0.5, top, right + 0.5, bottom)
    shifted = _interpolate_anywhere(PIXELS, there, 448, 448, cv2.INTER_LINEAR)
    assert psnr(here, shifted) < 36


def test_a_start_is_a_whole_pixel_from_which_samples_lead_to_the_edge() -> None:
    for edge, step in ((0.0, 1.3), (88.375, 0.761), (112.0, 1.0), (57.5, 0.583)):
        start = _start(edge, step)
        assert start is not None
        assert abs(start.pixel + start.samples * step - edge) <= 1 / 32
        assert start.pixel >= 0


@pytest.mark.parametrize(("edge", "step"), [(88.5, 1.0), (0.3, 1.5), (10.25, 2.0)])
def test_an_edge_that_no_sample_can_begin_at_is_told(edge: float, step: float) -> None:
    assert _start(edge, step) is None


@pytest.mark.parametrize("side", [40, 57, 96, 150, 224, 300, 466])
@pytest.mark.parametrize("rect", rectangles(2))
def test_every_ratio_comes_close_to_the_reference(side: int, rect: Rect) -> None:
    quick = resample(PIXELS, rect, side, side)
    assert quick.shape == (side, side, 3)
    assert psnr(quick, resample_exactly(PIXELS, rect, side, side)) > 36


def striped() -> np.ndarray:
    """Columns of which one in eight is white, and much wider than high."""
    stripes = np.zeros((128, 4096, 3), np.uint8)
    stripes[:, 4::8] = 255
    return stripes


def test_very_different_ratios_overlook_no_pixel() -> None:
    small = resample(striped(), (0.0, 0.0, 4096.0, 128.0), 64, 64)
    assert abs(float(small.mean()) - 255 / 8) < 2
    assert np.ptp(small) < 8


def test_bilinear_alone_would_have_overlooked_them() -> None:
    assert cv2.resize(striped(), (64, 64), interpolation=cv2.INTER_LINEAR).mean() < 5
