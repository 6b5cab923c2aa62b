"""Images that Pillow opens, converted to sRGB, and the contact sheet that it draws."""

import io
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import PIL
from PIL import Image, ImageCms, ImageDraw, ImageFont, UnidentifiedImageError

from tpuctl.datasets.images._pixels import Pixels
from tpuctl.datasets.images.geometry import Flag
from tpuctl.datasets.images.headers import is_tiled
from tpuctl.datasets.images.jpeg import exif_orientation
from tpuctl.datasets.quarantine import BadImageError
from tpuctl.printable import printable

if TYPE_CHECKING:
    from tpuctl.datasets.reading import Record

_CHANNEL_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_PROFILE_SPACES = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}
_ALREADY_SRGB = ("sRGB IEC61966", "sRGB built-in")


def to_srgb(pixels: Pixels, profile: bytes | None) -> tuple[Pixels, Flag]:
    """Convert grey, RGB or CMYK (ink amounts) to sRGB, by its profile where that is usable."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    channels = pixels.shape[2]
    flags = {1: Flag.GREY, 3: Flag(0), 4: Flag.CMYK}[channels]
    if profile:
        mode = _CHANNEL_MODES[channels]
        transform = _transform(profile, mode)
        if isinstance(transform, ImageCms.ImageCmsTransform):
            size = (pixels.shape[1], pixels.shape[0])
            image = Image.frombytes(mode, size, np.ascontiguousarray(pixels).tobytes())
            return np.asarray(transform.apply(image)), flags | Flag.PROFILE_APPLIED
        flags |= Flag.PROFILE_UNUSABLE if transform is None else Flag(0)
    if channels == 1:
        return np.repeat(pixels, 3, axis=2), flags
    return (pixels if channels == 3 else _mix_inks(pixels)), flags


def _mix_inks(inks: Pixels) -> Pixels:
    """Convert CMYK without a profile: each ink takes its share of what black leaves."""
    light = 255 - inks.astype(np.uint16)
    mixed: Pixels = ((light[:, :, :3] * light[:, :, 3:] + 127) // 255).astype(np.uint8)
    return mixed


@lru_cache(maxsize=32)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | bool | None:
    """Prepare the conversion to sRGB; True where none is needed, None where none is possible."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if _PROFILE_SPACES.get(source.profile.xcolor_space.strip()) != mode:
            return None
        if (source.profile.profile_description or "").startswith(_ALREADY_SRGB):
            return True
        return ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            mode,
            "RGB",
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


_READS_PAST_TILES = int(PIL.__version__.partition(".")[0]) < 13
_BITS_PER_SAMPLE = 258
# Pillow copies what it converts: band by band these copies stay small.
_BAND_PIXELS = 1 << 20


@dataclass(frozen=True)
class Raster:
    """An opened, not yet decoded image: Pillow has read its header and no more."""

    image: Image.Image
    data: bytes
    kind: str

    @property
    def width(self) -> int:
        """Columns, as stored."""
        return self.image.width

    @property
    def height(self) -> int:
        """Rows, as stored."""
        return self.image.height

    @property
    def profile(self) -> bytes | None:
        """The embedded colour profile."""
        profile = self.image.info.get("icc_profile")
        return profile if isinstance(profile, bytes) and profile else None

    @property
    def orientation(self) -> int:
        """The Exif orientation still to be applied; Pillow applies that of a TIFF itself."""
        exif = self.image.info.get("exif")
        if self.kind == "tiff" or not isinstance(exif, bytes):
            return 1
        return exif_orientation(exif.removeprefix(b"Exif\0\0"))


def open_raster(data: bytes, kind: str) -> Raster:
    """Read the header; raises BadImageError."""
    if kind == "png":
        _check_png_chunks(data)
    if kind == "tiff" and _READS_PAST_TILES and is_tiled(data):
        raise BadImageError("unsupported", "a tiled TIFF needs Pillow 13 (CVE-2026-112395)")
    with _translated_errors():
        return Raster(Image.open(io.BytesIO(data), formats=(kind.upper(),)), data, kind)


def decode_raster(raster: Raster) -> tuple[Pixels, Flag]:
    """Decode the first frame to grey, RGB or CMYK of 8 bits; alpha goes over white."""
    image = raster.image
    with _translated_errors():
        flags = Flag.FIRST_OF_SEVERAL if getattr(image, "is_animated", False) else Flag(0)
        image.load()
        if _is_deep_colour(raster) and (deep := _decode_deep_colour(raster.data)) is not None:
            alpha = Flag.ALPHA_ON_WHITE if deep.shape[2:] == (4,) else Flag(0)
            return _in_bands(deep, 1 if deep.ndim == 2 else 3, _reduce), (
                flags | alpha | Flag.FROM_16_BIT
            )
        if image.mode.startswith("I;16") or (image.mode == "I" and raster.kind == "png"):
            grey = _in_bands(image, 1, lambda band: _reduce(np.asarray(band).astype(np.uint16)))
            return grey, flags | Flag.FROM_16_BIT
        if image.mode in ("I", "F"):
            raise BadImageError("unsupported", f"32-bit pixels ({image.mode})")
        if image.has_transparency_data:
            return _in_bands(image, 3, _flatten), flags | Flag.ALPHA_ON_WHITE
        channels = {"1": 1, "L": 1, "CMYK": 4}.get(image.mode, 3)
        mode = {1: "L", 3: "RGB", 4: "CMYK"}[channels]
        return _in_bands(image, channels, lambda band: np.asarray(band.convert(mode))), flags


