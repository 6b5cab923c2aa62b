"""webdataset's tar: per record a JSON file, the class, and the image with its usual suffix.

Layout: github.com/webdataset/webdataset, "The WebDataset Format". The tar itself protects no data,
so the JSON carries the image's crc32c.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c

from tpuctl.codec import open_regular, parse_json
from tpuctl.datasets.formats._tfrecord import digest_file, read_frames
from tpuctl.datasets.formats.records import (
    NUMBERS,
    DamagedRecordError,
    Digest,
    Feature,
    Preview,
    decode_example,
    encode_example,
)
from tpuctl.storage.local import open_own, publish, translated_write_errors

_PICTURE_SUFFIXES = {"jpeg": "jpg", "png": "png", "webp": "webp", "raw": "rgb", "yuv420": "i420"}


class Tar:
    """A shard for webdataset; `encode` determines the suffix of the images."""

    def __init__(self, encode: str) -> None:
        self._suffix = _PICTURE_SUFFIXES[encode]

    def pack(self, part: Path, shard: Path, index: int, known: Digest) -> Digest:
        """Write the tar beside the part and give it its name when it is complete."""
        packing = shard.with_suffix(".packing")
        with (
            translated_write_errors(packing),
            part.open("rb") as records,
            open_own(packing, "wb") as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for number, (_, record) in enumerate(read_frames(records)):
                self._add(tar, f"{index:05}-{number:07}", decode_example(record))
        digest = digest_file(packing)
        publish(packing, shard)
        return digest

    def read(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Yield the offset of each record's JSON file, and the record."""
        for offset, record in self._records(path):
            yield offset, record.whole()

    def preview(self, path: Path) -> Iterator[Preview]:
        """Yield the records without their images."""
        for _, record in self._records(path):
            yield record

    def _add(self, tar: tarfile.TarFile, stem: str, features: dict[str, Feature]) -> None:
        picture, key, label = features["image"], features["key"], features["label"]
        assert isinstance(picture, bytes)
        assert isinstance(key, bytes)
        crc32c = f"{google_crc32c.value(picture):08x}"
        numbers = {name: features[name] for name in NUMBERS}
        text = json.dumps({"key": os.fsdecode(key), **numbers, "crc32c": crc32c})
        _put(tar, f"{stem}.json", text.encode())
        if label != -1:
            _put(tar, f"{stem}.cls", str(label).encode())
        _put(tar, f"{stem}.{self._suffix}", picture)

    def _records(self, path: Path) -> Iterator[tuple[int, Preview]]:
        """Pair each JSON file with the image that follows it under the same stem."""
        described: tuple[int, str, dict[str, Any]] | None = None
        for member, data in _members(path):
            stem, _, suffix = member.name.partition(".")
            if suffix == "json":
                described = member.offset, stem, _description(member, data())
            elif suffix == self._suffix:
                if described is None or described[1] != stem:
                    raise DamagedRecordError(member.offset, "an image without its JSON file")
                offset, _, document = described
                whole = partial(_whole, document, data, offset)
                yield offset, Preview(member.size, encode_example(_features(document)), whole)
                described = None
        if described is not None:
            raise DamagedRecordError(described[0], "a truncated record")


def _whole(document: dict[str, Any], data: Callable[[], bytes], offset: int) -> bytes:
    """Read a whole record, and compare the checksum of its image."""
    picture = data()
    if f"{google_crc32c.value(picture):08x}" != document["crc32c"]:
        raise DamagedRecordError(offset, "a record with a wrong checksum")
    return encode_example({**_features(document), "image": picture})


def _features(document: dict[str, Any]) -> dict[str, Feature]:
    return {"key": os.fsencode(document["key"]), **{name: document[name] for name in NUMBERS}}


def _description(member: tarfile.TarInfo, data: bytes) -> dict[str, Any]:
    try:
        document = parse_json(data)
        os.fsencode(document["key"])
        if isinstance(document["crc32c"], str) and all(
            isinstance(document[name], int) for name in NUMBERS
        ):
            return dict(document)
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedRecordError(member.offset, "a damaged description")


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, Callable[[], bytes]]]:
    """Yield every file of a tar and a function that reads it."""
    with open_regular(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                size, last = os.fstat(file.fileno()).st_size, -1
                for member in tar:
                    # A negative size leads back and round for ever; a sparse file is all zeros.
                    if member.offset <= last or member.issparse() or member.size > size:
                        raise DamagedRecordError(member.offset, "a damaged tar header")
                    last = member.offset
                    yield member, partial(_read, tar, member)
        except (tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError) as error:
            raise DamagedRecordError(file.tell(), f"not a tar file ({error})") from error


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    try:
        file = tar.extractfile(member)
        data = b"" if file is None else file.read()
    except tarfile.ReadError as error:
        raise DamagedRecordError(member.offset, str(error)) from error
    if len(data) != member.size:
        raise DamagedRecordError(member.offset, "a truncated record")
    return data
