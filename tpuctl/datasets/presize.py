"""Presize: turn a folder of images into a data set of small ones, once.

One engine for folders and buckets, one machine and several: plan, build the shards that are missing
in worker processes, publish. The plan is the same on every machine; each builds every n-th shard of
it, none waits for another, and the one that finds all shards complete writes the manifest.
"""

import random
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.clock import Clock, SteadyClock
from tpuctl.datasets.images.memory import memory_budget_bytes
from tpuctl.datasets.leases import POLL_S, Leases
from tpuctl.datasets.locations import bucket_of
from tpuctl.datasets.manifest import MANIFEST, FinishedShard
from tpuctl.datasets.models import Part, PresizeOptions, PresizeResult, allowed_bad
from tpuctl.datasets.plan import ShardJob, SiblingShard
from tpuctl.datasets.prepare import Prepared, describe_traffic, prepare_sizes, refuse_another_plan
from tpuctl.datasets.publish import Published, Target, find_published, open_target
from tpuctl.datasets.quarantine import QUARANTINE, left_out_of, quarantine_text
from tpuctl.datasets.shards.pool import Claim, Meter, WorkerSetup, build_shards, claim_all
from tpuctl.errors import InvalidInputError, WriteError
from tpuctl.lazy import need_modules
from tpuctl.progress import OnProgress, message, silent
from tpuctl.storage.local import free_bytes, write_atomically
from tpuctl.units import format_bytes

_SHOWN_FILES = 5

_Built = dict[str, FinishedShard]


@dataclass(frozen=True)
class _Size:
    """One size that a presize makes: its plan, its target, and which shards are complete there."""

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
    runs = prepare_sizes(src, dst, options or PresizeOptions(), started_s=time.monotonic())
    return presize_prepared(runs, part, on_progress=on_progress)


def presize_prepared(
    runs: Sequence[Prepared],
    part: Part | None = None,
    *,
    on_progress: OnProgress = silent,
    clock: Clock | None = None,
) -> PresizeResult:
    """Do this machine's part of a presize, in all sizes that one pass makes."""
    options = runs[0].options
    sizes = [_open(run, part) for run in runs]
    if options.dry_run:
        return _sum(sizes, [{}] * len(sizes))
    if not all(size.is_complete for size in sizes):
        with ExitStack() as stack:
            locks = [stack.enter_context(size.target.locked()) for size in sizes]
            sizes = [_resume(size) for size in sizes]
            return _sum(sizes, _make(sizes, locks[0], on_progress, clock or SteadyClock()))
    for size in sizes:
        # A run that was killed after publishing may have left something behind.
        with size.target.locked() if size.target.work.folder.is_dir() else nullcontext():
            size.target.clean_up({shard.name for shard in size.done.values()})
    return _sum(sizes, [size.done for size in sizes])


def _make(sizes: Sequence[_Size], lock: int, on_progress: OnProgress, clock: Clock) -> list[_Built]:
    """Build what is missing and publish what is then complete; returns the shards of each size."""
    run, missing = sizes[0].run, _missing(sizes)
    built: _Built = {}
    if missing and (traffic := describe_traffic(run, missing)):
        on_progress(message(traffic))
    if run.options.engine == "beam":
        _build_on_beam(sizes, missing)
    elif run.options.steal and missing:
        built = _build_all(sizes, missing, lock, on_progress, clock)
    else:
        built = _build(sizes, missing, lock, on_progress)
    return [_conclude(size, built) for size in sizes]


def _open(run: Prepared, part: Part | None) -> _Size:
    """Look at the target; raises AlreadyExistsError if another data set is there."""
    options = run.options
    shared = part is not None or options.steal or options.engine == "beam"
    part = part or Part()
    target = open_target(
        run.target,
        f"{run.target}\n{part.host}/{part.hosts}",
        shared=shared or bucket_of(run.target) is not None,
    )
    return _inspect(
        _Size(run, part, target, None, {}), retry=options.retry_quarantined, thorough=False
    )


