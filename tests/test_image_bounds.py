"""What a header announces bounds what decoding takes: measured in children, format by format."""

import io
import json
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pictures import encoded, fill, photograph, shrink, small
from tpuctl.data import presize
from tpuctl.datasets.images import headers, jpeg
from tpuctl.datasets.images.memory import Admission, limited_memory
from tpuctl.datasets.quarantine import BadImageError

MIB = 1 << 20
LIMIT = 24 * MIB
# The decoders' own code counts too: as many of its pages as the page cache has at hand.
CODE = 4 * MIB
WIDTH, HEIGHT = 2401, 2001

# One fork per file, so that each peak is that of one image.
CHILD = """
import json, os, resource, sys
from contextlib import nullcontext
from pathlib import Path
from tests.pictures import encoded, photograph
from tpuctl.datasets.images import _shrink
from tpuctl.datasets.images.memory import Admission
from tpuctl.datasets.quarantine import BadImageError

def shrink(data, admit):
    return _shrink.shrink_all(data, [(64, 64)], mode="cover", fidelity="balanced", admit=admit)

_shrink.prepare_decoders()
for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
    shrink(encoded(photograph("flower", 90, 60), kind), lambda needed_bytes: nullcontext())
limit = int(sys.argv[1])
folder = Path(sys.argv[2])
for path in sorted(folder.glob("*.image")):
    asked = []
    def admit(needed_bytes):
        asked.append(needed_bytes)
        if not limit:
            return nullcontext()
        return Admission(folder, budget_bytes=1 << 40, workers=1, image_bytes=limit)(needed_bytes)
    ends = os.pipe()
    if not os.fork():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            shrink(path.read_bytes(), admit)
            said = "decoded"
        except BadImageError as bad:
            said = bad.reason
        took = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        os.write(ends[1], json.dumps([path.stem, said, took, max(asked, default=0)]).encode())
        os._exit(0)
    os.wait()
    print(os.read(ends[0], 4096).decode())
"""


