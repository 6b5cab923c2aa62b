"""crc32c checksums, as hexadecimal (manifests) and as base64 (Cloud Storage)."""

import base64
from pathlib import Path

import google_crc32c

from tpuctl.errors import InvalidInputError

_BLOCK_BYTES = 1 << 20


class Crc32c:
    """An incremental crc32c."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._value = google_crc32c.extend(self._value, data)

    @property
    def hex(self) -> str:
        """The checksum so far as eight hexadecimal digits."""
        return f"{self._value:08x}"


def crc32c_of(content: bytes | Path) -> str:
    """Compute the checksum of bytes or of a file; raises OSError."""
    found = Crc32c()
    if isinstance(content, bytes):
        found.add(content)
        return found.hex
    with content.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.add(block)
    return found.hex


def check_checksum(content: bytes | Path, crc32c: str) -> None:
    """Raise InvalidInputError if content no longer has the checksum that was taken of it."""
    actual = crc32c_of(content)
    if actual != crc32c:
        raise InvalidInputError(
            f"Data changed before it was written: its crc32c is {actual}, expected {crc32c}.",
            hint="Run it again; if that fails too, check this machine's disk and memory.",
        )


def to_base64(crc32c: str) -> str:
    """Convert hexadecimal to the base64 of Cloud Storage."""
    return base64.b64encode(bytes.fromhex(crc32c)).decode()


def from_base64(crc32c: str) -> str:
    """Convert the base64 of Cloud Storage to hexadecimal."""
    return base64.b64decode(crc32c).hex()
