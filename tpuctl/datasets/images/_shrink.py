"""Turn the bytes of an image file into a small sRGB image, and reject broken files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from tpuctl.datasets.images import file_type, headers, jpeg
from tpuctl.datasets.images._pixels import Pixels, halve, resample, resample_exactly
from tpuctl.datasets.images._rasters import Raster, decode_raster, open_raster, to_srgb
from tpuctl.datasets.images.geometry import (
    Fidelity,
    Fit,
    Flag,
    Mode,
    choose_denominator,
    plan_fit,
    with_orientation,
)
from tpuctl.datasets.images.memory import Admit
from tpuctl.datasets.quarantine import BadImageError

# What the samples, the turned and the converted copy of a result take.
_RESULT_BYTES = 24

_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")

# Exif orientation -> (flip left-right first, then quarter turns counter-clockwise).
_TURNS = {
    1: (False, 0),
    2: (True, 0),
    3: (False, 2),
    4: (True, 2),
    5: (True, 1),
    6: (False, 3),
    7: (True, 3),
    8: (False, 1),
}


@dataclass(frozen=True)
class Shrunk:
    """A small image, the displayed size of the original, and what was done to it."""

    pixels: Pixels
    original_width: int
    original_height: int
    flags: int


def prepare_decoders() -> None:
    """Limit each library to one thread, because processes run in parallel.

    Removes Pillow's limit of pixels: memory is limited instead.
    """
    cv2.setNumThreads(1)
    Image.MAX_IMAGE_PIXELS = None


def shrink_all(
    data: bytes,
    sizes: Sequence[tuple[int, int]],
    *,
    mode: Mode,
    fidelity: Fidelity,
    admit: Admit,
) -> list[Shrunk]:
    """Decode an image once, as finely as the largest size needs, and fit it into each of them.

    Sizes are (height, width). `admit` is asked for the memory that the header announces before any
    decoder sees the file. Raises BadImageError.
    """
    kind = _require_kind(data)
    header = jpeg.read_header(data) if kind == "jpeg" else headers.read_canvas(data, kind)
    fits, _, denominators = _plan(header, sizes, mode, fidelity)
    needed = header.memory_bytes(min(denominators)) + 2 * len(data)
    needed += sum(_RESULT_BYTES * fit.canvas_width * fit.canvas_height for fit in fits)
    try:
        room = admit(needed)
    except BadImageError as bad:
        size = f"{header.width}x{header.height} pixels"
        raise BadImageError(bad.reason, f"{size}: {bad.detail}") from None
    try:
        with room:
            return _shrink_admitted(data, kind, sizes, mode, fidelity)
    except MemoryError as error:
        raise BadImageError("bomb", "not enough memory to decode it") from error


def _shrink_admitted(
    data: bytes, kind: str, sizes: Sequence[tuple[int, int]], mode: Mode, fidelity: Fidelity
) -> list[Shrunk]:
    header = jpeg.read_header(data) if kind == "jpeg" else open_raster(data, kind)
    fits, stored, denominators = _plan(header, sizes, mode, fidelity)
    width, height = header.width, header.height
    orientation, profile = header.orientation, header.profile
    shown = (height, width) if orientation >= 5 else (width, height)
    if isinstance(header, Raster):
        denominator, (decoded, decoder_flags) = 1, decode_raster(header)
    else:
        denominator = min(denominators)
        decoded, decoder_flags = _decode_jpeg(data, header, denominator, fidelity)
    del header  # Pillow's own copy of the image.
    smalls = _fit_all(decoded, denominator, stored, denominators, fidelity)
    found = []
    for small, fit in zip(smalls, fits, strict=True):
        pixels, colour_flags = to_srgb(_turn(small, orientation), profile)
        flags = decoder_flags | colour_flags | (Flag.ENLARGED if fit.enlarges else Flag(0))
        found.append(Shrunk(_pad(pixels, fit), *shown, with_orientation(flags, orientation)))
    return found


def _plan(
    header: jpeg.JpegHeader | headers.Canvas | Raster,
    sizes: Sequence[tuple[int, int]],
    mode: Mode,
    fidelity: Fidelity,
) -> tuple[list[Fit], list[Fit], list[int]]:
    """Plan the fit of an image as displayed and as stored, and the scale to decode it at."""
    turned = header.orientation >= 5
    shown = (header.height, header.width) if turned else (header.width, header.height)
    fits = [plan_fit(*shown, size, mode) for size in sizes]
    stored = [fit.transposed if turned else fit for fit in fits]
    return fits, stored, [choose_denominator(fit, fidelity) for fit in stored]


def _require_kind(data: bytes) -> str:
    if not data:
        raise BadImageError("empty", "no bytes")
    kind = file_type.sniff(data[: file_type.HEAD_BYTES])
    if kind is None:
        raise BadImageError("not_image", f"begins with {data[:8].hex(' ')}")
    if kind not in file_type.DECODABLE:
        raise BadImageError("unsupported", f"{kind} files cannot be read here")
    return kind


def _decode_jpeg(
    data: bytes, header: jpeg.JpegHeader, denominator: int, fidelity: Fidelity
) -> tuple[Pixels, Flag]:
    flags = Flag(0)
    coarse = header.progressive and denominator >= 2 and fidelity in ("fast", "balanced")
    if coarse and (shorter := jpeg.drop_refinements(data, denominator)) is not None:
        data, flags = shorter, Flag.SCANS_DROPPED
    try:
        pixels = _strictly(data, header, denominator)
    except ValueError as error:
        pixels = _salvage(data, header, denominator, str(error))
        flags |= Flag.SALVAGED
    if header.components == 4 and header.adobe:
        pixels = 255 - pixels
    return pixels, flags


def _strictly(data: bytes, header: jpeg.JpegHeader, denominator: int) -> Pixels:
    """Decode at 1/denominator; a ValueError for anything that libjpeg finds fault with."""
    colours = {1: "GRAY", 3: "RGB", 4: "CMYK"}[header.components]
    if denominator == 1:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colours, strict=True)
        return pixels
    height, width = -(-header.height // denominator), -(-header.width // denominator)
    pixels = simplejpeg.decode_jpeg(data, colours, min_height=height, min_width=width, strict=True)
    if pixels.shape[:2] != (height, width):
        raise BadImageError("corrupt", f"decoded to {pixels.shape[1]}x{pixels.shape[0]}")
    return pixels


def _salvage(data: bytes, header: jpeg.JpegHeader, denominator: int, complaint: str) -> Pixels:
    """Accept an image that lacks nothing but its end marker, or has only zeros too many."""
    if not jpeg.ends_properly(data):
        if not header.progressive or jpeg.all_scans_present(data, header):
            try:
                return _strictly(data + b"\xff\xd9", header, denominator)
            except ValueError:
                pass
        raise BadImageError("truncated", complaint)
    if match := _EXTRANEOUS.search(complaint):
        end = data.rfind(b"\xff\xd9")
        surplus = data[end - int(match[1]) : end]
        if surplus and not surplus.strip(b"\0"):
            try:
                return _strictly(data[: end - len(surplus)] + b"\xff\xd9", header, denominator)
            except ValueError:
                pass
    raise BadImageError("corrupt", complaint)


def _fit_all(
    decoded: Pixels,
    denominator: int,
    fits: Sequence[Fit],
    denominators: Sequence[int],
    fidelity: Fidelity,
) -> list[Pixels]:
    """Fit one decoded image into all sizes; a JPEG for smaller ones is halved like its decoder.

    A decoder at half the scale returns the means of 2 x 2 of these pixels.
    """
    way = resample_exactly if fidelity in ("high", "exact") else resample
    halves = {denominator: decoded}
    smalls = []
    for fit, wanted in zip(fits, denominators, strict=True):
        while len(fits) > 1 and (coarsest := max(halves)) < wanted:
            halves[2 * coarsest] = halve(halves[coarsest])
        scale = wanted if wanted in halves else denominator
        left, top, right, bottom = (edge / scale for edge in fit.rect)
        smalls.append(way(halves[scale], (left, top, right, bottom), fit.width, fit.height))
    return smalls


def _turn(pixels: Pixels, orientation: int) -> Pixels:
    flip, quarters = _TURNS[orientation]
    if flip:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(np.rot90(pixels, quarters) if quarters else pixels)


def _pad(pixels: Pixels, fit: Fit) -> Pixels:
    """Put the image in the middle of a black canvas; most fill it already."""
    beside, below = fit.canvas_width - fit.width, fit.canvas_height - fit.height
    if not beside and not below:
        return np.ascontiguousarray(pixels)
    left, top = beside // 2, below // 2
    return cv2.copyMakeBorder(
        pixels, top, below - top, left, beside - left, cv2.BORDER_CONSTANT, value=(0, 0, 0)
    )
