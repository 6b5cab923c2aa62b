"""The missing shards of a plan, built in worker processes and journalled one by one."""

import contextlib
import json
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.images.memory import memory_budget_bytes
from tpuctl.datasets.models import DataSet
from tpuctl.datasets.plan import Plan, ShardJob
from tpuctl.datasets.pool import Claim, Setup, build_shards, claim_all
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.state import QUARANTINE, Finished, Work, quarantine_text
from tpuctl.progress import OnProgress, Progress
from tpuctl.storage.local import publish, sync_folder, translated_write_errors, write_atomically
from tpuctl.units import format_bytes


def build_missing(
    run: Prepared,
    work: Work,
    missing: Sequence[ShardJob],
    lock: int,
    on_progress: OnProgress,
    claim: Claim = claim_all,
) -> Generator[Finished, None, None]:
    """Build the missing shards in the work folder; each is journalled when it is complete.

    So are their twins, each in its own work folder. `claim` may refuse a shard when its turn comes.
    """
    setup = Setup(
        source=run.source,
        work=str(work.folder),
        options=run.plan.options,
        budget_bytes=memory_budget_bytes(),
        workers=min(run.workers, max(1, len(missing))),
    )
    meter = _Meter(run.plan.images, missing, on_progress)
    with closing(build_shards(missing, setup, inherit=(lock,), claim=claim)) as steps:
        for step in steps:
            meter.show(step.job, step.position, step.finished)
            if step.finished is not None:
                for place, finished in zip(_places(work, step.job), step.all, strict=True):
                    place.record(finished)
                    place.forget_part(finished.job)
                    yield finished


def _places(work: Work, job: ShardJob) -> Iterator[Work]:
    yield work
    for twin in job.twins:
        yield Work(Path(twin.work))


class _Meter:
    """Counts pictures over all shards for whoever is watching."""

    def __init__(self, images: int, missing: Sequence[ShardJob], on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._images = images
        self._base = images - sum(len(job.entries) for job in missing)
        self._positions: dict[str, int] = {}
        self._bytes = 0
        self._left_out = 0
        self._first: tuple[float, int, int] | None = None

    def show(self, job: ShardJob, position: int, finished: Finished | None) -> None:
        before = self._positions.get(job.id, 0)
        self._bytes += sum(max(0, entry.bytes) for entry in job.entries[before:position])
        self._positions[job.id] = position
        self._left_out += len(finished.left_out) if finished else 0
        worked = sum(self._positions.values())
        now_s = time.monotonic()
        first_s, first, bytes_then = self._first = self._first or (now_s, worked, self._bytes)
        note = ""
        if now_s > first_s and worked > first:
            rate = (worked - first) / (now_s - first_s)
            bytes_per_s = int((self._bytes - bytes_then) / (now_s - first_s))
            note = f"{rate:,.0f} images/s, {format_bytes(bytes_per_s)}/s"
        if self._left_out:
            note += f", {self._left_out} left out"
        done = self._base + worked
        self._on_progress(Progress("presize", done, self._images, "images", note))


def publish_data_set(
    folder: Path, work: Work, plan: Plan, shards: Sequence[Finished], previous: DataSet | None
) -> None:
    """Turn finished shards into the data set of this folder; raises WriteError.

    A kill at any moment leaves the previous data set, or none, or the new one; running it again
    completes the step.
    """
    _claim(work, [shard.name for shard in shards], previous)
    with translated_write_errors(folder / manifest.MANIFEST):
        for shard in shards:
            with contextlib.suppress(FileNotFoundError):
                os.replace(work.shard(shard.job), folder / shard.name)
        sync_folder(folder)
    left_out = quarantine_text(shards)
    if left_out:
        _put(folder / QUARANTINE, left_out, work)
    _put(folder / manifest.MANIFEST, manifest.to_text(manifest.compose(plan, shards)), work)
    if not left_out:
        with translated_write_errors(folder / QUARANTINE):
            (folder / QUARANTINE).unlink(missing_ok=True)
    clean_up(folder, work, keep=(shard.name for shard in shards))


def clean_up(folder: Path, work: Work, *, keep: Iterable[str]) -> None:
    """Delete what a finished publication leaves behind, and only that; raises WriteError."""
    superfluous = _claimed(work) - set(keep)
    with translated_write_errors(folder):
        for name in superfluous:
            (folder / name).unlink(missing_ok=True)
    work.remove()


def _put(path: Path, text: str, work: Work) -> None:
    """Write a file where a kill leaves nothing beside it, then give it its place."""
    part = work.folder / path.name
    write_atomically(part, text)
    publish(part, path)


def _claim(work: Work, names: Sequence[str], previous: DataSet | None) -> None:
    """Write down which files here are ours before any of them can become an orphan."""
    old = {shard.name for shard in previous.shards} if previous else set()
    write_atomically(work.claims, json.dumps(sorted(_claimed(work) | old | set(names))))


def _claimed(work: Work) -> set[str]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return {name for name in json.loads(work.claims.read_text()) if manifest.is_plain(name)}
    return set()
