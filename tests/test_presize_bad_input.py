"""No garbage record: what is damaged is left out with a reason, what is merely torn is kept."""

import contextlib
import fcntl
import io
import random
import struct
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.pictures import encoded, photograph, shrink
from tests.sharing import without_locks
from tpuctl.datasets.images import jpeg
from tpuctl.datasets.images.geometry import Flag
from tpuctl.datasets.images.memory import Admission, memory_budget_bytes
from tpuctl.datasets.quarantine import BadImageError


def reason(data: bytes, **options: Any) -> str:
    """Why a file is refused; "" when it is not."""
    try:
        shrink(data, (64, 64), **options)
    except BadImageError as bad:
        return bad.reason
    return ""


@pytest.fixture(scope="module")
def photo() -> bytes:
    return encoded(photograph("china", 900, 600))


@pytest.fixture(scope="module")
def progressive() -> bytes:
    return encoded(photograph("china", 900, 600), progressive=True)


def test_a_whole_file_is_not_refused(photo: bytes, progressive: bytes) -> None:
    assert reason(photo) == reason(progressive) == ""


def test_an_empty_file_and_a_text_are_told_apart() -> None:
    assert reason(b"") == "empty"
    assert reason(b"dear diary") == "not_image"
    assert reason(b"\0" * 4096) == "not_image"


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99])
def test_a_truncated_jpeg_is_truncated(photo: bytes, progressive: bytes, share: float) -> None:
    for data in (photo, progressive):
        for fidelity in ("fast", "balanced", "exact"):
            assert reason(data[: int(share * len(data))], fidelity=fidelity) == "truncated"


def test_every_length_of_a_jpeg_is_whole_or_refused() -> None:
    data = encoded(photograph("coffee", 64, 48), quality=70)
    whole = shrink(data, (32, 32)).pixels
    accepted = [length for length in range(len(data)) if not reason(data[:length])]
    assert len(data) - 2 in accepted
    assert min(accepted) >= len(data) - 4
    for length in accepted:
        small = shrink(data[:length], (32, 32))
        assert small.flags & Flag.SALVAGED
        assert np.array_equal(small.pixels, whole)


def test_a_missing_end_marker_is_salvaged_and_the_picture_is_whole(
    photo: bytes, progressive: bytes
) -> None:
    for data in (photo, progressive):
        for torn in (data[:-2], data[:-1]):
            small = shrink(torn, (64, 64), fidelity="high")
            assert small.flags & Flag.SALVAGED
            assert np.array_equal(small.pixels, shrink(data, (64, 64), fidelity="high").pixels)


def test_a_progressive_jpeg_that_lost_whole_scans_is_truncated(progressive: bytes) -> None:
    header = jpeg.read_header(progressive)
    scans = [s for s in jpeg._walk(progressive) if s.marker == 0xDA]
    assert jpeg.all_scans_present(progressive, header)
    for scan in scans[:-1]:
        for ending in (b"", b"\xff\xd9"):
            shorter = progressive[: scan.end] + ending
            assert not jpeg.all_scans_present(shorter, header)
        assert reason(progressive[: scan.end], fidelity="high") == "truncated"


def test_bytes_after_the_end_are_no_fault(photo: bytes) -> None:
    small = shrink(photo + b"\0" * 1000 + b"motion photo", (64, 64))
    assert not small.flags & Flag.SALVAGED


def test_zeros_before_the_end_marker_are_salvaged_and_other_bytes_are_not(photo: bytes) -> None:
    padded = shrink(photo[:-2] + b"\0" * 100 + b"\xff\xd9", (64, 64), fidelity="exact")
    assert padded.flags & Flag.SALVAGED
    assert np.array_equal(padded.pixels, shrink(photo, (64, 64), fidelity="exact").pixels)
    assert reason(photo[:-2] + b"\x55" * 100 + b"\xff\xd9") == "corrupt"


def flipped(photo: bytes, count: int = 60) -> list[bytes]:
    """The same file with eight flipped bits in its picture data, many times."""
    rng = random.Random(1)
    begin = photo.index(b"\xff\xda") + 14
    copies = [bytearray(photo) for _ in range(count)]
    for data in copies:
        for _ in range(8):
            data[rng.randrange(begin, len(data) - 2)] ^= 1 << rng.randrange(8)
    return [bytes(data) for data in copies]


def test_flipped_bits_are_refused_wherever_the_entropy_code_shows_them(photo: bytes) -> None:
    """A flip in the value of a coefficient is a valid file: only a checksum could tell."""
    refused = [reason(data) for data in flipped(photo)]
    assert sum(map(bool, refused)) >= 48
    assert set(refused) <= {"", "corrupt", "truncated", "unsupported"}


def test_a_lax_decoder_would_take_nearly_all_of_them(photo: bytes) -> None:
    taken = 0
    for data in flipped(photo):
        with contextlib.suppress(OSError):
            Image.open(io.BytesIO(data)).load()
            taken += 1
    assert taken >= 55


def test_zeroed_blocks_are_refused(photo: bytes) -> None:
    middle = len(photo) // 2
    assert reason(photo[:middle] + b"\0" * 4096 + photo[middle + 4096 :]) == "corrupt"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_other_formats_cut_short_are_refused(kind: str, share: float) -> None:
    data = encoded(photograph("flower", 300, 200), kind)
    assert reason(data) == ""
    assert reason(data[: int(share * len(data))]) in ("truncated", "corrupt")


