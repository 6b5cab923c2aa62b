"""crc32c checksums, as hexadecimal (manifests) and as base64 (Cloud Storage)."""

import base64
from pathlib import Path

import google_crc32c

from tpuctl.errors import InvalidInputError

_BLOCK_BYTES = 1 << 20


def crc32c_of(content: bytes | Path) -> str:
    """Compute the checksum of bytes or of a file; raises OSError."""
    value = 0
    if isinstance(content, bytes):
        value = google_crc32c.value(content)
    else:
        with content.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                value = google_crc32c.extend(value, block)
    return f"{value:08x}"


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
