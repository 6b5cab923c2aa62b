"""Size of an image and memory that its decoder needs, read from its header without a decoder.

JPEG has a module of its own. Layouts: PNG 11.2.2, GIF89a sections 18 to 24, BITMAPINFOHEADER,
RFC 9649 (WebP), TIFF 6.0 section 2 and BigTIFF.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.datasets.images import jpeg
from tpuctl.datasets.quarantine import BadImageError

# Bytes per pixel at the peak, measured (7.6, 19.6, 15.8) and rounded up; copies made of some rows
# at a time come on top. "Deep" is 16 bits in several channels, which OpenCV decodes.
_PILLOW_BYTES, _DEEP_BYTES, _WEBP_BYTES = 8, 22, 18
_BAND_PIXELS, _BAND_BYTES = 1 << 20, 48


@dataclass(frozen=True)
class Canvas:
    """Columns, rows, and the memory that decoding takes at most."""

    width: int
    height: int
    decode_bytes: int
    orientation: int = 1

    def memory_bytes(self, denominator: int) -> int:
        """The memory for decoding: these formats are always decoded whole."""
        return self.decode_bytes


def read_canvas(data: bytes, kind: str) -> Canvas:
    """Read the header of a file that `file_type.sniff` named; raises BadImageError."""
    width, height, pixel_bytes, more = _READERS[kind](data)
    if width < 1 or height < 1:
        raise BadImageError("corrupt", f"the header says {width}x{height}")
    pixels = width * height
    bands = min(pixels, _BAND_PIXELS) * _BAND_BYTES
    return Canvas(width, height, pixels * pixel_bytes + more + bands)


def memory_for_tensorflow(data: bytes, kind: str) -> int:
    """Bound what TensorFlow takes: it decodes JPEGs at full size and all frames of a GIF."""
    if kind == "jpeg":
        return jpeg.read_header(data).memory_bytes(1)
    frames = sum(right * below for right, below in gif_frames(data)) if kind == "gif" else 0
    return read_canvas(data, kind).decode_bytes + frames


_Size = tuple[int, int, int, int]


def _png(data: bytes) -> _Size:
    is_deep = _big(data, 24, 1) == 16 and _big(data, 25, 1) != 0
    return _big(data, 16, 4), _big(data, 20, 4), _DEEP_BYTES if is_deep else _PILLOW_BYTES, 0


def _gif(data: bytes) -> _Size:
    """Take the first frame and the screen together: a frame may reach beyond it."""
    width, height = _little(data, 6, 2), _little(data, 8, 2)
    right, below = next(gif_frames(data), (0, 0))
    return max(width, right), max(height, below), _PILLOW_BYTES, 0


def gif_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield how far each frame reaches, in columns and rows."""
    position = 13 + _gif_colours(_little(data, 10, 1))
    while position < len(data):
        block = data[position]
        if block == 0x2C:
            left, top, width, height = (_little(data, position + n, 2) for n in (1, 3, 5, 7))
            yield left + width, top + height
            position += 11 + _gif_colours(_little(data, position + 9, 1))
        elif block == 0x21:
            position += 2
        elif block == 0x3B:
            return
        else:
            position += 1
            continue
        while position < len(data) and data[position]:
            position += 1 + data[position]
        position += 1


def _gif_colours(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _bmp(data: bytes) -> _Size:
    if _little(data, 14, 4) == 12:
        return _little(data, 18, 2), _little(data, 20, 2), _PILLOW_BYTES, 0
    width, height = _little(data, 18, 4), _little(data, 22, 4)
    # A negative height means that the top row comes first.
    return width, min(height, (1 << 32) - height), _PILLOW_BYTES, 0


def _webp(data: bytes) -> _Size:
    name = data[12:16]
    if name == b"VP8X":
        return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1, _WEBP_BYTES, 0
    if name == b"VP8L":
        bits = _little(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, _WEBP_BYTES, 0
    return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF, _WEBP_BYTES, 0


def is_tiled(data: bytes) -> bool:
    """Whether a TIFF is made of tiles."""
    return _TILE_WIDTH in _tiff_tags(data)


_TIFF_UNITS = {
    **{1: 1, 2: 1, 6: 1, 7: 1, 3: 2, 8: 2, 4: 4, 9: 4, 11: 4, 13: 4},
    **{5: 8, 10: 8, 12: 8, 16: 8, 17: 8, 18: 8},
}
_TIFF_NUMBERS = {3: 2, 4: 4, 16: 8}
_WIDTH, _HEIGHT, _BITS, _SAMPLES, _ROWS = 256, 257, 258, 277, 278
_TILE_WIDTH, _TILE_HEIGHT = 322, 323


def _tiff(data: bytes) -> _Size:
    """Count whole tiles and strips too: they may be larger than the image, and are inflated."""
    tags = _tiff_tags(data)
    width, height = tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0)
    sample_bytes = -(-tags.get(_BITS, 1) // 8) * tags.get(_SAMPLES, 1)
    tile = tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_HEIGHT, 0)
    strip = width * min(height, tags.get(_ROWS, height))
    # libtiff also hands out tiles and strips as 4 bytes per pixel.
    inflated = max(tile, strip) * (sample_bytes + 4)
    is_deep = tags.get(_BITS, 1) > 8 and tags.get(_SAMPLES, 1) > 1
    return width, height, _DEEP_BYTES if is_deep else _PILLOW_BYTES, inflated


def _tiff_tags(data: bytes) -> dict[int, int]:
    """Read the first number of each tag in the first directory."""
    order = "little" if data[:1] == b"I" else "big"
    large = data[2:3] == b"+" or data[3:4] == b"+"
    word = 8 if large else 4

    def number(start: int, size: int) -> int:
        return int.from_bytes(data[start : start + size], order)  # type: ignore[arg-type]

    count_bytes, entry_bytes = (8, 20) if large else (2, 12)
    start = number(8 if large else 4, word)
    count, entries = number(start, count_bytes), start + count_bytes
    if entries + count * entry_bytes > len(data):
        raise BadImageError("truncated", "its directory reaches beyond the end of the file")
    tags: dict[int, int] = {}
    held = 0
    for entry in range(entries, entries + count * entry_bytes, entry_bytes):
        tag, kind, length = number(entry, 2), number(entry + 2, 2), number(entry + 4, word)
        held += length * _TIFF_UNITS.get(kind, 0)
        if tag in tags or held > len(data):
            # Two decoders would believe two different values; overlapping ones fill the memory.
            raise BadImageError("corrupt", "its directory lists a tag twice or overlapping values")
        size = _TIFF_NUMBERS.get(kind, 0)
        value = entry + 4 + word
        tags[tag] = number(value if length * size <= word else number(value, word), size)
    return tags


_READERS = {"png": _png, "gif": _gif, "bmp": _bmp, "webp": _webp, "tiff": _tiff}


def _big(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "big")


def _little(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "little")
