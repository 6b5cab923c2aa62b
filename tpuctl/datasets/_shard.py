"""One shard from its entries: continue where the last run stopped, lose at most one picture."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tpuctl.datasets import _images
from tpuctl.datasets._encoding import encode_picture
from tpuctl.datasets._tfrecord import RecordWriter, frame, read_frames
from tpuctl.datasets.containers import DamagedRecordError, open_container, suffix_of
from tpuctl.datasets.example import Feature, decode_example, encode_example
from tpuctl.datasets.flags import Flag
from tpuctl.datasets.geometry import Fidelity, Mode
from tpuctl.datasets.memory import Admit
from tpuctl.datasets.originals import Originals
from tpuctl.datasets.plan import Entry, ShardJob
from tpuctl.datasets.quarantine import BadImageError, Quarantined
from tpuctl.datasets.state import Finished, Work, read_lines
from tpuctl.errors import InvalidInputError
from tpuctl.storage.local import translated_write_errors


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a record."""

    size: tuple[int, int]
    mode: Mode
    fidelity: Fidelity
    encode: str
    quality: int | None
    format: str

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> "Recipe":
        """Read it from a plan's options."""
        height, width = cast(list[int], options["size"])
        return cls(
            (height, width),
            cast(Mode, options["mode"]),
            cast(Fidelity, options["fidelity"]),
            cast(str, options["encode"]),
            cast("int | None", options["quality"]),
            cast(str, options["format"]),
        )


@dataclass
class _Tally:
    """What has gone into a shard so far."""

    position: int = 0
    records: int = 0
    salvaged: int = 0
    first_key: str | None = None
    last_key: str | None = None

    def count(self, key: str, flags: int) -> None:
        self.position += 1
        self.records += 1
        self.salvaged += bool(flags & Flag.SALVAGED)
        self.first_key = key if self.first_key is None else self.first_key
        self.last_key = key


class ShardBuilder:
    """Builds one shard in the work folder; `tell` hears of each picture before it is touched."""

    def __init__(
        self, job: ShardJob, *, originals: Originals, work: Work, recipe: Recipe, admit: Admit
    ) -> None:
        self._job, self._originals, self._work = job, originals, work
        self._recipe, self._admit = recipe, admit
        self._left_out: dict[int, Quarantined] = {}
        self._tally = _Tally()

    def build(self, crashed: Mapping[int, str], tell: Callable[[int], None]) -> Finished:
        """Write what is missing and finish the shard; raises WriteError, SourceChangedError."""
        part = self._work.part(self._job.id)
        with translated_write_errors(part):
            self._take_up(part)
        with translated_write_errors(part), part.open("a+b") as file:
            writer = RecordWriter(file)
            self._recover(file, writer)
            missing = range(self._tally.position, len(self._job.entries))
            self._originals.begin(
                [self._job.entries[index] for index in missing if index not in crashed]
            )
            for index in missing:
                tell(index)
                self._add(index, writer, crashed.get(index))
            tell(len(self._job.entries))
        return self._finish(writer)

    def _take_up(self, part: Path) -> None:
        """Turn a shard that was finished but never journalled into one that only lacks a look."""
        shard = self._work.shard(self._job.id)
        if shard.exists() and not part.exists():
            os.replace(shard, part)

    def _finish(self, writer: RecordWriter) -> Finished:
        tally, job, work = self._tally, self._job, self._work
        container = open_container(vars(self._recipe))
        part, shard = work.part(job.id), work.shard(job.id)
        digest = container.pack(part, shard, job.index, writer.digest())
        return Finished(
            job=job.id,
            name=job.name(digest.crc32c, suffix_of(vars(self._recipe))),
            bytes=digest.bytes,
            records=tally.records,
            crc32c=digest.crc32c,
            sha256=digest.sha256,
            first_key=tally.first_key,
            last_key=tally.last_key,
            salvaged=tally.salvaged,
            bytes_in=sum(max(0, entry.bytes) for entry in job.entries),
            left_out=tuple(self._left_out[index] for index in sorted(self._left_out)),
        )

    def _recover(self, file: BinaryIO, writer: RecordWriter) -> None:
        """Keep the whole records of an interrupted run, as long as they follow the plan."""
        noted = {
            document.pop("index", -1): Quarantined(**document)
            for document in read_lines(self._work.left_out(self._job.id))
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
                writer.replay(frames)
                whole = offset + len(frames)
                flags = features["flags"]
                entry = self._job.entries[self._tally.position]
                self._tally.count(entry.key, flags if isinstance(flags, int) else 0)
        except (DamagedRecordError, InvalidInputError):
            pass
        self._skip_noted(noted)
        file.truncate(whole)
        file.seek(whole)

    def _is_next(self, key: object) -> bool:
        position = self._tally.position
        entries = self._job.entries
        return position < len(entries) and key == os.fsencode(entries[position].key)

    def _skip_noted(self, noted: Mapping[int, Quarantined]) -> None:
        while (bad := noted.get(self._tally.position)) is not None:
            self._left_out[self._tally.position] = bad
            self._tally.position += 1

    def _add(self, index: int, writer: RecordWriter, crash: str | None) -> None:
        entry = self._job.entries[index]
        data = b""
        try:
            if crash is not None:
                raise BadImageError("crashed_worker", crash)
            data = self._originals.read(entry)
            record, flags = self._make_record(entry, data)
        except BadImageError as bad:
            self._leave_out(index, entry, data, bad)
            return
        writer.write(record)
        self._tally.count(entry.key, flags)

    def _leave_out(self, index: int, entry: Entry, data: bytes, bad: BadImageError) -> None:
        sha256 = hashlib.sha256(data).hexdigest() if data else None
        line = Quarantined(entry.key, bad.reason, bad.detail, max(0, entry.bytes), sha256)
        with self._work.left_out(self._job.id).open("ab") as file:
            file.write(json.dumps({"index": index, **asdict(line)}).encode() + b"\n")
        self._left_out[index] = line
        self._tally.position += 1

    def _make_record(self, entry: Entry, data: bytes) -> tuple[bytes, int]:
        recipe = self._recipe
        small = _images.shrink(
            data, recipe.size, mode=recipe.mode, fidelity=recipe.fidelity, admit=self._admit
        )
        # The picture comes last, so that a reader of labels and sizes need not touch it.
        features: dict[str, Feature] = {
            "key": os.fsencode(entry.key),
            "label": entry.label,
            "height": int(small.pixels.shape[0]),
            "width": int(small.pixels.shape[1]),
            "orig_height": small.original_height,
            "orig_width": small.original_width,
            "flags": small.flags,
            "image": encode_picture(small.pixels, recipe.encode, recipe.quality),
        }
        return encode_example(features), small.flags
