"""ArrayRecord, for random access with Grain: one uncompressed record per chunk.

Images are compressed already; groups of one make a random read cost one record.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from tpuctl.codec import open_regular
from tpuctl.datasets.formats._tfrecord import digest_file, read_frames
from tpuctl.datasets.formats.records import DamagedRecordError, Digest, Preview
from tpuctl.storage.local import publish, translated_write_errors

_OPTIONS = "group_size:1,uncompressed"
_AT_ONCE = 64


class ArrayRecord:
    """A shard for Grain; its records are `tf.train.Example`s."""

    def pack(self, part: Path, shard: Path, index: int, known: Digest) -> Digest:
        """Write it next to the part, and rename it when it is complete."""
        packing = shard.with_suffix(".packing")
        with translated_write_errors(packing), part.open("rb") as records:
            packing.unlink(missing_ok=True)
            try:
                writer = ArrayRecordWriter(str(packing), _OPTIONS)
                for _, record in read_frames(records):
                    writer.write(record)
                writer.close()
            except RuntimeError as error:
                raise _refusal(error, packing) from error
        digest = digest_file(packing)
        publish(packing, shard)
        return digest

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield the number of each record, and the record."""
        open_regular(path).close()
        try:
            reader = ArrayRecordReader(str(path))
        except RuntimeError as error:
            raise _damaged(0, error) from error
        try:
            count = reader.num_records()
            for start in range(0, count, _AT_ONCE):
                numbers = range(start, min(start + _AT_ONCE, count))
                try:
                    records = reader.read(list(numbers))
                except RuntimeError as error:
                    raise _damaged(start, error) from error
                yield from zip(numbers, records, strict=True)
        finally:
            with contextlib.suppress(RuntimeError):
                reader.close()

    def preview(self, path: Path) -> Iterator[Preview]:
        """Yield the records; this format has to read their images too."""
        for _, record in self.read(path):
            yield Preview(len(record), record, partial(bytes, record))


def _damaged(number: int, error: Exception) -> DamagedRecordError:
    first = str(error).strip().splitlines()[:1]
    return DamagedRecordError(number, f"not an ArrayRecord file ({''.join(first)})", unit="record")


def _refusal(error: RuntimeError, path: Path) -> OSError:
    """Turn the library's write error into the OSError that caused it."""
    said = str(error).lower()
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
    code = next((code for code in codes if os.strerror(code).lower() in said), errno.EIO)
    return OSError(code, os.strerror(code) if code != errno.EIO else str(error), str(path))
