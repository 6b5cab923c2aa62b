"""The hidden folder in which the shards of a data set are made, and the journal of those done.

Files in it are trusted only after their size and crc32c have been compared with the journal.
"""

import contextlib
import errno
import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tpuctl.codec import from_plain, open_regular, to_plain
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.quarantine import parse_lines
from tpuctl.storage.local import (
    append_line,
    ensure_folder,
    translated_write_errors,
    write_atomically,
)


@dataclass(frozen=True)
class Work:
    """The hidden folder with what is not finished yet; a `private` one has private parents."""

    folder: Path
    private: bool = False

    @property
    def lock(self) -> Path:
        """Held by the run that works here, and by its workers."""
        return self.folder / "lock"

    @property
    def journal(self) -> Path:
        """One line for every finished shard."""
        return self.folder / "journal.jsonl"

    @property
    def structure(self) -> Path:
        """The structure of a cache's elements, and the id of the cache."""
        return self.folder / "structure.json"

    def part(self, job: str) -> Path:
        """A shard that is being written."""
        return self.folder / f"{job}.part"

    def left_out(self, job: str) -> Path:
        """The images left out of that shard so far."""
        return self.folder / f"{job}.left-out"

    def shard(self, job: str) -> Path:
        """A shard that is finished and not in its place."""
        return self.folder / f"{job}.shard"

    def create(self) -> None:
        """Make the folder; raises WriteError."""
        with translated_write_errors(self.folder):
            if self.folder.is_symlink():
                raise OSError("it is a symbolic link")
            if self.private:
                ensure_folder(self.folder.parent, private=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise OSError(errno.ELOOP, "it is a symbolic link")

    def record(self, finished: FinishedShard) -> None:
        """Add a line to the journal, on disk before this returns; raises WriteError."""
        append_line(self.journal, to_text(finished))

    def finished(self) -> list[FinishedShard]:
        """Read the journal; a torn last line is skipped."""
        shards = []
        with contextlib.suppress(OSError), open_regular(self.journal) as file:
            for document in parse_lines(file.read()):
                with contextlib.suppress(ValueError):
                    shards.append(from_plain(FinishedShard, document))
        return shards

    def rewrite(self, finished: Iterable[FinishedShard]) -> None:
        """Replace the journal by these lines; raises WriteError."""
        write_atomically(self.journal, "".join(to_text(shard) + "\n" for shard in finished))

    def forget_part(self, job: str) -> None:
        """Delete what a journalled shard was packed from; raises WriteError."""
        with translated_write_errors(self.folder):
            self.part(job).unlink(missing_ok=True)

    def forget_all_but(self, jobs: Collection[str]) -> None:
        """Delete the shards of all other jobs, finished or not; raises WriteError."""
        with translated_write_errors(self.folder):
            for path in self.folder.iterdir():
                ours = path.suffix in (".part", ".left-out", ".shard", ".packing")
                if ours and path.name.partition(".")[0] not in jobs:
                    path.unlink()

    def forget_left_out(self, jobs: Iterable[str]) -> None:
        """Delete what there is of shards that have left something out; raises WriteError."""
        with translated_write_errors(self.folder):
            for job in jobs:
                if self.left_out(job).exists():
                    for path in (self.part(job), self.shard(job), self.left_out(job)):
                        path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder once nothing in it is needed any more; raises WriteError."""
        with translated_write_errors(self.folder):
            try:
                if self.folder.is_dir():
                    shutil.rmtree(self.folder)
            except OSError as error:
                # Another run waits for the lock: the folder is its own from here on.
                if error.errno != errno.ENOTEMPTY:
                    raise


def to_text(finished: FinishedShard) -> str:
    """Write a finished shard as JSON: a line of the journal, or a note in a bucket."""
    return json.dumps(to_plain(finished))