def _inspect(size: _Size, *, retry: bool, thorough: bool = True) -> _Size:
    """Find what is published and complete; unless `thorough`, only whether this plan is."""
    run, target = size.run, size.target
    published = find_published(target.storage, leniently=run.options.overwrite)
    if published and published.data_set and not published.has(run.plan.id):
        refuse_another_plan(published.data_set, run.plan, run.options)
    is_ours = published is not None and published.has(run.plan.id)
    done = target.complete(run.plan, retry=retry) if thorough or is_ours else {}
    return replace(size, published=published, done=done)


def _resume(size: _Size) -> _Size:
    """Keep valid results of earlier runs, and delete the rest."""
    retry = size.run.options.retry_quarantined
    size = _inspect(size, retry=retry)
    jobs = {job.id for job in size.run.plan.jobs}
    size.target.resume(size.done.values(), jobs)
    if retry:
        size.target.work.forget_left_out(jobs - size.done.keys())
    parts = map(size.target.work.part, jobs)
    return replace(size, resumed=bool(size.done) or any(part.exists() for part in parts))


def _missing(sizes: Sequence[_Size]) -> list[ShardJob]:
    """The jobs of this machine that any size lacks, those of the other sizes as their siblings."""
    lead, *others = sizes
    done = {job for size in sizes for job in size.done}
    together = list(zip(*(size.run.plan.jobs for size in sizes), strict=True))
    return [
        replace(
            jobs[0],
            siblings=tuple(
                SiblingShard(job.id, str(size.target.work.folder), size.run.plan.options)
                for size, job in zip(others, jobs[1:], strict=True)
            ),
        )
        for jobs in _in_turn(together, lead.part, steal=lead.run.options.steal)
        if any(job.id not in done for job in jobs)
    ]


def _in_turn(
    jobs: Sequence[tuple[ShardJob, ...]], part: Part, *, steal: bool
) -> list[tuple[ShardJob, ...]]:
    """This machine's jobs; to steal, then those of the others, on each machine in another order."""
    ours = list(jobs[part.host :: part.hosts])
    if not steal:
        return ours
    others = [each for number, each in enumerate(jobs) if number % part.hosts != part.host]
    # Machines without a share of their own would otherwise all begin with the same shard.
    random.shuffle(others or ours)
    return ours + others


def _build_all(
    sizes: Sequence[_Size],
    missing: Sequence[ShardJob],
    lock: int,
    on_progress: OnProgress,
    clock: Clock,
) -> _Built:
    """Build what no other machine is building until nothing is missing."""
    # Sizes are made together, so that the lease on a shard of the first size covers the others.
    lead = sizes[0].target
    leases = Leases(lead.storage, clock, _owner_of(lead))
    built: _Built = {}
    is_waiting = False
    with leases.kept():
        while True:
            built |= _build(sizes, missing, lock, on_progress, leases.claim)
            now = [_inspect(size, retry=False) for size in sizes]
            if not (missing := _missing(now)):
                return built
            if not is_waiting:
                left = f"Other machines are building {len(missing)} of the shards"
                on_progress(message(f"{left}; what they do not finish is built here."))
            is_waiting = True
            clock.sleep(POLL_S)
            leases.refresh()


def _owner_of(target: Target) -> str:
    """Return the name under which runs of this share claim shards, also after one was killed.

    Shards are claimed while the lock beside it is held, so that no two runs are one owner at once.
    """
    path = target.work.folder / "owner"
    with suppress(OSError):
        return path.read_text()
    write_atomically(path, uuid.uuid4().hex)
    return path.read_text()


def _build_on_beam(sizes: Sequence[_Size], missing: Sequence[ShardJob]) -> None:
    if not missing:
        return
    need_modules("--engine beam", "apache_beam", extra="beam")
    from tpuctl.datasets._beam import run_pipeline

    run_pipeline([size.run for size in sizes], missing)


