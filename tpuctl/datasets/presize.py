"""Presize: a folder of photographs becomes a data set of small ones, once and for all."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.build import build_missing, clean_up, publish_data_set
from tpuctl.datasets.distributed_presize import Part, presize_into_storage
from tpuctl.datasets.models import DataSet, PresizeOptions, PresizeResult
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.plan import Plan, ShardJob, Twin
from tpuctl.datasets.preparing import Prepared, prepare_sizes
from tpuctl.datasets.results import (
    check_quarantine,
    describe_traffic,
    plan_traffic,
    result_of,
    summed,
)
from tpuctl.datasets.reuse import refuse_another_plan, reusable
from tpuctl.datasets.state import QUARANTINE, Finished, Work
from tpuctl.errors import WriteError
from tpuctl.progress import OnProgress, message, silent
from tpuctl.storage.local import free_bytes, locked, write_atomically
from tpuctl.units import format_bytes

_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class _Run:
    """One presize into a folder on its way."""

    prepared: Prepared
    target: Path
    previous: DataSet | None

    @property
    def plan(self) -> Plan:
        return self.prepared.plan

    @property
    def options(self) -> PresizeOptions:
        return self.prepared.options

    @property
    def work(self) -> Work:
        return Work(self.target / manifest.WORK)


def presize(
    src: str | Path,
    dst: str | Path,
    options: PresizeOptions | None = None,
    *,
    part: Part | None = None,
    on_progress: OnProgress = silent,
) -> PresizeResult:
    """Make `dst` the data set of the photographs in `src`; both a folder or `gs://BUCKET/FOLDER`.

    Begun already, it is finished. Nothing appears under a final name before it is complete, and
    `manifest.json` comes last. With `part`, this machine does its share of the shards, and the last
    of all machines writes the manifest. Raises TpuctlError subclasses: NotFoundError,
    InvalidInputError, AlreadyExistsError, WriteError, TryAgainError.
    """
    options = options or PresizeOptions()
    runs = prepare_sizes(src, dst, options, started_s=time.monotonic())
    is_shared = part is not None or options.steal or options.engine == "beam"
    if bucket_of(runs[0].target) or is_shared:
        return presize_into_storage(runs, part or Part(), on_progress=on_progress)
    if len(runs) > 1:
        return _presize_sizes(runs, on_progress)
    run = _begin(runs[0])
    if options.dry_run:
        return _result(run, (), frozenset(), resumed=False)
    if (kept := _already_complete(run)) is not None:
        return _result(run, kept, frozenset(shard.job for shard in kept), resumed=True)
    return _make(run, on_progress)


def _begin(prepared: Prepared) -> _Run:
    """Look at what is in the target; raises AlreadyExistsError."""
    target, options = Path(prepared.target), prepared.options
    previous = manifest.load_previous(target, leniently=options.overwrite)
    if previous is not None and previous.plan_id != prepared.plan.id:
        refuse_another_plan(previous, prepared.plan, options)
    return _Run(prepared, target, previous)


def _presize_sizes(prepared: Sequence[Prepared], on_progress: OnProgress) -> PresizeResult:
    """Make data sets of several sizes, each picture decoded once; the first one's result leads."""
    runs = [_begin(one) for one in prepared]
    if prepared[0].options.dry_run:
        results = [_result(run, (), frozenset(), resumed=False) for run in runs]
    elif all(_already_complete(run) is not None for run in runs):
        results = [_make(run, on_progress) for run in runs]
    else:
        results = _make_together(runs, on_progress)
    return summed(results)


def _make_together(runs: Sequence[_Run], on_progress: OnProgress) -> list[PresizeResult]:
    lead, *others = runs
    with ExitStack() as stack:
        locks = [stack.enter_context(_locked(run)) for run in runs]
        kept = {run.plan.id: _take_up(run) for run in runs}
        complete = {shard.job for run in runs for shard in kept[run.plan.id]}
        missing = [
            replace(jobs[0], twins=tuple(map(_twin, others, jobs[1:])))
            for jobs in zip(*(run.plan.jobs for run in runs), strict=True)
            if any(job.id not in complete for job in jobs)
        ]
        for run in runs:
            _check_space(run, missing)
        built = {
            shard.job: shard
            for shard in build_missing(lead.prepared, lead.work, missing, locks[0], on_progress)
        }
        return [_conclude(run, kept[run.plan.id], built) for run in runs]


