"""Checksums as Cloud Storage writes them: base64 of crc32c and of MD5."""

import base64
import hashlib

import google_crc32c


class Checksums:
    """The size and both checksums of all bytes added."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self.size_bytes += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._md5.update(data)

    @property
    def crc32c(self) -> str:
        """The crc32c so far, big-endian in base64."""
        return base64.b64encode(self._crc32c.to_bytes(4, "big")).decode()

    @property
    def md5(self) -> str:
        """The MD5 so far, in base64."""
        return base64.b64encode(self._md5.digest()).decode()