def _build(
    sizes: Sequence[_Size],
    missing: Sequence[ShardJob],
    lock: int,
    on_progress: OnProgress,
    claim: Claim = claim_all,
) -> _Built:
    """Build missing shards in worker processes, and record each as soon as it is finished."""
    if not missing:
        return {}
    _check_space(sizes, missing)
    lead = sizes[0]
    setup = WorkerSetup(
        source=lead.run.source,
        work=str(lead.target.work.folder),
        options=lead.run.plan.options,
        budget_bytes=memory_budget_bytes(),
        image_bytes=lead.run.options.max_image_bytes,
        workers=min(lead.run.workers, len(missing)),
    )
    meter = Meter(lead.run.plan.images, missing, on_progress)
    built: _Built = {}
    with closing(build_shards(missing, setup, inherit=(lock,), claim=claim)) as steps:
        for step in steps:
            meter.show(step)
            for size, finished in zip(sizes, step.finished, strict=False):
                size.target.record(finished)
                built[finished.job] = finished
    return built


def _check_space(sizes: Sequence[_Size], missing: Sequence[ShardJob]) -> None:
    """Compare the free space with what will be written, before the first byte."""
    lead, target = sizes[0].run, sizes[0].target
    # A shared target takes each shard as soon as it is finished: one per worker, one on its way.
    at_once = min(lead.workers + 1, len(missing)) if target.shared else len(missing)
    if lead.options.format != "tfrecord":
        # Shards are on disk twice while they are packed.
        at_once += min(lead.workers, len(missing))
    needed = sum(size.run.plan.estimated_bytes for size in sizes) * at_once // len(lead.plan.jobs)
    parts = (size.target.work.part(job.id) for size in sizes for job in size.run.plan.jobs)
    needed -= sum(part.stat().st_size for part in parts if part.exists())
    free = free_bytes(target.work.folder)
    if needed <= free:
        return
    if target.shared:
        raise WriteError(
            f"{target.work.folder} has {format_bytes(free)} free; shards on their way to "
            f"{lead.target} need about {format_bytes(needed)}.",
            hint="Free some space, set TPUCTL_CACHE_DIR to a larger disk, or use fewer --workers.",
        )
    raise WriteError(
        f"{lead.target} has {format_bytes(free)} free; the data set needs about "
        f"{format_bytes(needed)}.",
        hint="Free some space, or choose another target, a smaller --size or --encode jpeg.",
    )


def _conclude(size: _Size, built: _Built) -> _Built:
    """Publish a data set if all of its shards are complete by now; returns those that are."""
    ours = {job.id: built[job.id] for job in size.run.plan.jobs if job.id in built}
    there = size.done | ours
    if len(there) < len(size.run.plan.jobs):
        there = size.target.complete(size.run.plan) | there
    if len(there) == len(size.run.plan.jobs):
        if size.is_complete and not ours:
            size.target.clean_up({shard.name for shard in there.values()})
        else:
            publish(size.run, size.target, list(there.values()), size.published)
    else:
        size.target.work.remove()
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
        f"{len(left_out)} of {images} images in {run.source} cannot be used; "
        f"the limit is {allowed}: {shown}{more}.",
        hint=hint,
    )


def _sum(sizes: Sequence[_Size], there: Sequence[_Built]) -> PresizeResult:
    """The result of the first size, with the bytes and shards of all."""
    first, *others = results = [_result(*each) for each in zip(sizes, there, strict=True)]
    if not others:
        return first
    return replace(
        first,
        bytes_out=sum(result.bytes_out for result in results),
        shards=sum(result.shards for result in results),
        shards_missing=sum(result.shards_missing for result in results),
        sizes=tuple(results),
    )


def _result(size: _Size, there: _Built) -> PresizeResult:
    run, part = size.run, size.part
    kept = [shard for job, shard in there.items() if size.done.get(job) == shard]
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
        resumed=size.resumed or bool(kept),
        manifest=f"{run.target}/{MANIFEST}",
        classes=run.plan.classes,
        ignored=run.inputs.ignored,
        dry_run=run.options.dry_run,
        host=part.host,
        hosts=part.hosts,
        shards_missing=0 if run.options.dry_run else len(run.plan.jobs) - len(there),
        notes=run.notes,
    )
