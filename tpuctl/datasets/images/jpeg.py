"""The headers of a JPEG: a bounded walk over its markers that decodes no pixels.

Marker codes and segment layouts: ITU-T T.81 annex B; APP14: Adobe TN 5116; APP2 profiles: ICC.1
annex B.4; orientation: Exif 2.32 section 4.6.4.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tpuctl.datasets.quarantine import BadImageError

_SOI, _EOI, _SOS, _TEM = 0xD8, 0xD9, 0xDA, 0x01
_RESTARTS = range(0xD0, 0xD8)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_DCT_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_AFTER_ENTROPY = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_MAX_PROFILE_BYTES = 4 << 20
_MAX_SEGMENTS = 100_000
# A block of 64 takes two bits at least; only progressive files say less of what is empty.
_MOST_PIXELS_PER_BYTE = 256


@dataclass(frozen=True)
class JpegHeader:
    """Size, colour model and the few tags that change what the image looks like."""

    width: int
    height: int
    sampling: tuple[tuple[int, int, int], ...]
    progressive: bool
    several_scans: bool
    adobe: bool
    orientation: int
    profile: bytes | None

    @property
    def components(self) -> int:
        """Colour channels: 1 grey, 3 colour, 4 CMYK or YCCK."""
        return len(self.sampling)

    def memory_bytes(self, denominator: int) -> int:
        """The maximum memory for decoding at 1/denominator."""
        decoded = -(-self.width // denominator) * -(-self.height // denominator)
        whole = self._coefficient_bytes if self.progressive or self.several_scans else 0
        # The pixels, a copy with an even edge or in Pillow's layout, and the first reduction.
        return 3 * decoded * self.components + whole

    @property
    def _coefficient_bytes(self) -> int:
        """Memory for all coefficients, held at any scale where several scans bring them."""
        widest = max(h for _, h, _ in self.sampling)
        tallest = max(v for _, _, v in self.sampling)
        share = sum(h * v / (widest * tallest) for _, h, v in self.sampling)
        # Two bytes each, and an eighth for whole blocks and the rows in work.
        return int(2.25 * self.width * self.height * share)


class Segment(NamedTuple):
    """A marker with its payload; for a scan, the entropy-coded data that follows is included."""

    marker: int
    start: int
    payload: int
    end: int


def read_header(data: bytes) -> JpegHeader:
    """Read size, sampling, orientation and profile; raises BadImageError."""
    frame: tuple[int, bytes] | None = None
    adobe, orientation, scanned = False, 1, 0
    chunks: dict[int, bytes] = {}
    for segment in _walk(data, into_scans=False):
        body = data[segment.payload : segment.end]
        if segment.marker in _FRAMES and frame is None:
            frame = segment.marker, body
        elif segment.marker == 0xEE and body.startswith(b"Adobe"):
            adobe = True
        elif segment.marker == 0xE1 and body.startswith(b"Exif\0\0") and orientation == 1:
            orientation = exif_orientation(body[6:])
        elif segment.marker == 0xE2 and body.startswith(b"ICC_PROFILE\0") and len(body) > 14:
            chunks[body[12]] = body[14:]
        elif segment.marker == _SOS:
            scanned = body[0] if body else 0
    if frame is None:
        raise BadImageError("corrupt", "no frame header before the image data")
    width, height, sampling = _read_frame(*frame)
    if frame[0] != 0xC2 and width * height > _MOST_PIXELS_PER_BYTE * len(data):
        raise BadImageError("bomb", f"{width}x{height} pixels in {len(data)} bytes")
    profile = b"".join(chunks[number] for number in sorted(chunks))
    return JpegHeader(
        width,
        height,
        sampling,
        progressive=frame[0] == 0xC2,
        several_scans=scanned < len(sampling),
        adobe=adobe,
        orientation=orientation,
        profile=profile if 0 < len(profile) <= _MAX_PROFILE_BYTES else None,
    )


def _read_frame(marker: int, body: bytes) -> tuple[int, int, tuple[tuple[int, int, int], ...]]:
    if marker not in _HUFFMAN_DCT_FRAMES:
        raise BadImageError("unsupported", f"JPEG process SOF{marker - 0xC0}")
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise BadImageError("corrupt", "the frame header is too short")
    if body[0] != 8:
        raise BadImageError("unsupported", f"{body[0]}-bit JPEG")
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    parts = [body[6 + 3 * i : 9 + 3 * i] for i in range(body[5])]
    sampling = tuple((part[0], part[1] >> 4, part[1] & 15) for part in parts)
    if not width or not height:
        raise BadImageError("corrupt", f"the header says {width}x{height}")
    if any(not 1 <= n <= 4 for _, h, v in sampling for n in (h, v)):
        raise BadImageError("corrupt", "impossible sampling factors")
    if len(sampling) not in (1, 3, 4):
        raise BadImageError("unsupported", f"JPEG with {len(sampling)} components")
    return width, height, sampling


def _walk(data: bytes, *, into_scans: bool = True) -> Iterator[Segment]:
    """Yield every segment up to the end of the file, or only up to the head of the first scan."""
    position, count = 2, 0
    while (position := data.find(b"\xff", position)) != -1:
        start = position
        while position < len(data) and data[position] == 0xFF:
            position += 1
        marker = data[position] if position < len(data) else _EOI
        position += 1
        if marker in (0, _TEM, _SOI) or marker in _RESTARTS:
            continue
        count += 1
        if marker == _EOI or count > _MAX_SEGMENTS:
            yield Segment(marker, start, position, position)
            return
        length = int.from_bytes(data[position : position + 2], "big")
        if length < 2 or position + length > len(data):
            raise BadImageError("truncated", "a header segment reaches beyond the end of the file")
        payload, position = position + 2, position + length
        if marker == _SOS and not into_scans:
            yield Segment(marker, start, payload, position)
            return
        if marker == _SOS:
            match = _AFTER_ENTROPY.search(data, position)
            position = match.start() if match else len(data)
        yield Segment(marker, start, payload, position)


def ends_properly(data: bytes) -> bool:
    """Whether the markers lead to an end-of-image marker."""
    return _is_end(data, *deque(_walk(data), maxlen=1))


def _is_end(data: bytes, last: Segment | None = None) -> bool:
    return last is not None and last.marker == _EOI and last.end <= len(data)


def drop_refinements(data: bytes, denominator: int) -> bytes | None:
    """Keep the scans of a progressive JPEG that matter at half size (2) or below (4, 8).

    These are all DC scans and the first pass over AC coefficients: at half size over all of them,
    below over the first band (27 % of the bytes). None when the file does not end properly: then
    nothing may be assumed about it.
    """
    kept, dropped, last = [data[:2]], False, None
    for segment in _walk(data):
        last = segment
        if segment.marker == _SOS and not _is_coarse(data, segment, denominator):
            dropped = True
        elif segment.marker != _EOI:
            kept.append(data[segment.start : segment.end])
    if not dropped or not _is_end(data, last):
        return None
    return b"".join((*kept, b"\xff\xd9"))


def _scan_parameters(data: bytes, segment: Segment) -> tuple[bytes, int, int, int, int] | None:
    """Read the components, Ss, Se, Ah and Al of a scan."""
    count = data[segment.payload]
    tail = segment.payload + 1 + 2 * count
    if tail + 3 > segment.end:
        return None
    components = data[segment.payload + 1 : tail : 2]
    first, final, precision = data[tail], data[tail + 1], data[tail + 2]
    return components, first, final, precision >> 4, precision & 15


def _is_coarse(data: bytes, segment: Segment, denominator: int) -> bool:
    parameters = _scan_parameters(data, segment)
    if parameters is None:
        return True
    _, first, _, high, _ = parameters
    return first == 0 or (high == 0 and (first == 1 or denominator == 2))


def all_scans_present(data: bytes, header: JpegHeader) -> bool:
    """Whether the scans bring every coefficient of a progressive JPEG to full precision."""
    missing = {component: [True] * 64 for component, _, _ in header.sampling}
    for segment in _walk(data):
        if segment.marker != _SOS or (scan := _scan_parameters(data, segment)) is None:
            continue
        components, first, final, _, low = scan
        if low == 0:
            for component in components:
                done = missing.get(component, [True] * 64)
                done[first : final + 1] = [False] * len(done[first : final + 1])
    return not any(any(coefficients) for coefficients in missing.values())


def exif_orientation(tiff: bytes) -> int:
    """Read tag 0x0112 of the first directory of an Exif block; 1 if there is no valid one."""
    order: str = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4], "")
    if order not in ("little", "big"):
        return 1

    def number(start: int, size: int) -> int:
        return int.from_bytes(tiff[start : start + size], order)  # type: ignore[arg-type]

    directory = number(4, 4)
    for index in range(min(number(directory, 2), 200)):
        entry = directory + 2 + 12 * index
        if entry + 12 > len(tiff):
            return 1
        if number(entry, 2) == 0x0112:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 and number(entry + 2, 2) == 3 else 1
    return 1