def test_a_png_with_a_flipped_bit_is_corrupt() -> None:
    data = bytearray(encoded(photograph("flower", 300, 200), "PNG"))
    data[len(data) // 2] ^= 4
    assert reason(bytes(data)) == "corrupt"


def _png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def _claims(photo: bytes, width: int, height: int) -> bytes:
    """The same JPEG with another size in its frame header."""
    place = photo.index(b"\xff\xc0") + 5
    return photo[:place] + struct.pack(">HH", height, width) + photo[place + 4 :]


def test_bombs_are_refused_by_their_header(photo: bytes, tmp_path: Path) -> None:
    admission = Admission(tmp_path, budget_bytes=8 << 30, workers=1)
    huge = _claims(photo, 65500, 65500)
    assert reason(huge, admit=admission, fidelity="exact") == "bomb"
    assert reason(_png_header(60000, 60000), admit=admission) == "bomb"


def test_memory_is_asked_for_by_what_the_decoder_will_hold(
    photo: bytes, progressive: bytes
) -> None:
    asked: list[int] = []

    def admit(needed_bytes: int) -> AbstractContextManager[None]:
        asked.append(needed_bytes)
        raise BadImageError("bomb", "no")

    long = photo + bytes(400_000)
    for data in (_claims(long, 12000, 8000), _claims_progressive(progressive, 12000, 8000)):
        with pytest.raises(BadImageError, match="12000x8000 pixels: no"):
            shrink(data, (224, 224), admit=admit)
    baseline, coefficients = asked
    assert baseline < 50e6
    assert 200e6 < coefficients < 400e6


def _claims_progressive(data: bytes, width: int, height: int) -> bytes:
    place = data.index(b"\xff\xc2") + 5
    return data[:place] + struct.pack(">HH", height, width) + data[place + 4 :]


def test_an_absurd_panorama_is_unsupported_in_mode_short() -> None:
    data = encoded(Image.new("L", (60000, 1)), "PNG")
    assert reason(data) == ""
    with pytest.raises(BadImageError, match="would become"):
        shrink(data, (224, 224), mode="short")


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x18ftypheic" + b"\0" * 100,
        b"\0\0\0\x1cftypavif" + b"\0" * 100,
        b"8BPS" + b"\0" * 100,
        b"\xff\x0a" + b"\0" * 100,
    ],
)
def test_images_that_we_cannot_read_are_named_unsupported(data: bytes) -> None:
    assert reason(data) == "unsupported"


def test_odd_jpegs_are_unsupported_or_corrupt_but_never_a_crash(photo: bytes) -> None:
    frame = photo.index(b"\xff\xc0")
    assert reason(photo[: frame + 1] + b"\xc3" + photo[frame + 2 :]) == "unsupported"
    assert reason(photo[: frame + 4] + b"\x0c" + photo[frame + 5 :]) == "unsupported"
    assert reason(_claims(photo, 0, 600)) == "corrupt"
    assert reason(b"\xff\xd8\xff" + b"\xd9" * 100) == "corrupt"
    assert reason(b"\xff\xd8\xff\xd9") == "corrupt"


def test_random_headers_never_raise_anything_else(photo: bytes) -> None:
    rng = random.Random(2)
    for _ in range(300):
        data = bytearray(photo[:4000])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(2, 700)] = rng.randrange(256)
        reason(bytes(data))


def test_random_rasters_never_raise_anything_else() -> None:
    rng = random.Random(3)
    for kind in ("PNG", "WEBP", "BMP", "GIF", "TIFF"):
        whole = encoded(photograph("flower", 60, 40), kind)
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(4, len(data))] = rng.randrange(256)
            reason(bytes(data))


def test_a_picture_beyond_the_budget_is_a_bomb_and_the_detail_has_both_numbers(
    tmp_path: Path,
) -> None:
    admission = Admission(tmp_path, budget_bytes=1 << 20, workers=2)
    with pytest.raises(BadImageError, match=r"needs about 2 MiB.* 1 MiB"):
        admission(2 << 20)


def test_small_pictures_decode_together_and_a_large_one_alone(tmp_path: Path) -> None:
    one, two = (Admission(tmp_path, budget_bytes=100, workers=2) for _ in range(2))
    with one(50), two(50):
        assert _is_busy(tmp_path, exclusive=True)
        assert not _is_busy(tmp_path, exclusive=False)
    with one(51):
        assert _is_busy(tmp_path, exclusive=False)
    assert not _is_busy(tmp_path, exclusive=True)


def test_pictures_decode_on_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", without_locks)
    with Admission(tmp_path, budget_bytes=100, workers=2)(51):
        assert (tmp_path / "room.lock").exists()


def _is_busy(folder: Path, *, exclusive: bool) -> bool:
    with (folder / "room.lock").open() as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_budget_follows_the_container(tmp_path: Path) -> None:
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("1000000000\n")
    assert memory_budget_bytes(tmp_path) == 600_000_000
    limit.write_text("max\n")
    assert memory_budget_bytes(tmp_path) > 600_000_000
