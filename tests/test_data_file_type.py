"""What a file is by its first bytes: real files of each format, decoded or refused by name."""

import io
from pathlib import Path

import pytest
from PIL import Image, features

from tests.pictures import encoded, photograph, shrink
from tpuctl.datasets.images.file_type import DECODABLE, HEAD_BYTES, sniff
from tpuctl.datasets.inputs import scan
from tpuctl.datasets.quarantine import BadImageError


def saved(kind: str, **options: object) -> bytes:
    return encoded(photograph("coffee", 40, 32), kind, **options)


def big_endian_big_tiff() -> bytes:
    """One strip of 2 x 2 grey pixels (BigTIFF: bigtiff.org)."""

    def entry(tag: int, kind: int, value: int) -> bytes:
        width = {3: 2, 4: 4}[kind]
        inline = value.to_bytes(width, "big").ljust(8, b"\0")
        return tag.to_bytes(2, "big") + kind.to_bytes(2, "big") + (1).to_bytes(8, "big") + inline

    tags = [(256, 3, 2), (257, 3, 2), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 16)]
    tags += [(277, 3, 1), (278, 3, 2), (279, 4, 4)]
    directory = len(tags).to_bytes(8, "big") + b"".join(entry(*tag) for tag in tags) + bytes(8)
    head = b"MM\0+" + (8).to_bytes(2, "big") + bytes(2) + (24).to_bytes(8, "big")
    return head + bytes((0, 80, 160, 255)) + bytes(4) + directory


def os2_bitmap() -> bytes:
    """A bitmap with the header of 12 bytes that Pillow reads and does not write."""
    pixels = bytes(range(12)) + bytes(4)  # two rows of two pixels, each padded to four bytes
    header = (12).to_bytes(4, "little") + b"".join(n.to_bytes(2, "little") for n in (2, 2, 1, 24))
    start = 14 + len(header)
    size = (start + len(pixels)).to_bytes(4, "little")
    return b"BM" + size + bytes(4) + start.to_bytes(4, "little") + header + pixels


def box(*brands: bytes) -> bytes:
    """The first box of an HEIF or AVIF file: the main brand, a version, the compatible brands."""
    body = brands[0] + bytes(4) + b"".join(brands[1:])
    return (len(body) + 8).to_bytes(4, "big") + b"ftyp" + body + b"\0\0\0\xebmeta" + bytes(40)


DECODED = {
    "jpeg": ("jpeg", lambda: saved("JPEG")),
    "progressive": ("jpeg", lambda: saved("JPEG", progressive=True)),
    "png": ("png", lambda: saved("PNG")),
    "gif": ("gif", lambda: saved("GIF")),
    "gif89a": ("gif", lambda: saved("GIF", comment=b"a comment needs GIF89a")),
    "webp": ("webp", lambda: saved("WEBP")),
    "webp, lossless": ("webp", lambda: saved("WEBP", lossless=True)),
    "bmp": ("bmp", lambda: saved("BMP")),
    "bmp of OS/2": ("bmp", os2_bitmap),
    "tiff": ("tiff", lambda: saved("TIFF")),
    "BigTIFF": ("tiff", lambda: saved("TIFF", big_tiff=True)),
}
REFUSED = {
    "avif, main brand": ("avif", lambda: box(b"avif", b"avif", b"mif1", b"miaf")),
    "avif, compatible brand": ("avif", lambda: box(b"mif1", b"miaf", b"avif")),
    "avif, sequence": ("avif", lambda: box(b"avis", b"msf1")),
    "heic": ("heif", lambda: box(b"heic", b"mif1", b"heic")),
    "heif": ("heif", lambda: box(b"mif1", b"heic")),
    "jpeg 2000": ("jpeg2000", lambda: saved("JPEG2000")),
    "jpeg 2000, bare": ("jpeg2000", lambda: saved("JPEG2000", no_jp2=True)),
    "jpeg xl": ("jxl", lambda: b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(60)),
    "jpeg xl, bare": ("jxl", lambda: b"\xff\x0a" + bytes(60)),
    "ico": ("ico", lambda: saved("ICO")),
    "BigTIFF, big-endian": ("bigtiff", big_endian_big_tiff),
    "psd": ("psd", lambda: b"8BPS\0\1" + bytes(60)),
}
OTHER = {
    "text that begins like a bitmap": b"BMW drivers of the world, " + bytes(40),
    "wave": b"RIFF\x24\0\0\0WAVEfmt " + bytes(40),
    "mp4": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + bytes(30),
    "gif of no version": b"GIF88a" + bytes(40),
    "pdf": b"%PDF-1.7\n" + bytes(40),
    "nothing": b"",
}


@pytest.mark.parametrize("name", DECODED)
def test_what_is_decodable_is_recognised_and_decoded(name: str, tmp_path: Path) -> None:
    kind, make = DECODED[name]
    data = make()
    assert sniff(data[:HEAD_BYTES]) == kind
    assert kind in DECODABLE
    assert shrink(data, (8, 8)).pixels.shape == (8, 8, 3)
    (tmp_path / "no-suffix").write_bytes(data)
    assert [picture.key for picture in scan(tmp_path).pictures] == ["no-suffix"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_decoded_is_recognised_and_refused_by_name(name: str) -> None:
    kind, make = REFUSED[name]
    data = make()
    assert sniff(data[:HEAD_BYTES]) == kind
    with pytest.raises(BadImageError, match=f"{kind} files cannot be read here") as refused:
        shrink(data, (8, 8))
    assert refused.value.reason == "unsupported"


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow writes no AVIF")
def test_an_avif_that_pillow_writes_is_recognised() -> None:
    file = io.BytesIO()
    Image.new("RGB", (20, 16)).save(file, "AVIF")
    assert sniff(file.getvalue()[:HEAD_BYTES]) == "avif"


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_an_image_is_not_taken_for_one(name: str, tmp_path: Path) -> None:
    assert sniff(OTHER[name]) is None
    (tmp_path / "file").write_bytes(OTHER[name])
    assert scan(tmp_path).pictures == ()
