"""Builds one shard from its images; resumes an interrupted one, losing at most one image."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import BinaryIO

from tpuctl.datasets.formats import open_container, suffix_of
from tpuctl.datasets.formats._tfrecord import RecordWriter, frame, read_frames
from tpuctl.datasets.formats.records import (
    DamagedRecordError,
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
        self._writer: RecordWriter | None = None

    def open(self, stack: ExitStack) -> None:
        """Resume from what an earlier run has done; raises WriteError."""
        shard = self._work.shard(self.job.id)
        with translated_write_errors(self._part):
            if shard.exists() and not self._part.exists():
                # Finished but not recorded: read it again, there may be nothing else to do.
                os.replace(shard, self._part)
            file = stack.enter_context(open_own(self._part, "a+b"))
            self._writer = RecordWriter(file)
            self._recover(file, self._writer)

    def add(self, index: int, small: Shrunk) -> None:
        """Append an image; raises WriteError."""
        picture = self.job.pictures[index]
        assert self._writer is not None
        with translated_write_errors(self._part):
            self._writer.write(*_make_record(picture, small, self.recipe))
        self._count(picture.key, small.flags)

    def leave_out(self, index: int, data: bytes, bad: BadImageError) -> None:
        """Record that an image cannot be used; raises WriteError."""
        picture = self.job.pictures[index]
        sha256 = hashlib.sha256(data).hexdigest() if data else None
        line = Quarantined(picture.key, bad.reason, bad.detail, max(0, picture.bytes), sha256)
        path = self._work.left_out(self.job.id)
        with translated_write_errors(path), open_own(path, "ab") as file:
            file.write(json.dumps({"index": index, **asdict(line)}).encode() + b"\n")
        self._left_out[index] = line
        self.position += 1

    def finish(self) -> FinishedShard:
        """Pack the shard in its format; raises WriteError."""
        assert self._writer is not None
        job, work, recipe = self.job, self._work, self.recipe
        container = open_container(recipe.format, recipe.encode)
        digest = container.pack(self._part, work.shard(job.id), job.index, self._writer.digest())
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


def build_together(
    builders: Sequence[ShardBuilder],
    originals: Originals,
    admit: Admit,
    crashed: Mapping[int, str],
    report: Callable[[int], None],
) -> tuple[FinishedShard, ...]:
    """Build shards of the same images at several sizes, each image decoded once for all.

    `report` is called with the number of each image before it is read. Raises WriteError,
    SourceChangedError, and what reading from a bucket raises.
    """
    pictures = builders[0].job.pictures
    with ExitStack() as stack:
        for builder in builders:
            builder.open(stack)
        missing = range(min(builder.position for builder in builders), len(pictures))
        originals.begin([pictures[index] for index in missing if index not in crashed])
        for index in missing:
            report(index)
            _add(builders, originals, admit, index, crashed.get(index))
        report(len(pictures))
    return tuple(builder.finish() for builder in builders)


def _add(
    builders: Sequence[ShardBuilder],
    originals: Originals,
    admit: Admit,
    index: int,
    crash: str | None,
) -> None:
    """Add an image to every shard that lacks it, or to the list of what it leaves out."""
    data, recipe = b"", builders[0].recipe
    lacking = [builder for builder in builders if builder.position == index]
    try:
        if crash is not None:
            raise BadImageError("crashed_worker", crash)
        data = originals.read(builders[0].job.pictures[index])
        smalls = _shrink.shrink_all(
            data,
            [builder.recipe.size for builder in builders],
            mode=recipe.mode,
            fidelity=recipe.fidelity,
            admit=admit,
        )
    except BadImageError as bad:
        for builder in lacking:
            builder.leave_out(index, data, bad)
        return
    for builder, small in zip(builders, smalls, strict=True):
        if builder in lacking:
            builder.add(index, small)


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
