"""TFRecord framing: length, masked crc32c of the length, record, masked crc32c of the record.

Format: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from tpuctl.codec import open_regular
from tpuctl.datasets.formats.records import DamagedRecordError, Digest, Preview
from tpuctl.storage.local import publish

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8
_CHUNK_BYTES = 1 << 20


# Everything of a record but its image fits, unless a path is longer than systems allow.
_SMALL_FEATURES_BYTES = 8192


class TfRecord:
    """The format that shards are written in, so that packing one only renames it."""

    def pack(self, part: Path, shard: Path, index: int, known: Digest) -> Digest:
        """Rename the part; its digest is known already."""
        publish(part, shard)
        return known

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield the offset of each frame, and the record."""
        with open_regular(path) as file:
            yield from read_frames(file)

    def preview(self, path: Path) -> Iterator[Preview]:
        """Yield the records, skipping their images."""
        with open_regular(path) as file:
            position, size = 0, os.fstat(file.fileno()).st_size
            while header := file.read(HEADER_BYTES):
                length = record_length(header, position, size)
                start = position + HEADER_BYTES
                head = file.read(min(length, _SMALL_FEATURES_BYTES))
                yield Preview(length, head, partial(_read_range, path, start, length))
                position = start + length + FOOTER_BYTES
                file.seek(position)


class RecordWriter:
    """Append records to an open file, unbuffered, and keep checksums of the whole file.

    Without `sha256`, its digest is empty: that alone costs as much as everything else.
    """

    def __init__(self, file: BinaryIO, *, sha256: bool = True) -> None:
        self._file = file
        self._crc = 0
        self._sha256 = hashlib.sha256() if sha256 else None
        self.size_bytes = 0

    def write(self, *pieces: bytes) -> None:
        """Append one record, given in pieces, without joining them first."""
        length, crc = _LENGTH.pack(sum(map(len, pieces))), 0
        for piece in pieces:
            crc = google_crc32c.extend(crc, piece)
        data = (length + _masked_crc(length), *pieces, _CRC.pack(_masked(crc)))
        _write_through(self._file.fileno(), data)
        for part in data:
            self.count(part)

    def digest(self) -> Digest:
        """Return the digest of what has been written so far."""
        sha256 = self._sha256.hexdigest() if self._sha256 else ""
        return Digest(self.size_bytes, f"{self._crc:08x}", sha256)

    def count(self, data: bytes) -> None:
        """Count bytes that the file holds already."""
        self._crc = google_crc32c.extend(self._crc, data)
        if self._sha256:
            self._sha256.update(data)
        self.size_bytes += len(data)


def frame(record: bytes) -> bytes:
    """Put a record between its length and its checksum."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _masked_crc(length), record, _masked_crc(record)))


def read_frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each record and the offset of its frame; raises DamagedRecordError."""
    offset = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(offset)
    while header := file.read(HEADER_BYTES):
        length = record_length(header, offset, size)
        body = file.read(length + FOOTER_BYTES)
        record = body[:length]
        if body[length:] != _masked_crc(record):
            raise DamagedRecordError(offset, "a record with a wrong checksum")
        yield offset, record
        offset += HEADER_BYTES + length + FOOTER_BYTES


def record_length(header: bytes, offset: int, file_bytes: int) -> int:
    """Read the length of the record that follows a header; raises DamagedRecordError."""
    if len(header) != HEADER_BYTES or header[8:] != _masked_crc(header[:8]):
        raise DamagedRecordError(offset, "a damaged record header")
    length = int(_LENGTH.unpack(header[:8])[0])
    if length > file_bytes - offset - HEADER_BYTES - FOOTER_BYTES:
        raise DamagedRecordError(offset, "a truncated record")
    return length


def _read_range(path: Path, start: int, length: int) -> bytes:
    with open_regular(path) as file:
        file.seek(start)
        return file.read(length)


def digest_file(path: Path) -> Digest:
    """Read a whole file for its checksums; raises OSError."""
    crc, sha, size = 0, hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = google_crc32c.extend(crc, chunk)
            size += len(chunk)
            sha.update(chunk)
    return Digest(size, f"{crc:08x}", sha.hexdigest())


def _write_through(descriptor: int, data: Sequence[bytes]) -> None:
    """Write all of it, so that a kill loses no buffered data; raises OSError."""
    written = os.writev(descriptor, data)
    rest = b"".join(data)[written:] if written < sum(map(len, data)) else b""
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _masked_crc(data: bytes) -> bytes:
    return _CRC.pack(_masked(google_crc32c.value(data)))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
