"""Presize: a folder of images becomes a data set of small ones, once and for all.

One engine for folders and buckets, one machine and several: plan, build the shards that are missing
in worker processes, publish. The plan is the same on every machine; each builds every n-th shard of
it, none waits for another, and the one that finds all shards complete writes the manifest.
"""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.datasets.images.memory import memory_budget_bytes
from tpuctl.datasets.manifest import MANIFEST, FinishedShard
from tpuctl.datasets.models import Part, PresizeOptions, PresizeResult, allowed_bad
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.prepare import Prepared, describe_traffic, prepare, refuse_another_plan
from tpuctl.datasets.publish import Published, Target, find_published, open_target
from tpuctl.datasets.quarantine import QUARANTINE, left_out_of, quarantine_text
from tpuctl.datasets.shards.pool import Meter, WorkerSetup, build_shards
from tpuctl.errors import InvalidInputError, WriteError
from tpuctl.lazy import need_modules
from tpuctl.progress import OnProgress, message, silent
from tpuctl.storage.local import free_bytes, write_atomically
from tpuctl.units import format_bytes

_SHOWN_FILES = 5

_Built = dict[str, FinishedShard]


@dataclass(frozen=True)
class _State:
    """A presize, its target, and which of its shards are complete there."""

    run: Prepared
    part: Part
    target: Target
    published: Published | None
    done: _Built
    resumed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the data set is published, and all of its shards are undamaged."""
        is_ours = self.published is not None and self.published.has(self.run.plan.id)
        return is_ours and len(self.done) == len(self.run.plan.jobs)


def presize(
    src: str | Path,
    dst: str | Path,
    options: PresizeOptions | None = None,
    *,
    part: Part | None = None,
    on_progress: OnProgress = silent,
) -> PresizeResult:
    """Make `dst` the data set of the images in `src`; both a folder or `gs://BUCKET/FOLDER`.

    An interrupted presize is resumed. Nothing appears under a final name before it is complete, and
    `manifest.json` comes last. With `part`, this machine builds its share of the shards, and the
    last of all machines writes the manifest. Raises TpuctlError subclasses: NotFoundError,
    InvalidInputError, AlreadyExistsError, WriteError, TryAgainError.
    """
    run = prepare(src, dst, options or PresizeOptions(), started_s=time.monotonic())
    return presize_prepared(run, part, on_progress=on_progress)


def presize_prepared(
    run: Prepared, part: Part | None = None, *, on_progress: OnProgress = silent
) -> PresizeResult:
    """Do this machine's part of a presize."""
    state = _open(run, part)
    target = state.target
    if run.options.dry_run:
        return _result(state, {})
    if not state.is_complete:
        with target.locked() as lock:
            state = _take_up(state)
            return _result(state, _make(state, lock, on_progress))
    # A run that was killed after publishing may have left something behind.
    with target.locked() if target.work.folder.is_dir() else nullcontext():
        target.clean_up({shard.name for shard in state.done.values()})
    return _result(state, state.done)


def _open(run: Prepared, part: Part | None) -> _State:
    """Look at the target; raises AlreadyExistsError if another data set is there."""
    options = run.options
    shared = part is not None or options.engine == "beam" or bucket_of(run.target) is not None
    part = part or Part()
    target = open_target(run.target, f"{run.target}\n{part.host}/{part.hosts}", shared=shared)
    return _look(_State(run, part, target, None, {}), thorough=False)


def _look(state: _State, *, thorough: bool) -> _State:
    """See what is published and complete now; not `thorough`, only if this plan is published."""
    run, target = state.run, state.target
    published = find_published(target.storage, leniently=run.options.overwrite)
    if published and published.data_set and not published.has(run.plan.id):
        refuse_another_plan(published.data_set, run.plan, run.options)
    is_ours = published is not None and published.has(run.plan.id)
    retry = run.options.retry_quarantined
    done = target.complete(run.plan, retry=retry) if thorough or is_ours else {}
    return replace(state, published=published, done=done)


def _take_up(state: _State) -> _State:
    """Keep what is still right of earlier runs, and delete the rest."""
    state = _look(state, thorough=True)
    work, jobs = state.target.work, {job.id for job in state.run.plan.jobs}
    state.target.take_up(state.done.values(), jobs)
    if state.run.options.retry_quarantined:
        work.forget_left_out(jobs - state.done.keys())
    return replace(state, resumed=bool(state.done) or any(work.part(job).exists() for job in jobs))


def _make(state: _State, lock: int, on_progress: OnProgress) -> _Built:
    """Build what is missing and publish what is then complete; returns the complete shards."""
    run, part = state.run, state.part
    missing = [job for job in run.plan.jobs[part.host :: part.hosts] if job.id not in state.done]
    if not missing:
        return _conclude(state, {})
    if traffic := describe_traffic(run, missing):
        on_progress(message(traffic))
    if run.options.engine == "beam":
        need_modules("--engine beam", "apache_beam", extra="beam")
        from tpuctl.datasets._beam import run_pipeline

        run_pipeline(run, missing)
        return _conclude(state, {})
    return _conclude(state, _build(state, missing, lock, on_progress))


