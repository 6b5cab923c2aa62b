"""crc32c, in the hexadecimal that manifests have and the base64 that Cloud Storage has."""

import base64
from pathlib import Path

import google_crc32c

from tpuctl.errors import InvalidInputError

_BLOCK_BYTES = 1 << 20


class Crc32c:
    """The crc32c of everything that was added."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._value = google_crc32c.extend(self._value, data)

    @property
    def hex(self) -> str:
        """The checksum so far, in eight digits."""
        return f"{self._value:08x}"


def crc32c_of(content: bytes | Path) -> str:
    """The checksum of bytes or of a file; raises OSError."""
    found = Crc32c()
    if isinstance(content, bytes):
        found.add(content)
        return found.hex
    with content.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.add(block)
    return found.hex


def check_checksum(content: bytes | Path, crc32c: str) -> None:
    """Refuse content that is not what it was when its checksum was taken."""
    actual = crc32c_of(content)
    if actual != crc32c:
        raise InvalidInputError(
            f"The bytes to write have changed: their crc32c is {actual}, and was {crc32c}.",
            hint="Make them again; if it happens again, suspect the disk or the memory.",
        )


def to_base64(crc32c: str) -> str:
    """Write hexadecimal as Cloud Storage does."""
    return base64.b64encode(bytes.fromhex(crc32c)).decode()


def from_base64(crc32c: str) -> str:
    """Read what Cloud Storage wrote."""
    return base64.b64decode(crc32c).hex()
