"""Whatever colours a picture came in, sRGB comes out; done on the small result."""

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms

from tpuctl.datasets._resample import Pixels
from tpuctl.datasets.flags import Flag

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
            return _apply(transform, pixels, mode), flags | Flag.PROFILE_APPLIED
        flags |= Flag.PROFILE_UNUSABLE if transform is None else Flag(0)
    if channels == 1:
        return np.repeat(pixels, 3, axis=2), flags
    return (pixels if channels == 3 else _mix_inks(pixels)), flags


def _apply(transform: ImageCms.ImageCmsTransform, pixels: Pixels, mode: str) -> Pixels:
    height, width = pixels.shape[:2]
    image = Image.frombytes(mode, (width, height), np.ascontiguousarray(pixels).tobytes())
    return np.asarray(transform.apply(image))


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
