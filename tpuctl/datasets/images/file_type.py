"""What a file is, by its first bytes and never by its name."""

import os

HEAD_BYTES = 64

_SIGNATURES: tuple[tuple[str, bytes], ...] = (
    ("jpeg", b"\xff\xd8\xff"),
    ("png", b"\x89PNG\r\n\x1a\n"),
    ("gif", b"GIF87a"),
    ("gif", b"GIF89a"),
    ("tiff", b"II*\0"),
    ("tiff", b"MM\0*"),
    ("bigtiff", b"II+\0"),
    ("bigtiff", b"MM\0+"),
    ("jxl", b"\xff\x0a"),
    ("jxl", b"\0\0\0\x0cJXL \r\n\x87\n"),
    ("jpeg2000", b"\0\0\0\x0cjP  \r\n\x87\n"),
    ("jpeg2000", b"\xff\x4f\xff\x51"),
    ("psd", b"8BPS"),
    ("ico", b"\0\0\1\0"),
    ("raw", b"FUJIFILMCCD-RAW"),
)
_HEIF_BRANDS = {b"avif", b"avis", b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"}
_BMP_HEADERS = {12, 40, 52, 56, 64, 108, 124}

DECODABLE = frozenset({"jpeg", "png", "gif", "webp", "bmp", "tiff", "bigtiff"})

PHOTOGRAPH_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "gif", "webp", "bmp", "dib", "tif", "tiff"),
        *("heic", "heif", "avif"),
    )
)


def sniff(head: bytes) -> str | None:
    """Name the image format that a file's first `HEAD_BYTES` announce, or None."""
    for kind, signature in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS:
        return "avif" if head[8:11] == b"avi" else "heif"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    return None


def claims_to_be_an_image(name: str) -> bool:
    """Whether the name makes its owner expect a picture inside."""
    return os.path.splitext(name)[1].lower() in PHOTOGRAPH_SUFFIXES