def _in_bands(source: Any, channels: int, convert: Callable[[Any], Pixels]) -> Pixels:
    """Convert an image or an array to bytes, some rows at a time."""
    is_array = isinstance(source, np.ndarray)
    height, width = source.shape[:2] if is_array else (source.height, source.width)
    pixels = np.empty((height, width, channels)[: 2 if channels == 1 else 3], np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        end = min(top + rows, height)
        band = source[top:end] if is_array else source.crop((0, top, width, end))
        pixels[top:end] = convert(band)
    return pixels


def _reduce(deep: Pixels) -> Pixels:
    """Reduce 16 bits, as OpenCV orders them, to 8."""
    small = cv2.convertScaleAbs(deep, alpha=255 / 65535)
    if small.ndim == 2:
        return small
    if small.shape[2] == 4:
        return _flatten(Image.fromarray(cv2.cvtColor(small, cv2.COLOR_BGRA2RGBA)))
    return cv2.cvtColor(small, cv2.COLOR_BGR2RGB)


def _flatten(image: Image.Image) -> Pixels:
    """Put an image with alpha on white."""
    picture = image.convert("RGBA")
    canvas = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    canvas.alpha_composite(picture)
    return np.asarray(canvas.convert("RGB"))


def _is_deep_colour(raster: Raster) -> bool:
    """Whether there are 16 bits in more than one channel, which Pillow would cut to the upper 8."""
    if raster.kind == "png":
        return raster.data[24] == 16 and raster.data[25] in (2, 4, 6)
    bits = getattr(raster.image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
    return len(bits) > 1 and set(bits) == {16}


def _decode_deep_colour(data: bytes) -> Pixels | None:
    deep = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return deep if deep is not None and deep.dtype == np.uint16 else None


def _check_png_chunks(data: bytes) -> None:
    """Walk the chunks up to IEND and compare every checksum (PNG specification, section 5.3)."""
    position = 8
    while True:
        if position + 12 > len(data):
            raise BadImageError("truncated", "the file ends before its last chunk")
        length = int.from_bytes(data[position : position + 4], "big")
        end = position + 12 + length
        if end > len(data):
            raise BadImageError("truncated", "the file ends inside a chunk")
        if zlib.crc32(data[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            name = data[position + 4 : position + 8].decode("ascii", "replace")
            raise BadImageError("corrupt", f"wrong checksum of chunk {name}")
        if data[position + 4 : position + 8] == b"IEND":
            return
        position = end


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Pillow raises almost anything for broken files; all of it becomes a reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (BadImageError, MemoryError, KeyboardInterrupt):
        raise
    except Image.DecompressionBombError as error:
        raise BadImageError("bomb", str(error)) from error
    except UnidentifiedImageError as error:
        raise BadImageError("corrupt", "its header is not valid") from error
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        reason = "truncated" if "truncated" in detail.lower() else "corrupt"
        raise BadImageError(reason, detail) from error  # type: ignore[arg-type]


_CELL, _GAP, _TEXT = 128, 8, 18
_PAPER, _INK, _SOFT = "#ffffff", "#1c2330", "#566073"
_HEAD = 48


def draw_sheet(
    records: Iterable["Record"], count: int, classes: Sequence[str], title: str, about: str
) -> Image.Image:
    """Lay out records row by row in a grid that is nearly square, below what they are of."""
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    sheet = Image.new(
        "RGB",
        (_GAP + columns * (_CELL + _GAP), _HEAD + rows * (_CELL + _TEXT + _GAP)),
        _PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    font, width = ImageFont.load_default(13), sheet.width - 2 * _GAP
    for y, size, ink, text in ((7, 16, _INK, title), (28, 12, _SOFT, about)):
        large = ImageFont.load_default(size)
        draw.text((_GAP, y), _shortened(draw, large, printable(text), width), ink, large)
    for index, record in enumerate(records):
        left = _GAP + index % columns * (_CELL + _GAP)
        top = _HEAD + index // columns * (_CELL + _TEXT + _GAP)
        picture = Image.fromarray(record.array())
        picture.thumbnail((_CELL, _CELL), Image.Resampling.HAMMING)
        beside, above = (_CELL - picture.width) // 2, (_CELL - picture.height) // 2
        sheet.paste(picture, (left + beside, top + above))
        has_class = 0 <= record.label < len(classes)
        caption = classes[record.label] if has_class else record.key.rpartition("/")[2]
        text = _shortened(draw, font, printable(caption), _CELL)
        draw.text((left, top + _CELL + 1), text, fill=_INK, font=font)
    return sheet


def _shortened(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    text: str,
    width: int,
) -> str:
    """Cut a text to a width."""
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(text + "…", font=font) > width:
        text = text[:-1]
    return text + "…"
