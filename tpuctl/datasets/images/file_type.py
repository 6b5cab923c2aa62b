"""The type of a file, by its first bytes and never by its name.

The one sniffer: presize takes as images what it recognises, and `profile run FOLDER` too. What is
recognised and not `DECODABLE` is refused with its name instead of being taken for a broken file.
"""

import os

HEAD_BYTES = 64

_SIGNATURES: tuple[tuple[str, bytes], ...] = (
    ("jpeg", b"\xff\xd8\xff"),
    ("png", b"\x89PNG\r\n\x1a\n"),
    ("gif", b"GIF87a"),
    ("gif", b"GIF89a"),
    ("tiff", b"II*\0"),
    ("tiff", b"MM\0*"),
    ("tiff", b"II+\0"),
    # Pillow takes the big-endian BigTIFF for a TIFF with offsets of 32 bits, and finds nothing.
    ("bigtiff", b"MM\0+"),
    ("jxl", b"\xff\x0a"),
    ("jxl", b"\0\0\0\x0cJXL \r\n\x87\n"),
    ("jpeg2000", b"\0\0\0\x0cjP  \r\n\x87\n"),
    ("jpeg2000", b"\xff\x4f\xff\x51"),
    ("psd", b"8BPS"),
    ("ico", b"\0\0\1\0"),
    ("raw", b"FUJIFILMCCD-RAW"),
)
_AVIF_BRANDS = {b"avif", b"avis"}
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"}
# "BM" alone begins many a text; a bitmap then has a header of one of these sizes.
_BMP_HEADERS = {12, 40, 52, 56, 64, 108, 124}

DECODABLE = frozenset({"jpeg", "png", "gif", "webp", "bmp", "tiff"})

PHOTOGRAPH_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "gif", "webp", "bmp", "dib", "tif", "tiff"),
        *("heic", "heif", "avif"),
    )
)


def sniff(head: bytes) -> str | None:
    """Name the image format that a file's first `HEAD_BYTES` announce; None for anything else."""
    for kind, signature in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    if head[4:8] == b"ftyp":
        # The main brand of an AVIF may be a general one, mif1, and only a compatible one say avif.
        end = min(int.from_bytes(head[:4], "big"), len(head))
        brands = {head[at : at + 4] for at in (8, *range(16, end, 4))}
        return "avif" if brands & _AVIF_BRANDS else "heif" if brands & _HEIF_BRANDS else None
    return None


def has_image_suffix(name: str) -> bool:
    """Whether a file's name has the suffix of an image."""
    return os.path.splitext(name)[1].lower() in PHOTOGRAPH_SUFFIXES
