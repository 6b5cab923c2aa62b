"""How the small picture lies in its record: encoded on the way in, decoded on the way out."""

from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

from tpuctl.datasets.images._resample import Pixels, halve
from tpuctl.datasets.images.geometry import chroma_sides


def encode_picture(pixels: Pixels, encode: str, quality: int | None) -> bytes:
    """Encode height x width x 3 of uint8; `quality` (1 to 100) is that of JPEG and WebP."""
    if encode == "raw":
        return pixels.tobytes()
    if encode == "yuv420":
        return _encode_planes(pixels)
    if encode == "jpeg":
        return encode_jpeg(pixels, quality or 95)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    how = [cv2.IMWRITE_WEBP_QUALITY, quality or 95] if encode == "webp" else []
    _, data = cv2.imencode(f".{encode}", bgr, how)
    return data.tobytes()


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Compress at 4:4:4: sub-sampling would cost more than all the shrinking before it."""
    return bytes(simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="444"))


def decode_picture(image: bytes, encode: str, shape: tuple[int, int, int]) -> Pixels:
    """Decode the picture of a record; raises ValueError when it is damaged."""
    pixels = _DECODERS[encode](image, shape)
    if pixels.shape != shape:
        raise ValueError(f"it is {pixels.shape}, not {shape}")
    return pixels


def _decode_raw(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    return np.frombuffer(image, np.uint8).reshape(shape)


def _decode_jpeg(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    pixels: Pixels = simplejpeg.decode_jpeg(image, "RGB", strict=True)
    return pixels


def _decode_by_opencv(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    decoded = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) if image else None
    if decoded is None:
        raise ValueError("OpenCV cannot decode it")
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def _encode_planes(pixels: Pixels) -> bytes:
    """Write full-range BT.601 as I420: all of Y, then U and V at half size (JPEG's own siting)."""
    luma, red, blue = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_RGB2YCrCb))
    return b"".join(plane.tobytes() for plane in (luma, halve(blue), halve(red)))


def _decode_planes(image: bytes, shape: tuple[int, int, int]) -> Pixels:
    height, width, _ = shape
    rows, columns = chroma_sides(height, width)
    flat = np.frombuffer(image, np.uint8)
    luma, blue, red = np.split(flat, [height * width, height * width + rows * columns])
    chroma = [
        cv2.resize(plane.reshape(rows, columns), None, fx=2, fy=2)[:height, :width]
        for plane in (red, blue)
    ]
    return cv2.cvtColor(cv2.merge([luma.reshape(height, width), *chroma]), cv2.COLOR_YCrCb2RGB)


_DECODERS: dict[str, Callable[[bytes, tuple[int, int, int]], Pixels]] = {
    "raw": _decode_raw,
    "yuv420": _decode_planes,
    "jpeg": _decode_jpeg,
    "webp": _decode_by_opencv,
    "png": _decode_by_opencv,
}
