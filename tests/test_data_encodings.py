"""Every `--encode`: what comes back is what went in, as far as the encoding promises."""

from pathlib import Path

import numpy as np
import pytest

from tests.pictures import photograph, psnr, small
from tpuctl.datasets.images._pixels import decode_picture, encode_picture
from tpuctl.datasets.images.geometry import yuv420_bytes, yuv420_to_rgb
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.verify import verify
from tpuctl.errors import InvalidInputError

pytestmark = pytest.mark.slow

LOSS = {"raw": 99, "png": 99, "jpeg": 38, "webp": 34, "yuv420": 34}
SHAPES = ((48, 64, 3), (47, 63, 3), (1, 1, 3), (2, 3, 3))


def picture(shape: tuple[int, int, int]) -> np.ndarray:
    return np.asarray(photograph("coffee", shape[1], shape[0]))


@pytest.mark.parametrize("encode", LOSS)
def test_a_picture_comes_back_as_good_as_its_encoding_promises(encode: str) -> None:
    pixels = picture((120, 160, 3))
    data = encode_picture(pixels, encode, 95)
    assert psnr(decode_picture(data, encode, pixels.shape), pixels) >= LOSS[encode]


@pytest.mark.parametrize("encode", LOSS)
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_and_tiny_sizes_come_back_too(encode: str, shape: tuple[int, int, int]) -> None:
    data = encode_picture(picture(shape), encode, 95)
    assert decode_picture(data, encode, shape).shape == shape


@pytest.mark.parametrize("encode", LOSS)
def test_bytes_that_are_cut_or_of_another_size_are_refused(encode: str) -> None:
    shape = (48, 64, 3)
    data = encode_picture(picture(shape), encode, 95)
    for damaged, size in ((b"", shape), (data[:40], shape), (data, (48, 66, 3))):
        with pytest.raises(ValueError):  # noqa: PT011 (whatever the decoder says)
            decode_picture(damaged, encode, size)


@pytest.mark.parametrize("shape", SHAPES)
def test_planes_are_as_long_as_announced(shape: tuple[int, int, int]) -> None:
    assert len(encode_picture(picture(shape), "yuv420", None)) == yuv420_bytes(*shape[:2])


@pytest.mark.parametrize("shape", SHAPES)
def test_planes_convert_in_numpy_and_jax_as_opencv_converts_them(
    shape: tuple[int, int, int],
) -> None:
    import jax.numpy

    data = encode_picture(picture(shape), "yuv420", None)
    expected = decode_picture(data, "yuv420", shape).astype(float)
    batch = np.stack([np.frombuffer(data, np.uint8)] * 2)
    for xp in (np, jax.numpy):
        rgb = np.asarray(yuv420_to_rgb(batch, *shape[:2], xp=xp))
        assert rgb.shape == (2, *shape)
        assert np.abs(rgb[1] - expected).max() <= 2


def test_swapped_chroma_planes_would_be_noticed() -> None:
    data = encode_picture(picture((48, 64, 3)), "yuv420", None)
    swapped = data[: 48 * 64] + data[48 * 80 :] + data[48 * 64 : 48 * 80]
    expected = decode_picture(data, "yuv420", (48, 64, 3)).astype(float)
    rgb = yuv420_to_rgb(np.frombuffer(swapped, np.uint8)[None], 48, 64, xp=np)
    assert np.abs(rgb[0] - expected).max() > 20


@pytest.mark.parametrize("encode", LOSS)
def test_a_data_set_of_every_encoding_is_whole_and_readable(
    encode: str, photos: Path, tmp_path: Path
) -> None:
    presize(photos, tmp_path / "raw", small(encode="raw"))
    presize(photos, tmp_path / "out", small(encode=encode))
    assert verify(tmp_path / "out", deep=True).damage == ()
    originals = {record.key: record.array() for record in read_records(tmp_path / "raw")}
    for record in read_records(tmp_path / "out"):
        assert psnr(record.array(), originals[record.key]) >= min(LOSS[encode], 30)


def test_a_damaged_record_is_one_error_that_names_it(photos: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    presize(photos, tmp_path / "out", small(encode="webp"))
    record = next(read_records(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="Could not decode the record"):
        replace(record, image=record.image[:50]).array()
