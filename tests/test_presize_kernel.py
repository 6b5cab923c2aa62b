import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from tests.pictures import SUBJECTS, encoded, exif, photograph, pixels_of, psnr, shrink
from tpuctl.datasets.images import jpeg
from tpuctl.datasets.images.geometry import (
    Fidelity,
    Flag,
    Mode,
    choose_denominator,
    plan_fit,
)

HAMMING, BICUBIC = Image.Resampling.HAMMING, Image.Resampling.BICUBIC
SIZES = ((640, 427), (1201, 803), (1999, 1333), (803, 1201), (3001, 2003), (301, 299))


def reference(data: bytes, size: tuple[int, int], mode: str) -> np.ndarray:
    """Full decode, orientation, exact rectangle, Hamming: all of it Pillow's own work."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    height, width = size
    if mode == "cover":
        method = BICUBIC if picture.width < width or picture.height < height else HAMMING
        small = ImageOps.fit(picture, (width, height), method)
    elif mode == "contain":
        small = ImageOps.pad(picture, (width, height), HAMMING)
    elif mode == "stretch":
        small = picture.resize((width, height), HAMMING)
    else:
        scale = height / min(picture.size)
        wanted = (round(picture.width * scale), round(picture.height * scale))
        small = picture.resize(wanted, HAMMING)
    return np.asarray(small)


@pytest.mark.slow
def test_a_shrunk_jpeg_is_what_a_full_decode_would_give() -> None:
    promised: dict[Fidelity, tuple[float, float]] = {
        "fast": (32, 44), "balanced": (40, 48), "high": (43, 50), "exact": (60, 60),
    }  # fmt: skip
    found: dict[Fidelity, list[float]] = {fidelity: [] for fidelity in promised}
    for index, subject in enumerate(SUBJECTS):
        for width, height in SIZES[index % 2 :: 2]:
            data = encoded(photograph(subject, width, height))
            expected = reference(data, (224, 224), "cover")
            for fidelity in promised:
                small = shrink(data, (224, 224), mode="cover", fidelity=fidelity)
                found[fidelity].append(psnr(small.pixels, expected))
    for fidelity, (worst, median) in promised.items():
        assert min(found[fidelity]) > worst, fidelity
        assert np.median(found[fidelity]) > median, fidelity


def test_a_jpeg_that_is_decoded_barely_larger_than_asked_for_stays_sharp() -> None:
    found = []
    for subject in SUBJECTS:
        data = encoded(photograph(subject, 2035, 1359))
        assert choose_denominator(plan_fit(2035, 1359, (224, 224), "cover"), "balanced") == 4
        found.append(psnr(shrink(data, (224, 224)).pixels, reference(data, (224, 224), "cover")))
    assert min(found) > 40
    assert np.median(found) > 46


@pytest.mark.parametrize("mode", ["cover", "contain", "stretch", "short"])
@pytest.mark.parametrize("size", [(224, 224), (96, 160), (160, 96)])
@pytest.mark.parametrize("source", [(1201, 803), (803, 1201), (1024, 1024)])
def test_every_mode_takes_the_part_of_the_picture_that_pillow_takes(
    mode: Mode, size: tuple[int, int], source: tuple[int, int]
) -> None:
    size = size if mode != "short" else (size[0], size[0])
    data = encoded(photograph("china", *source))
    small = shrink(data, size, mode=mode, fidelity="high").pixels
    expected = reference(data, size, mode)
    assert small.shape == expected.shape
    assert psnr(small, expected) > 42


def test_a_picture_shifted_by_half_a_pixel_would_fail_these_tests() -> None:
    data = encoded(photograph("china", 1201, 803))
    exact = shrink(data, (224, 224), fidelity="exact").pixels
    shifted = (exact[:, :-1].astype(int) + exact[:, 1:]) // 2
    assert psnr(exact[:, 1:], shifted.astype(np.uint8)) < 36


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_exif_orientation_is_applied(orientation: int, order: str) -> None:
    data = encoded(photograph("coffee", 900, 600), exif=exif(orientation, order))
    small = shrink(data, (128, 160), mode="cover", fidelity="high")
    assert psnr(small.pixels, reference(data, (128, 160), "cover")) > 42
    assert small.flags >> 12 == orientation
    turned = orientation >= 5
    shown = (600, 900) if turned else (900, 600)
    assert (small.original_width, small.original_height) == shown


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"II*\0",
        b"MM\0*\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
        b"II*\0\x08\0\0\0\x01\0" + b"\x12\x01\x04\0\x01\0\0\0\x06\0\0\0",
        b"II*\0\x08\0\0\0\xff\xff" * 50,
    ],
)
def test_a_senseless_exif_block_means_upright(block: bytes) -> None:
    assert jpeg.exif_orientation(block) == 1


@pytest.mark.parametrize("orientation", [3, 6])
def test_orientation_counts_in_png_and_webp_too(orientation: int) -> None:
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        tag = Image.Exif()
        tag[0x0112] = orientation
        data = encoded(photograph("coffee", 450, 300), kind, exif=tag, **options)
        small = shrink(data, (100, 100), fidelity="high")
        assert small.flags >> 12 == orientation
        assert psnr(small.pixels, reference(data, (100, 100), "cover")) > 42


def test_a_turned_tiff_is_turned_once() -> None:
    tag = Image.Exif()
    tag[0x0112] = 6
    picture = photograph("coffee", 450, 300)
    upright = encoded(picture.transpose(Image.Transpose.ROTATE_270), "TIFF")
    small = shrink(encoded(picture, "TIFF", exif=tag), (100, 100), fidelity="high")
    assert psnr(small.pixels, shrink(upright, (100, 100), fidelity="high").pixels) > 60
    assert (small.original_width, small.original_height) == (300, 450)


def test_grey_becomes_three_equal_channels() -> None:
    picture = photograph("china", 900, 600).convert("L")
    for kind in ("JPEG", "PNG"):
        data = encoded(picture, kind)
        small = shrink(data, (128, 128), fidelity="high")
        assert small.flags & Flag.GREY
        assert np.ptp(small.pixels, axis=2).max() == 0
        assert psnr(small.pixels, reference(data, (128, 128), "cover")) > 44


def test_cmyk_without_a_profile_is_mixed_as_pillow_mixes_it() -> None:
    data = encoded(photograph("flower", 900, 600).convert("CMYK"))
    small = shrink(data, (128, 128), fidelity="high")
    assert small.flags & Flag.CMYK
    assert psnr(small.pixels, reference(data, (128, 128), "cover")) > 40


def test_a_colour_profile_is_applied() -> None:
    profile = ImageCms.createProfile("XYZ")
    blob = ImageCms.ImageCmsProfile(profile).tobytes()
    picture = photograph("flower", 600, 400)
    unusable = shrink(encoded(picture, icc_profile=blob), (64, 64))
    assert unusable.flags & Flag.PROFILE_UNUSABLE
    plain = shrink(encoded(picture), (64, 64))
    assert np.array_equal(unusable.pixels, plain.pixels)

    data = encoded(picture, icc_profile=_swapped_primaries())
    converted = shrink(data, (64, 64), fidelity="exact")
    assert converted.flags & Flag.PROFILE_APPLIED
    full = ImageCms.profileToProfile(
        Image.open(io.BytesIO(data)),
        io.BytesIO(_swapped_primaries()),
        ImageCms.createProfile("sRGB"),
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
    )
    assert full is not None
    expected = np.asarray(ImageOps.fit(full, (64, 64), HAMMING))
    assert psnr(converted.pixels, expected) > 38
    assert psnr(converted.pixels, plain.pixels) < 30


def _swapped_primaries() -> bytes:
    """An sRGB profile whose red and blue primaries have changed places."""
    blob = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", blob, 128)[0]
    for index in range(count):
        place = 132 + 12 * index
        swapped = {b"rXYZ": b"bXYZ", b"bXYZ": b"rXYZ"}.get(bytes(blob[place : place + 4]))
        if swapped:
            blob[place : place + 4] = swapped
    return bytes(blob).replace(b"s\0R\0G\0B", b"t\0E\0S\0T")


def test_an_srgb_profile_changes_nothing() -> None:
    blob = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = photograph("flower", 600, 400)
    with_profile = shrink(encoded(picture, icc_profile=blob), (64, 64))
    assert not with_profile.flags & (Flag.PROFILE_APPLIED | Flag.PROFILE_UNUSABLE)
    assert np.array_equal(with_profile.pixels, shrink(encoded(picture), (64, 64)).pixels)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_alpha_lies_on_white(kind: str) -> None:
    picture = photograph("coffee", 400, 300).convert("RGBA")
    alpha = Image.new("L", picture.size, 255)
    alpha.paste(0, (0, 0, 200, 300))
    picture.putalpha(alpha)
    options = {"lossless": True} if kind == "WEBP" else {}
    small = shrink(encoded(picture, kind, **options), (75, 100), fidelity="high")
    assert small.flags & Flag.ALPHA_ON_WHITE
    assert (small.pixels[:, :48] == 255).all()
    assert small.pixels[:, 52:].mean() < 250


def test_a_transparent_palette_lies_on_white_too() -> None:
    picture = Image.new("P", (40, 40), 0)
    picture.putpalette([255, 0, 0, 0, 255, 0])
    small = shrink(encoded(picture, "GIF", transparency=0), (20, 20))
    assert (small.pixels == 255).all()


def test_16_bit_grey_keeps_its_tones() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)
    picture = Image.fromarray(np.tile(ramp, (256, 1)))
    for kind in ("PNG", "TIFF"):
        small = shrink(encoded(picture, kind), (256, 256))
        assert small.flags & Flag.FROM_16_BIT
        assert np.abs(small.pixels[128, :, 0].astype(int) - np.arange(256)).max() <= 1


def test_16_bit_colour_is_divided_by_257_and_not_cut() -> None:
    value = 0x80FF
    row = b"\0" + struct.pack(">3H", value, 257 * 10, 65535) * 8
    data = _png(8, 8, depth=16, colour=2, rows=row * 8)
    small = shrink(data, (8, 8))
    assert small.flags & Flag.FROM_16_BIT
    assert small.pixels[4, 4].tolist() == [round(value / 257), 10, 255]


def _png(width: int, height: int, *, depth: int, colour: int, rows: bytes) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_other_formats_come_out_like_their_full_decode(kind: str) -> None:
    data = encoded(photograph("flower", 801, 535), kind)
    small = shrink(data, (224, 224))
    assert psnr(small.pixels, reference(data, (224, 224), "cover")) > 40


def test_the_first_frame_stands_for_an_animation() -> None:
    frames = [photograph(subject, 320, 240) for subject in ("china", "flower")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    small = shrink(data, (120, 160))
    assert small.flags & Flag.FIRST_OF_SEVERAL
    assert psnr(small.pixels, reference(data, (120, 160), "cover")) > 40


@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize(("width", "height"), [(1999, 1333), (2101, 1401)])
def test_a_progressive_jpeg_is_decoded_from_its_first_scans(
    subsampling: int, width: int, height: int
) -> None:
    data = encoded(photograph("china", width, height), progressive=True, subsampling=subsampling)
    at_half, at_a_quarter = (jpeg.drop_refinements(data, denominator) for denominator in (2, 4))
    assert at_half is not None
    assert at_a_quarter is not None
    assert len(at_a_quarter) < len(at_half) < 0.65 * len(data)
    small = shrink(data, (224, 224))
    assert small.flags & Flag.SCANS_DROPPED
    assert psnr(small.pixels, reference(data, (224, 224), "cover")) > 41
    full = shrink(data, (224, 224), fidelity="high")
    assert not full.flags & Flag.SCANS_DROPPED


def test_scans_are_never_dropped_from_a_baseline_or_torn_file() -> None:
    assert jpeg.drop_refinements(encoded(photograph()), 2) is None
    torn = encoded(photograph("china", 1999, 1333), progressive=True)[:-2]
    assert jpeg.drop_refinements(torn, 2) is None


def test_a_picture_smaller_than_the_target_is_enlarged_and_says_so() -> None:
    data = encoded(photograph("china", 90, 60), "PNG")
    small = shrink(data, (128, 128))
    assert small.flags & Flag.ENLARGED
    assert psnr(small.pixels, reference(data, (128, 128), "cover")) > 33
    assert not shrink(encoded(photograph()), (128, 128)).flags & Flag.ENLARGED


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (400, 1), (3, 5)])
@pytest.mark.parametrize("mode", ["cover", "contain", "stretch", "short"])
def test_extreme_shapes_have_a_result(shape: tuple[int, int], mode: Mode) -> None:
    for kind in ("JPEG", "PNG"):
        for fidelity in ("fast", "exact"):
            data = encoded(Image.new("RGB", shape, (200, 100, 50)), kind)
            small = shrink(data, (32, 32), mode=mode, fidelity=fidelity)
            assert small.pixels.shape[2] == 3
            brightest = small.pixels.max(axis=(0, 1)).astype(int)
            assert np.abs(brightest - (200, 100, 50)).max() <= 6


def test_a_flat_colour_stays_flat_up_to_the_edges() -> None:
    for kind in ("JPEG", "PNG"):
        data = encoded(Image.new("RGB", (1201, 803), (200, 100, 50)), kind)
        for fidelity in ("fast", "balanced", "high", "exact"):
            small = shrink(data, (224, 224), fidelity=fidelity).pixels
            assert np.ptp(small.reshape(-1, 3), axis=0).max() <= 2


def test_the_reference_knows_a_good_picture_from_another() -> None:
    one, other = photograph("china", 640, 427), photograph("flower", 640, 427)
    assert psnr(pixels_of(one), pixels_of(other)) < 15
