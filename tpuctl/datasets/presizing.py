"""Presize: a folder of photographs becomes a data set of small ones, once and for all."""

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.buckets import presize_into_bucket
from tpuctl.datasets.containers import need_array_record
from tpuctl.datasets.inputs import Inputs, scan
from tpuctl.datasets.memory import memory_budget_bytes
from tpuctl.datasets.models import DataSet, PresizeOptions, PresizeResult, allowed_bad
from tpuctl.datasets.places import bucket_of, check_places
from tpuctl.datasets.plan import Plan, ShardJob, plan_presize
from tpuctl.datasets.pool import Setup, build_shards
from tpuctl.datasets.publish import clean_up, publish_data_set
from tpuctl.datasets.quarantine import Quarantined, readable
from tpuctl.datasets.reuse import refuse_another_plan, reusable
from tpuctl.datasets.state import QUARANTINE, Finished, Work, quarantine_text
from tpuctl.errors import InvalidInputError, MissingExtraError, WriteError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.storage.local import free_bytes, locked, write_atomically
from tpuctl.units import format_bytes

_LOCK_WAIT_S = 10.0
_SHOWN_FILES = 5
_MODULES = {
    "numpy": ("numpy",),
    "simplejpeg": ("simplejpeg",),
    "cv2": (
        "opencv-python-headless",
        "opencv-python",
        "opencv-contrib-python-headless",
        "opencv-contrib-python",
    ),
    "PIL": ("pillow", "pillow-simd"),
    "google_crc32c": ("google-crc32c",),
}
_DECIDES_PIXELS = {"simplejpeg": "simplejpeg", "cv2": "opencv", "PIL": "pillow"}

# Raise it whenever the same input may give other bytes than before: it is part of every plan.
KERNEL_VERSION = 2


@dataclass(frozen=True)
class _Run:
    """One presize on its way."""

    source: Path
    target: Path
    options: PresizeOptions
    inputs: Inputs
    plan: Plan
    previous: DataSet | None
    started_s: float

    @property
    def work(self) -> Work:
        return Work(self.target / manifest.WORK)


def presize(
    src: str | Path,
    dst: str | Path,
    options: PresizeOptions | None = None,
    *,
    on_progress: OnProgress = silent,
) -> PresizeResult:
    """Make `dst`, a folder or `gs://BUCKET/FOLDER`, the data set of the photographs in `src`.

    Begun already, it is finished.
    Nothing appears under a final name before it is complete, and `manifest.json` comes last.
    Raises TpuctlError subclasses: NotFoundError, InvalidInputError, AlreadyExistsError, WriteError,
    TryAgainError.
    """
    options = options or PresizeOptions()
    if address := bucket_of(dst):
        return presize_into_bucket(
            address,
            options,
            lambda folder, options: presize(src, folder, options, on_progress=on_progress),
            on_progress=on_progress,
        )
    started_s = time.monotonic()
    source, target = check_places(src, dst)
    versions = _check_modules(options)
    inputs = scan(source, target)
    if not inputs.pictures:
        raise _no_pictures(source, inputs)
    plan = plan_presize(inputs.pictures, options, versions)
    previous = manifest.load_previous(target, leniently=options.overwrite)
    run = _Run(source, target, options, inputs, plan, previous, started_s)
    if previous is not None and previous.plan_id != plan.id:
        refuse_another_plan(previous, plan, options)
    if options.dry_run:
        return _result(run, (), frozenset(), resumed=False)
    if (kept := _already_complete(run)) is not None:
        return _result(run, kept, frozenset(shard.job for shard in kept), resumed=True)
    return _make(run, on_progress)


def _make(run: _Run, on_progress: OnProgress) -> PresizeResult:
    run.work.create()
    busy = f"Another presize is working on {run.target}."
    with locked(run.work.lock, wait_s=_LOCK_WAIT_S, busy=busy) as lock:
        kept = reusable(run.target, run.work, run.plan, retry=run.options.retry_quarantined)
        run.work.forget_all_but(run.plan.jobs)
        run.work.rewrite(kept)
        done = {shard.job for shard in kept}
        missing = [job for job in run.plan.jobs if job.id not in done]
        if run.options.retry_quarantined:
            run.work.forget_left_out(missing)
        _check_space(run, missing)
        resumed = bool(kept) or any(run.work.part(job.id).exists() for job in missing)
        built = list(_build(run, missing, lock, on_progress))
        shards = sorted((*kept, *built), key=lambda shard: shard.name)
        _check_quarantine(run, shards)
        publish_data_set(run.target, run.work, run.plan, shards, run.previous)
    return _result(run, shards, frozenset(done), resumed=resumed)