def png(
    colour: int, channels: int, *, interlaced: bool, width: int = WIDTH, height: int = HEIGHT
) -> bytes:
    """A PNG of 16 bits per channel; Pillow writes neither these nor interlaced ones."""
    steps = [(8, 8, 0, 0), (8, 8, 4, 0), (4, 8, 0, 4), (4, 4, 2, 0), (2, 4, 0, 2), (2, 2, 1, 0)]
    passes = [*steps, (1, 2, 0, 1)] if interlaced else [(1, 1, 0, 0)]
    rows = b"".join(
        bytes(1 + 2 * channels * -(-(width - left) // across)) * -(-(height - top) // down)
        for across, down, left, top in passes
    )
    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, interlaced)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def several_scans(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A baseline JPEG whose components come one after the other: all coefficients are kept."""
    grey = encoded(Image.new("L", (width, height), 90))
    frame, scan = grey.index(b"\xff\xc0"), grey.index(b"\xff\xda")
    tables = grey[grey.index(b"\xff\xc4") : scan]
    size = struct.pack(">BHH", 8, height, width)
    components = b"".join(bytes((number, 0x11, 0)) for number in (1, 2, 3))
    entropy = grey[scan + 10 : -2]
    scans = b"".join(
        b"\xff\xda" + struct.pack(">HB", 8, 1) + bytes((number, 0, 0, 63, 0)) + entropy
        for number in (1, 2, 3)
    )
    head = b"\xff\xc0" + struct.pack(">H", 17) + size + b"\x03" + components
    return grey[:frame] + head + tables + scans + b"\xff\xd9"


def tiff(entries: dict[int, tuple[int, int, int]], tail: bytes = b"") -> bytes:
    """A TIFF with one directory at byte 8, entries as (type, count, value), and what follows it."""
    body = b"".join(struct.pack("<HHII", tag, *entry) for tag, entry in sorted(entries.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + bytes(4) + tail


def overlapping() -> bytes:
    """A TIFF whose tags all hold the same bytes."""
    return tiff(dict.fromkeys(range(1000, 1200), (1, 60000, 8)), bytes(60_000))


def huge_tile() -> bytes:
    """A TIFF of 16 x 16 pixels in a tile of 8192 x 8192."""
    tile = zlib.compress(bytes(8192 * 8192))
    numbers = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 8192, 323: 8192}
    entries = {tag: (4, 1, value) for tag, value in numbers.items()}
    start = 8 + 2 + 12 * (len(entries) + 2) + 4
    return tiff({**entries, 324: (4, 1, start), 325: (4, 1, len(tile))}, tile)


def run_length_bmp() -> bytes:
    """A bitmap that says with a few bytes that nearly all rows are empty."""
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    skips = b"\0\2\0\xff" * (HEIGHT // 255 + 1) + b"\0\1"
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(head)) + head + skips


def beyond_the_screen() -> bytes:
    data = encoded(Image.new("P", (WIDTH, HEIGHT)), "GIF")
    return data[:6] + struct.pack("<HH", 1, 1) + data[10:]


def flat(mode: str, kind: str, **options: Any) -> Callable[[], bytes]:
    return lambda: encoded(Image.new(mode, (WIDTH, HEIGHT), 3), kind, **options)


def animated(kind: str, **options: Any) -> Callable[[], bytes]:
    others = [Image.new("RGB", (WIDTH, HEIGHT), (shade, 9, 9)) for shade in (90, 200)]
    return flat("RGB", kind, save_all=True, append_images=others, **options)


def deep_tiff() -> bytes:
    import cv2

    done, data = cv2.imencode(".tiff", np.zeros((HEIGHT, WIDTH, 4), np.uint16))
    assert done
    return bytes(data)


BOMBS: dict[str, Callable[[], bytes]] = {
    "jpeg-progressive": flat("RGB", "JPEG", progressive=True, subsampling=0),
    "jpeg-several-scans": several_scans,
    "png": flat("RGB", "PNG"),
    "png-palette": flat("P", "PNG", transparency=3),
    "png-alpha": flat("RGBA", "PNG"),
    "png-16": lambda: png(2, 3, interlaced=False),
    "png-16-alpha-interlaced": lambda: png(6, 4, interlaced=True),
    "png-16-grey-alpha": lambda: png(4, 2, interlaced=False),
    "webp": flat("RGB", "WEBP", method=0),
    "webp-lossless-alpha": flat("RGBA", "WEBP", lossless=True, method=0),
    "webp-animated": animated("WEBP", method=0),
    "gif": flat("P", "GIF", transparency=3),
    "gif-animated": animated("GIF"),
    "gif-beyond-its-screen": beyond_the_screen,
    "bmp": flat("RGB", "BMP"),
    "bmp-run-lengths": run_length_bmp,
    "tiff-deflate": flat("RGB", "TIFF", compression="tiff_deflate"),
    "tiff-one-strip": flat("RGBA", "TIFF", compression="tiff_lzw", tiffinfo={278: HEIGHT}),
    "tiff-jpeg": flat("RGB", "TIFF", compression="jpeg"),
    "tiff-cmyk": flat("CMYK", "TIFF", compression="tiff_deflate"),
    "tiff-big": flat("RGB", "TIFF", compression="tiff_deflate", big_tiff=True),
    "tiff-16-alpha": deep_tiff,
    "tiff-huge-tile": huge_tile,
}


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    for name, make in BOMBS.items():
        (folder / f"{name}.image").write_bytes(make())
    return folder


def decode_all(folder: Path, limit: int) -> dict[str, tuple[str, int, int]]:
    """What was said of each file, the memory it took and the memory that was asked for."""
    command = [sys.executable, "-c", CHILD, str(limit), str(folder)]
    lines = subprocess.check_output(command, text=True).splitlines()
    return {name: (said, took, asked) for name, said, took, asked in map(json.loads, lines)}


@pytest.mark.slow
def test_no_format_takes_more_than_the_limit(bombs: Path) -> None:
    found = decode_all(bombs, LIMIT)
    assert found.keys() == BOMBS.keys()
    assert {name: said for name, (said, _, _) in found.items() if said != "bomb"} == {}
    assert {name: took for name, (_, took, _) in found.items() if took > LIMIT + CODE} == {}


@pytest.mark.slow
def test_without_the_limit_they_take_more_and_never_more_than_announced(bombs: Path) -> None:
    found = decode_all(bombs, 0)
    assert {name: said for name, (said, _, _) in found.items() if said != "decoded"} == {}
    over = {name: found[name] for name, (_, took, asked) in found.items() if took > asked + CODE}
    assert over == {}
    small = {name for name, (_, took, _) in found.items() if took <= LIMIT}
    assert small <= {"bmp-run-lengths", "tiff-huge-tile"}, found


@pytest.mark.slow
def test_what_a_header_hides_is_stopped_by_the_kernel() -> None:
    with limited_memory(0), pytest.raises(MemoryError):
        bytearray(1 << 30)
    assert len(bytearray(1 << 30)) == 1 << 30


def test_overlapping_and_repeated_tags_are_refused_before_pillow_reads_them() -> None:
    body = b"".join(struct.pack("<HHII", 256, 4, 1, side) for side in (1, 60_000))
    repeated = b"II*\0" + struct.pack("<IH", 8, 2) + body + bytes(4)
    for data in (overlapping(), repeated):
        with pytest.raises(BadImageError, match="tag twice or overlapping"):
            headers.read_canvas(data, "tiff")
        with pytest.raises(BadImageError):
            shrink(data, (8, 8))


def test_a_directory_without_end_is_truncated() -> None:
    for data in (b"II*\0" + struct.pack("<IH", 8, 0xFFFF), b"II+\0\x08\0\0\0" + b"\xff" * 32):
        with pytest.raises(BadImageError, match="beyond the end"):
            headers.read_canvas(data, "tiff")


def test_headers_agree_with_pillow() -> None:
    for kind in ("PNG", "WEBP", "GIF", "BMP", "TIFF"):
        for options in ({}, {"lossless": True}) if kind == "WEBP" else ({},):
            data = encoded(photograph("flower", 301, 203), kind, **options)
            canvas = headers.read_canvas(data, kind.lower())
            with Image.open(io.BytesIO(data)) as image:
                assert (canvas.width, canvas.height) == image.size
    bottom_up = headers.read_canvas(run_length_bmp(), "bmp")
    top_down = headers.read_canvas(run_length_bmp().replace(
        struct.pack("<i", HEIGHT), struct.pack("<i", -HEIGHT), 1), "bmp")  # fmt: skip
    assert bottom_up == top_down


def test_several_scans_ask_for_the_coefficients() -> None:
    header = jpeg.read_header(several_scans())
    assert header.several_scans
    assert not header.progressive
    assert header.memory_bytes(8) > 6 * WIDTH * HEIGHT
    assert not jpeg.read_header(encoded(photograph())).several_scans


@pytest.mark.slow
def test_presize_leaves_a_bomb_out_and_takes_it_with_more_memory(tmp_path: Path) -> None:
    source, target = fill(tmp_path / "src", 8), tmp_path / "dst"
    (source / "bomb.png").write_bytes(png(6, 4, interlaced=True))
    result = presize(source, target, small(workers=2, max_image_bytes=64 * MIB))
    (bad,) = result.quarantined
    assert (bad.path, bad.reason) == ("bomb.png", "bomb")
    assert bad.detail == (
        "2401x2001 pixels: decoding needs about 149 MiB, the limit is 64 MiB; raise it with "
        "--max-image-memory and --retry-quarantined"
    )
    again = small(workers=2, retry_quarantined=True)
    result = presize(source, target, again)
    assert (result.quarantined, result.written + result.skipped) == ((), 9)


@pytest.mark.slow
def test_a_file_of_more_than_half_the_limit_is_not_read(tmp_path: Path) -> None:
    source = fill(tmp_path / "src", 4)
    with (source / "long.jpg").open("wb") as file:
        file.write(b"\xff\xd8\xff")
        file.truncate(1 << 30)
    program = (
        "import json, resource, sys; from tpuctl.data import presize;"
        "from tests.pictures import small;"
        "bad, = presize(*sys.argv[1:], small()).quarantined;"
        "took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "print(json.dumps([bad.path, bad.reason, bad.detail, took]))"
    )
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "dst")]
    *said, took = json.loads(subprocess.check_output(command, text=True))
    limit = "a file of 1 GiB, the limit is 512 MiB, half of --max-image-memory"
    assert said == ["long.jpg", "bomb", limit]
    assert took << 10 < 400 * MIB


def test_a_share_of_the_pool_is_what_one_of_its_workers_may_take(tmp_path: Path) -> None:
    admission = Admission(tmp_path, budget_bytes=64 * MIB, workers=4, image_bytes=32 * MIB)
    soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
    limits = []
    for needed in (16 * MIB, 17 * MIB):
        with admission(needed):
            limits.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
    assert limits[1] - limits[0] in range(14 * MIB, 18 * MIB)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == soft
    with pytest.raises(BadImageError, match=r"the limit is 32 MiB; raise it with --max-image-mem"):
        admission(33 * MIB)


@pytest.mark.parametrize("encode", ["jpeg", "png", "webp"])
def test_a_record_whose_image_is_another_size_is_not_decoded(encode: str) -> None:
    from tpuctl.datasets.images._pixels import decode_picture, encode_picture

    pixels = np.zeros((24, 32, 3), np.uint8)
    image = encode_picture(pixels, encode, 90)
    assert np.array_equal(decode_picture(image, encode, pixels.shape), pixels)
    for shape in ((24, 33, 3), (-24, -32, 3), (0, 0, 3), (1 << 40, 1 << 40, 3)):
        with pytest.raises(ValueError, match=r"it is 24x32|is not the size"):
            decode_picture(image, encode, shape)
    with limited_memory(0), pytest.raises(ValueError, match="it is 2001x2401, not 24x32"):
        decode_picture(encoded(Image.new("RGB", (WIDTH, HEIGHT)), encode), encode, (24, 32, 3))
