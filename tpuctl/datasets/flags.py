"""What was done to a picture on its way into a record: the bits of the feature `flags`."""

import enum

_ORIENTATION_SHIFT = 12


class Flag(enum.IntFlag):
    """One bit each; the Exif orientation that was applied sits above them (`orientation_in`)."""

    SALVAGED = 1
    ENLARGED = 2
    GREY = 4
    CMYK = 8
    PROFILE_APPLIED = 16
    PROFILE_UNUSABLE = 32
    ALPHA_ON_WHITE = 64
    FROM_16_BIT = 128
    SCANS_DROPPED = 256
    FIRST_OF_SEVERAL = 512


def with_orientation(flags: int, orientation: int) -> int:
    """Store an Exif orientation of 1 to 8 among the flags."""
    return int(flags) | orientation << _ORIENTATION_SHIFT


def orientation_in(flags: int) -> int:
    """Read back the Exif orientation that was applied; 1 means none."""
    return flags >> _ORIENTATION_SHIFT & 15