def _build(
    state: _State, missing: Sequence[ShardJob], lock: int, on_progress: OnProgress
) -> _Built:
    """Build missing shards in worker processes, and record each as soon as it is finished."""
    run, target = state.run, state.target
    _check_space(run, target, missing)
    setup = WorkerSetup(
        source=run.source,
        work=str(target.work.folder),
        options=run.plan.options,
        budget_bytes=memory_budget_bytes(),
        image_bytes=run.options.max_image_bytes,
        workers=min(run.workers, len(missing)),
    )
    meter = Meter(run.plan.images, missing, on_progress)
    built: _Built = {}
    with closing(build_shards(missing, setup, inherit=(lock,))) as steps:
        for step in steps:
            meter.show(step)
            if step.finished:
                target.record(step.finished)
                built[step.job.id] = step.finished
    return built


def _check_space(run: Prepared, target: Target, missing: Sequence[ShardJob]) -> None:
    """Compare the free space with what will lie there, before the first byte is written."""
    # A shared target takes each shard as soon as it is finished: one per worker, one on its way.
    at_once = min(run.workers + 1, len(missing)) if target.shared else len(missing)
    if run.options.format != "tfrecord":
        at_once += min(run.workers, len(missing))  # Shards lie there twice while they are packed.
    needed = run.plan.estimated_bytes * at_once // len(run.plan.jobs)
    parts = (target.work.part(job.id) for job in run.plan.jobs)
    needed -= sum(part.stat().st_size for part in parts if part.exists())
    free = free_bytes(target.work.folder)
    if needed <= free:
        return
    if target.shared:
        raise WriteError(
            f"{target.work.folder} has {format_bytes(free)} free; shards on their way to "
            f"{run.target} need about {format_bytes(needed)}.",
            hint="Free some space, set TPUCTL_CACHE_DIR to a larger disk, or use fewer --workers.",
        )
    raise WriteError(
        f"{run.target} has {format_bytes(free)} free; the data set needs about "
        f"{format_bytes(needed)}.",
        hint="Free some space, or choose another target, a smaller --size or --encode jpeg.",
    )


def _conclude(state: _State, built: _Built) -> _Built:
    """Publish a data set if all of its shards are complete by now; returns those that are."""
    run, target = state.run, state.target
    there = state.done | built
    if len(there) < len(run.plan.jobs):
        there = target.complete(run.plan) | there
    if len(there) < len(run.plan.jobs):
        target.work.remove()
    elif state.is_complete:
        target.clean_up({shard.name for shard in there.values()})
    else:
        publish(run, target, list(there.values()), state.published)
    return there


def publish(
    run: Prepared,
    target: Target,
    shards: Sequence[FinishedShard],
    before: Published | None,
) -> None:
    """Publish the finished shards of a plan.

    Raises InvalidInputError if too many images were left out; what was done is kept.
    """
    left_out = left_out_of(shards)
    images = run.plan.images
    allowed = allowed_bad(run.options.max_bad, images)
    if len(left_out) < images and len(left_out) <= allowed:
        target.publish(run.plan, shards, before)
        return
    listed = target.work.folder / QUARANTINE
    write_atomically(listed, quarantine_text(shards))
    shown = "; ".join(f"{bad.path} ({bad.reason})" for bad in left_out[:_SHOWN_FILES])
    more = f"; and {len(left_out) - _SHOWN_FILES} more" if len(left_out) > _SHOWN_FILES else ""
    hint = f"The reasons are in {listed}."
    if len(left_out) < images:
        hint = (
            f"Repair or remove them (all are listed in {listed}), or accept them with "
            f"--max-bad {len(left_out)}; the finished work is kept."
        )
    raise InvalidInputError(
        f"{len(left_out)} of {images} images in {run.source} cannot be used, "
        f"{allowed} would be allowed: {shown}{more}.",
        hint=hint,
    )


def _result(state: _State, there: _Built) -> PresizeResult:
    run, part = state.run, state.part
    kept = [shard for job, shard in there.items() if state.done.get(job) == shard]
    seconds = time.monotonic() - run.started_s
    skipped = sum(shard.records for shard in kept)
    written = sum(shard.records for shard in there.values()) - skipped
    bytes_out = sum(shard.bytes for shard in there.values())
    return PresizeResult(
        plan_id=run.plan.id,
        images=run.plan.images,
        written=written,
        skipped=skipped,
        salvaged=sum(shard.salvaged for shard in there.values()),
        quarantined=left_out_of(there.values()),
        shards=len(run.plan.jobs),
        bytes_in=sum(max(0, picture.bytes) for picture in run.inputs.pictures),
        bytes_out=bytes_out if there else run.plan.estimated_bytes,
        images_per_s=written / seconds if seconds else 0.0,
        seconds=seconds,
        resumed=state.resumed or bool(kept),
        manifest=f"{run.target}/{MANIFEST}",
        classes=run.plan.classes,
        ignored=run.inputs.ignored,
        dry_run=run.options.dry_run,
        host=part.host,
        hosts=part.hosts,
        shards_missing=0 if run.options.dry_run else len(run.plan.jobs) - len(there),
        notes=run.notes,
    )