def _build(
    run: _Run, missing: Sequence[ShardJob], lock: int, on_progress: OnProgress
) -> Iterator[Finished]:
    """Build the missing shards and journal each as soon as it is complete."""
    setup = Setup(
        source=str(run.source),
        work=str(run.work.folder),
        options=run.plan.options,
        budget_bytes=memory_budget_bytes(),
        workers=min(run.options.workers or available_cpus(), max(1, len(missing))),
    )
    meter = _Meter(run.plan.images, missing, on_progress)
    with closing(build_shards(missing, setup, inherit=(lock,))) as steps:
        for step in steps:
            meter.show(step.job, step.position, step.finished)
            if step.finished is not None:
                run.work.record(step.finished)
                run.work.forget_part(step.finished.job)
                yield step.finished


class _Meter:
    """Counts pictures over all shards for whoever is watching."""

    def __init__(self, images: int, missing: Sequence[ShardJob], on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._images = images
        self._base = images - sum(len(job.entries) for job in missing)
        self._positions: dict[str, int] = {}
        self._left_out = 0
        self._first: tuple[float, int] | None = None

    def show(self, job: ShardJob, position: int, finished: Finished | None) -> None:
        self._positions[job.id] = position
        self._left_out += len(finished.left_out) if finished else 0
        worked = sum(self._positions.values())
        now_s = time.monotonic()
        first_s, first = self._first = self._first or (now_s, worked)
        rate = (worked - first) / (now_s - first_s) if now_s > first_s else 0.0
        note = f"{rate:,.0f} images/s" if rate else ""
        if self._left_out:
            note += f", {self._left_out} left out"
        done = self._base + worked
        self._on_progress(Progress("presize", done, self._images, "images", note))


def _check_modules(options: PresizeOptions) -> dict[str, str]:
    """Name the versions that decide about pixels; raises MissingExtraError."""
    for module in _MODULES:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("Presizing pictures", extra="images", module=module)
    versions = {name: _version(module) for module, name in _DECIDES_PIXELS.items()}
    if options.format == "arrayrecord":
        need_array_record()
        versions["array_record"] = version("array_record")
    return {"kernel": str(KERNEL_VERSION), **versions}


def _version(module: str) -> str:
    for distribution in _MODULES[module]:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


def _no_pictures(source: Path, inputs: Inputs) -> InvalidInputError:
    there = ", ".join(f"{count} {kind}" for kind, count in inputs.ignored.items())
    return InvalidInputError(
        f"There are no pictures in {source}" + (f", only: {there}." if there else "."),
        hint="Point presize to the folder that holds the pictures, at any depth.",
    )


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
    at_once = min(run.options.workers or available_cpus(), len(missing))
    return run.plan.estimated_bytes * at_once // len(run.plan.jobs)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_quarantine(run: _Run, shards: Sequence[Finished]) -> None:
    """Stop before publishing when too much is bad; what was done is kept."""
    left_out = _left_out(shards)
    images = run.plan.images
    allowed = allowed_bad(run.options.max_bad, images)
    if len(left_out) < images and len(left_out) <= allowed:
        return
    listed = run.work.folder / QUARANTINE
    write_atomically(listed, quarantine_text(shards))
    shown = "; ".join(f"{bad.path} ({bad.reason})" for bad in left_out[:_SHOWN_FILES])
    more = f"; and {len(left_out) - _SHOWN_FILES} more" if len(left_out) > _SHOWN_FILES else ""
    if len(left_out) == images:
        hint = f"The reasons are in {listed}."
    else:
        hint = (
            f"Repair or remove them (all are listed in {listed}), or accept them with "
            f"--max-bad {len(left_out)}; the finished work is kept."
        )
    raise InvalidInputError(
        f"{len(left_out)} of {images} pictures in {run.source} cannot be used, "
        f"{allowed} would be allowed: {shown}{more}.",
        hint=hint,
    )


def _left_out(shards: Sequence[Finished]) -> tuple[Quarantined, ...]:
    left_out = (bad for shard in shards for bad in shard.left_out)
    return tuple(
        replace(bad, path=readable(bad.path), detail=readable(bad.detail))
        for bad in sorted(left_out, key=lambda bad: bad.path)
    )


def _result(
    run: _Run, shards: Sequence[Finished], kept: frozenset[str], *, resumed: bool
) -> PresizeResult:
    seconds = time.monotonic() - run.started_s
    written = sum(shard.records for shard in shards if shard.job not in kept)
    bytes_in = sum(max(0, picture.bytes) for picture in run.inputs.pictures)
    return PresizeResult(
        plan_id=run.plan.id,
        images=run.plan.images,
        written=written,
        skipped=sum(shard.records for shard in shards if shard.job in kept),
        salvaged=sum(shard.salvaged for shard in shards),
        quarantined=_left_out(shards),
        shards=len(run.plan.jobs),
        bytes_in=bytes_in,
        bytes_out=sum(shard.bytes for shard in shards) if shards else run.plan.estimated_bytes,
        images_per_s=written / seconds if seconds else 0.0,
        seconds=seconds,
        resumed=resumed,
        manifest=str(run.target / manifest.MANIFEST),
        classes=run.plan.classes,
        ignored=run.inputs.ignored,
        dry_run=run.options.dry_run,
        notes=(*run.inputs.notes, *run.plan.notes),
    )


def available_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))