def _twin(run: _Run, job: ShardJob) -> Twin:
    return Twin(job.id, str(run.work.folder), run.plan.options)


def _conclude(run: _Run, kept: Sequence[Finished], built: dict[str, Finished]) -> PresizeResult:
    """Publish a data set of which all shards are there."""
    there = {shard.job: shard for shard in kept} | built
    shards = sorted((there[job.id] for job in run.plan.jobs), key=lambda shard: shard.name)
    check_quarantine(run.prepared, shards, lambda text: _list_left_out(run, text))
    publish_data_set(run.target, run.work, run.plan, shards, run.previous)
    done = frozenset(shard.job for shard in kept) - set(built)
    return _result(run, shards, done, resumed=bool(kept))


@contextmanager
def _locked(run: _Run) -> Iterator[int]:
    run.work.create()
    busy = f"Another presize is working on {run.target}."
    with locked(run.work.lock, wait_s=_LOCK_WAIT_S, busy=busy) as lock:
        yield lock


def _take_up(run: _Run) -> tuple[Finished, ...]:
    """Keep what is still right of earlier runs, and forget the rest."""
    kept = reusable(run.target, run.work, run.plan, retry=run.options.retry_quarantined)
    run.work.forget_all_but(run.plan.jobs)
    run.work.rewrite(kept)
    if run.options.retry_quarantined:
        done = {shard.job for shard in kept}
        run.work.forget_left_out([job for job in run.plan.jobs if job.id not in done])
    return kept


def _make(run: _Run, on_progress: OnProgress) -> PresizeResult:
    with _locked(run) as lock:
        kept = _take_up(run)
        done = {shard.job for shard in kept}
        missing = [job for job in run.plan.jobs if job.id not in done]
        _check_space(run, missing)
        if traffic := plan_traffic(run.prepared, missing):
            on_progress(message(describe_traffic(run.prepared, traffic)))
        resumed = bool(kept) or any(run.work.part(job.id).exists() for job in missing)
        fresh = build_missing(run.prepared, run.work, missing, lock, on_progress)
        result = _conclude(run, kept, {shard.job: shard for shard in fresh})
    return replace(result, resumed=resumed)


def _list_left_out(run: _Run, text: str) -> str:
    listed = run.work.folder / QUARANTINE
    write_atomically(listed, text)
    return str(listed)


def _already_complete(run: _Run) -> tuple[Finished, ...] | None:
    """Return the shards when the target is this very data set, whole."""
    if run.previous is None or run.previous.plan_id != run.plan.id:
        return None
    kept = reusable(run.target, run.work, run.plan, retry=run.options.retry_quarantined)
    published = all((run.target / shard.name).is_file() for shard in kept)
    if len(kept) < len(run.plan.jobs) or not published:
        return None
    if run.work.folder.is_dir():
        clean_up(run.target, run.work, keep=(shard.name for shard in kept))
    return kept


def _check_space(run: _Run, missing: Sequence[ShardJob]) -> None:
    """Compare the free space with what is still to be written, before the first byte."""
    images = sum(len(job.entries) for job in missing)
    needed = run.plan.estimated_bytes * images // max(1, run.plan.images)
    needed -= sum(_size(run.work.part(job.id)) for job in missing)
    if run.options.format != "tfrecord":
        needed += _packing_bytes(run, missing)
    free = free_bytes(run.target)
    if needed > free:
        raise WriteError(
            f"{run.target} has {format_bytes(free)} free; the data set needs about "
            f"{format_bytes(needed)}.",
            hint="Free some space, or choose another target, a smaller --size or --encode jpeg.",
        )


def _packing_bytes(run: _Run, missing: Sequence[ShardJob]) -> int:
    """What lies there twice while shards are packed: one shard per worker."""
    at_once = min(run.prepared.workers, len(missing))
    return run.plan.estimated_bytes * at_once // len(run.plan.jobs)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _result(
    run: _Run, shards: Sequence[Finished], kept: frozenset[str], *, resumed: bool
) -> PresizeResult:
    name = str(run.target / manifest.MANIFEST)
    return result_of(run.prepared, shards, kept, resumed=resumed, manifest=name)
