"""What a presize has done so far: the journal, the finished shards, the list of left-out files.

Everything unfinished lives in one hidden folder of the target. Whatever is there can be trusted
only after its size and crc32c have been compared with what the journal says.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.quarantine import Quarantined
from tpuctl.storage.local import append_line, translated_write_errors, write_atomically

QUARANTINE = "quarantine.jsonl"


@dataclass(frozen=True)
class Finished:
    """A shard that is complete, and the inputs that did not make it into it."""

    job: str
    name: str
    bytes: int
    records: int
    crc32c: str
    sha256: str
    first_key: str | None
    last_key: str | None
    salvaged: int
    bytes_in: int
    left_out: tuple[Quarantined, ...]

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Finished":
        """Read what `to_json` wrote; raises KeyError and TypeError."""
        left_out = tuple(Quarantined(**bad) for bad in document["left_out"])
        return cls(**{**document, "left_out": left_out})

    def to_json(self) -> str:
        """Write one line of the journal."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Work:
    """The hidden folder with what is not finished yet."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Held by the run that works here, and by its workers."""
        return self.folder / "lock"

    @property
    def journal(self) -> Path:
        """One line for every finished shard."""
        return self.folder / "journal.jsonl"

    @property
    def claims(self) -> Path:
        """Names next to the manifest that are ours and may have become superfluous."""
        return self.folder / "claims.json"

    @property
    def structure(self) -> Path:
        """What the elements of a cache look like, and which cache it is."""
        return self.folder / "structure.json"

    def part(self, job: str) -> Path:
        """A shard that is being written."""
        return self.folder / f"{job}.part"

    def left_out(self, job: str) -> Path:
        """What that shard leaves out, as far as it has come."""
        return self.folder / f"{job}.left-out"

    def shard(self, job: str) -> Path:
        """A shard that is finished and not published."""
        return self.folder / f"{job}.shard"

    def create(self) -> None:
        """Make the folder; raises WriteError."""
        with translated_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def record(self, finished: Finished) -> None:
        """Add a line to the journal, on disk before this returns; raises WriteError."""
        append_line(self.journal, finished.to_json())

    def finished(self) -> Iterator[Finished]:
        """Yield what the journal holds; a torn last line is as good as none."""
        for document in read_lines(self.journal):
            with contextlib.suppress(KeyError, TypeError):
                yield Finished.from_json(document)

    def forget_part(self, job: str) -> None:
        """Delete what a journalled shard was packed from; raises WriteError."""
        with translated_write_errors(self.folder):
            self.part(job).unlink(missing_ok=True)

    def rewrite(self, finished: Iterable[Finished]) -> None:
        """Replace the journal by these lines; raises WriteError."""
        write_atomically(self.journal, "".join(shard.to_json() + "\n" for shard in finished))

    def forget_all_but(self, jobs: Iterable[ShardJob]) -> None:
        """Delete what other plans have left here; raises WriteError."""
        wanted = {job.id for job in jobs}
        with translated_write_errors(self.folder):
            for path in self.folder.iterdir():
                ours = path.suffix in (".part", ".left-out", ".shard", ".packing")
                if ours and path.name.partition(".")[0] not in wanted:
                    path.unlink()

    def forget_left_out(self, jobs: Iterable[ShardJob]) -> None:
        """Delete what there is of shards that have left something out; raises WriteError."""
        with translated_write_errors(self.folder):
            for job in jobs:
                if self.left_out(job.id).exists():
                    for path in (self.part(job.id), self.shard(job.id), self.left_out(job.id)):
                        path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder: all of it is published; raises WriteError."""
        with translated_write_errors(self.folder):
            if self.folder.is_dir():
                shutil.rmtree(self.folder)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one per line, skipping what is torn or not there."""
    try:
        text = path.read_bytes()
    except OSError:
        return
    yield from parse_lines(text)


def parse_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text, one per line, skipping what is torn."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict):
                yield document


def quarantine_text(shards: Iterable[Finished]) -> str:
    """Write the list of left-out files, one JSON object per line, in the order of their names."""
    lines = sorted(
        (bad.path, json.dumps({"key": bad.path, **_details(bad), "job": shard.job}))
        for shard in shards
        for bad in shard.left_out
    )
    return "".join(line + "\n" for _, line in lines)


def quarantine_of(folder: Path) -> dict[str, list[Quarantined]]:
    """Read the published list of left-out files, by the shard they are missing from."""
    try:
        return read_quarantine((folder / QUARANTINE).read_bytes())
    except OSError:
        return {}


def read_quarantine(text: bytes) -> dict[str, list[Quarantined]]:
    """Understand a list of left-out files, by the shard they are missing from."""
    listed: dict[str, list[Quarantined]] = {}
    for document in parse_lines(text):
        with contextlib.suppress(KeyError, TypeError):
            job, key = document.pop("job"), document.pop("key")
            listed.setdefault(job, []).append(Quarantined(path=key, **document))
    return listed


def _details(bad: Quarantined) -> dict[str, Any]:
    return {"reason": bad.reason, "detail": bad.detail, "bytes": bad.bytes, "sha256": bad.sha256}
