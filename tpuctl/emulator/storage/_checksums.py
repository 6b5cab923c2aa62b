"""Checksums as Cloud Storage writes them: base64 of crc32c and of md5, over what streams by."""

import base64
import hashlib
from typing import BinaryIO

import google_crc32c

_BLOCK_BYTES = 1 << 20


class Checksums:
    """Both checksums of everything that was added."""

    def __init__(self) -> None:
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._md5.update(data)

    @property
    def crc32c(self) -> str:
        """The crc32c so far, big-endian in base64."""
        return base64.b64encode(self._crc32c.to_bytes(4, "big")).decode()

    @property
    def md5(self) -> str:
        """The md5 so far, in base64."""
        return base64.b64encode(self._md5.digest()).decode()


def checksums_of(file: BinaryIO) -> Checksums:
    """Both checksums of the rest of a file."""
    found = Checksums()
    while block := file.read(_BLOCK_BYTES):
        found.add(block)
    return found
