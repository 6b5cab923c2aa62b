"""Builds one shard from its images; resumes an interrupted one, losing at most one image."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import BinaryIO

from tpuctl.datasets.formats import open_container, suffix_of
from tpuctl.datasets.formats._tfrecord import RecordWriter, frame, read_frames
from tpuctl.datasets.formats.records import (
    DamagedRecordError,
    Digest,
    Feature,
    decode_example,
    encode_pieces,
)
from tpuctl.datasets.images import _shrink
from tpuctl.datasets.images._pixels import encode_picture
from tpuctl.datasets.images._shrink import Shrunk
from tpuctl.datasets.images.geometry import Fidelity, Flag, Mode
from tpuctl.datasets.images.memory import Admit
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.plan import PlannedPicture, ShardJob
from tpuctl.datasets.quarantine import BadImageError, Quarantined, parse_lines
from tpuctl.datasets.shards.originals import Originals
from tpuctl.datasets.shards.work import Work
from tpuctl.errors import InvalidInputError
from tpuctl.storage.local import open_own, translated_write_errors


@dataclass(frozen=True)
class Recipe:
    """How an image becomes a record."""

    size: tuple[int, int]
    mode: Mode
    fidelity: Fidelity
    encode: str
    quality: int | None
    format: str


class ShardBuilder:
    """Builds one shard in the work folder; `position` is the next image that is missing."""

    def __init__(self, job: ShardJob, *, work: Work, recipe: Recipe) -> None:
        self.job, self.recipe = job, recipe
        self._work = work
        self._part = work.part(job.id)
        self._left_out: dict[int, Quarantined] = {}
        self.position = 0
        self._records = self._salvaged = 0
        self._first_key: str | None = None
        self._last_key: str | None = None

    def build(
        self,
        originals: Originals,
        admit: Admit,
        crashed: Mapping[int, str],
        tell: Callable[[int], None],
    ) -> FinishedShard:
        """Build it from where an earlier run has stopped, without the images in `crashed`.

        `tell` is called with the number of each image before it is read. Raises WriteError,
        SourceChangedError, and what reading from a bucket raises.
        """
        pictures, shard = self.job.pictures, self._work.shard(self.job.id)
        with translated_write_errors(self._part):
            if shard.exists() and not self._part.exists():
                # Finished but not recorded: read it again, there may be nothing else to do.
                os.replace(shard, self._part)
            file = open_own(self._part, "a+b")
        with file:
            writer = RecordWriter(file)
            with translated_write_errors(self._part):
                self._recover(file, writer)
            missing = range(self.position, len(pictures))
            originals.begin([pictures[index] for index in missing if index not in crashed])
            for index in missing:
                tell(index)
                self._add(writer, originals, admit, crashed.get(index))
            tell(len(pictures))
        return self._pack(writer.digest())

    def _add(
        self, writer: RecordWriter, originals: Originals, admit: Admit, crash: str | None
    ) -> None:
        """Append the next image, or write down that it cannot be used."""
        picture, recipe, data = self.job.pictures[self.position], self.recipe, b""
        try:
            if crash is not None:
                raise BadImageError("crashed_worker", crash)
            data = originals.read(picture)
            small = _shrink.shrink(
                data, recipe.size, mode=recipe.mode, fidelity=recipe.fidelity, admit=admit
            )
        except BadImageError as bad:
            self._leave_out(picture, data, bad)
            return
        with translated_write_errors(self._part):
            writer.write(*_make_record(picture, small, recipe))
        self._count(picture.key, small.flags)

    def _leave_out(self, picture: PlannedPicture, data: bytes, bad: BadImageError) -> None:
        sha256 = hashlib.sha256(data).hexdigest() if data else None
        line = Quarantined(picture.key, bad.reason, bad.detail, max(0, picture.bytes), sha256)
        path = self._work.left_out(self.job.id)
        with translated_write_errors(path), open_own(path, "ab") as file:
            file.write(json.dumps({"index": self.position, **asdict(line)}).encode() + b"\n")
        self._left_out[self.position] = line
        self.position += 1

    def _pack(self, written: Digest) -> FinishedShard:
        """Pack the shard in its format; raises WriteError."""
        job, work, recipe = self.job, self._work, self.recipe
        container = open_container(recipe.format, recipe.encode)
        digest = container.pack(self._part, work.shard(job.id), job.index, written)
        return FinishedShard(
            job=job.id,
            name=job.name(digest.crc32c, suffix_of(recipe.format)),
            bytes=digest.bytes,
            records=self._records,
            crc32c=digest.crc32c,
            sha256=digest.sha256,
            first_key=self._first_key,
            last_key=self._last_key,
            salvaged=self._salvaged,
            bytes_in=sum(max(0, picture.bytes) for picture in job.pictures),
            left_out=tuple(self._left_out[index] for index in sorted(self._left_out)),
        )

    def _count(self, key: str, flags: int) -> None:
        self.position += 1
        self._records += 1
        self._salvaged += bool(flags & Flag.SALVAGED)
        self._first_key = key if self._first_key is None else self._first_key
        self._last_key = key

    def _recover(self, file: BinaryIO, writer: RecordWriter) -> None:
        """Keep the whole records of an interrupted run, as long as they follow the plan."""
        left_out = self._work.left_out(self.job.id)
        noted = {
            document.pop("index", -1): Quarantined(**document)
            for document in parse_lines(left_out.read_bytes() if left_out.exists() else b"")
        }
        file.seek(0)
        whole = 0
        try:
            for offset, record in read_frames(file):
                self._skip_noted(noted)
                features = decode_example(record)
                if not self._is_next(features.get("key")):
                    break
                frames = frame(record)
                writer.count(frames)
                whole = offset + len(frames)
                flags = features["flags"]
                picture = self.job.pictures[self.position]
                self._count(picture.key, flags if isinstance(flags, int) else 0)
        except (DamagedRecordError, InvalidInputError):
            pass
        self._skip_noted(noted)
        file.truncate(whole)
        file.seek(whole)

    def _is_next(self, key: object) -> bool:
        pictures = self.job.pictures
        return self.position < len(pictures) and key == os.fsencode(pictures[self.position].key)

    def _skip_noted(self, noted: Mapping[int, Quarantined]) -> None:
        while (bad := noted.get(self.position)) is not None:
            self._left_out[self.position] = bad
            self.position += 1


def _make_record(picture: PlannedPicture, small: Shrunk, recipe: Recipe) -> tuple[bytes, bytes]:
    features: dict[str, Feature] = {
        "key": os.fsencode(picture.key),
        "label": picture.label,
        "height": int(small.pixels.shape[0]),
        "width": int(small.pixels.shape[1]),
        "orig_height": small.original_height,
        "orig_width": small.original_width,
        "flags": small.flags,
        "image": encode_picture(small.pixels, recipe.encode, recipe.quality),
    }
    return encode_pieces(features)
