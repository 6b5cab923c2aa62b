"""The resampler alone, on exact rectangles: nothing shifted, nothing overlooked."""

import cv2
import numpy as np
import pytest

from tests.pictures import photograph, psnr
from tpuctl.datasets.images._pixels import (
    Pixels,
    Rect,
    _interpolate,
    _place_samples,
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


def interpolate(pixels: Pixels, rect: Rect, side: int, method: int) -> Pixels | None:
    x, y = (_place_samples(rect[axis], rect[axis + 2], side) for axis in (0, 1))
    return None if x is None or y is None else _interpolate(pixels, x, y, method)


def interpolate_anywhere(pixels: Pixels, rect: Rect, side: int, method: int) -> Pixels:
    """The same by other means, which begin at any fraction of a pixel and take much longer."""
    left, top, right, bottom = rect
    x_step, y_step = (right - left) / side, (bottom - top) / side
    inverse = np.array(
        [[x_step, 0.0, left + 0.5 * x_step - 0.5], [0.0, y_step, top + 0.5 * y_step - 0.5]]
    )
    flags = method | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        pixels, inverse, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )


@pytest.mark.parametrize("method", [cv2.INTER_LINEAR, cv2.INTER_CUBIC])
def test_starting_at_a_whole_pixel_gives_what_starting_anywhere_gives(method: int) -> None:
    compared = 0
    for rect in rectangles(12):
        for pixels in (PIXELS, smooth()):
            quick = interpolate(pixels, rect, 448, method)
            if quick is not None:
                assert psnr(quick, interpolate_anywhere(pixels, rect, 448, method)) > 44
                compared += 1
    assert compared >= 16


def test_half_a_pixel_too_far_would_be_seen() -> None:
    left, top, right, bottom = 88.5, 10.0, 612.25, 460.0
    here = interpolate(PIXELS, (left, top, right, bottom), 448, cv2.INTER_LINEAR)
    assert here is not None
    there = (left + 0.5, top, right + 0.5, bottom)
    shifted = interpolate_anywhere(PIXELS, there, 448, cv2.INTER_LINEAR)
    assert psnr(here, shifted) < 36


def test_samples_begin_at_a_whole_pixel_and_lead_to_the_edge() -> None:
    for edge, step in ((0.0, 1.3), (1e-13, 0.908), (88.375, 0.761), (112.0, 1.0), (57.5, 0.583)):
        axis = _place_samples(edge, edge + 448 * step, 448)
        assert axis is not None
        assert abs(axis.begin + axis.lead * axis.step - edge) <= 1 / 32
        assert axis.begin >= 0


NOWHERE = [(88.5, 1.0), (0.3, 1.5), (10.25, 2.0)]


@pytest.mark.parametrize(("edge", "step"), NOWHERE)
def test_an_edge_that_no_sample_can_begin_at_gets_the_reference(edge: float, step: float) -> None:
    side = 200
    assert _place_samples(edge, edge + side * step, side) is None
    rect = (edge, 0.0, edge + side * step, 400.0)
    reference = resample_exactly(PIXELS, rect, side, 400)
    assert np.array_equal(resample(PIXELS, rect, side, 400), reference)


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
