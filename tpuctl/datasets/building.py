"""The missing shards of a plan, built in worker processes and journalled one by one."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tpuctl.datasets.memory import memory_budget_bytes
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.pool import Claim, Setup, build_shards, claim_all
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.state import Finished, Work
from tpuctl.progress import OnProgress, Progress
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
