"""`--encode yuv420`: where its three planes lie, and RGB from them wherever arrays live.

Half the bytes of raw RGB, and the conversion costs the accelerator next to nothing; so a reader
hands over planes and the model begins with `yuv420_to_rgb`.
"""

from typing import Any


def chroma_sides(height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the U and the V plane: half, rounded up."""
    return (height + 1) // 2, (width + 1) // 2


def yuv420_bytes(height: int, width: int) -> int:
    """Return how many bytes a picture takes as planes."""
    rows, columns = chroma_sides(height, width)
    return height * width + 2 * rows * columns


def yuv420_to_rgb(planes: Any, height: int, width: int, *, xp: Any) -> Any:
    """Convert a batch of flat I420 (batch x bytes) to float RGB (batch x height x width x 3).

    Values are 0 to 255 of float32. `xp` is numpy, jax.numpy or tensorflow.experimental.numpy.
    Full-range BT.601, as in JFIF; chroma is interpolated bilinearly around its centres.
    """
    rows, columns = chroma_sides(height, width)
    chroma_bytes = rows * columns
    start = height * width
    flat = xp.asarray(planes, dtype=xp.float32)
    luma = xp.reshape(flat[:, :start], (-1, height, width))
    blue = xp.reshape(flat[:, start : start + chroma_bytes], (-1, rows, columns)) - 128.0
    red = xp.reshape(flat[:, start + chroma_bytes :], (-1, rows, columns)) - 128.0
    blue, red = (_doubled(plane, xp)[:, :height, :width] for plane in (blue, red))
    rgb = (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
    return xp.clip(xp.stack(rgb, axis=-1), 0.0, 255.0)


def _doubled(planes: Any, xp: Any) -> Any:
    """Double rows and columns bilinearly: three quarters of a cell, one of its neighbour."""
    for axis in (1, 2):
        cells = planes if axis == 1 else xp.swapaxes(planes, 1, 2)
        before = xp.concatenate([cells[:, :1], cells[:, :-1]], axis=1)
        after = xp.concatenate([cells[:, 1:], cells[:, -1:]], axis=1)
        pairs = xp.stack([0.75 * cells + 0.25 * before, 0.75 * cells + 0.25 * after], axis=2)
        wide = xp.reshape(pairs, (-1, 2 * cells.shape[1], cells.shape[2]))
        planes = wide if axis == 1 else xp.swapaxes(wide, 1, 2)
    return planes
