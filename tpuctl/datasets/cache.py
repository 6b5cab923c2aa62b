"""Run an input pipeline once, as often as there are to be variants, and keep what it gave.

Random augmentation is kept too: with K variants, made with K seeds, a reader takes another one in
every epoch. A finished variant survives any interruption; an unfinished one is made anew, because
nobody promises that a pipeline gives its elements in the same order twice.
"""

import contextlib
import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.datasets import manifest, publish
from tpuctl.datasets._cache_writing import PipelineSource, load_source
from tpuctl.datasets.models import CacheOptions, CacheResult, DataSet, Prediction
from tpuctl.datasets.places import bucket_of, local_target
from tpuctl.datasets.plan import Plan, digest_of, predict_total
from tpuctl.datasets.reuse import is_whole
from tpuctl.datasets.shards.pool import clean_up, publish_data_set
from tpuctl.datasets.shards.work import Finished, Work
from tpuctl.errors import AlreadyExistsError, InvalidInputError, MissingExtraError, WriteError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage.local import disk_space, ensure_folder, free_bytes, locked, write_atomically
from tpuctl.storage.port import Storage, open_storage
from tpuctl.units import format_bytes

if TYPE_CHECKING:
    from tpuctl.datasets._elements import Structure

_LOCK_WAIT_S = 10.0

# Of a disk, left to others by a pipeline that may never end.
_RESERVE = 0.05


@dataclass(frozen=True)
class _Run:
    """One cache on its way."""

    source: PipelineSource
    target: Path
    options: CacheOptions
    previous: DataSet | None
    started_s: float
    on_progress: OnProgress

    @property
    def work(self) -> Work:
        return Work(self.target / manifest.WORK)

    @property
    def recipe(self) -> dict[str, Any]:
        return {
            "format": "tfrecord",
            "encode": manifest.ELEMENTS,
            "target": self.source.text,
            "code_sha256": self.source.code_sha256,
            "variants": self.options.variants,
            "elements": self.options.elements,
            "shard_bytes": self.options.shard_bytes,
            "seed": self.options.seed,
        }

    @property
    def plan_id(self) -> str:
        return digest_of(self.recipe)


def cache(
    target: str,
    dst: str | Path,
    options: CacheOptions | None = None,
    *,
    on_progress: OnProgress = silent,
) -> CacheResult:
    """Make `dst`, a folder or `gs://BUCKET/FOLDER`, a data set of what the pipeline `target` gives.

    Begun already, it is finished. `target` is module:function or path.py:function; the function
    returns a tf.data pipeline or any other iterable of nested arrays, and takes `seed` if its
    variants are to differ by more than global seeds. Raises TpuctlError subclasses, TargetError
    where the user's code fails.
    """
    _need_libraries()
    options = options or CacheOptions()
    if address := bucket_of(dst):
        return _cache_into_bucket(load_source(target), address, options, on_progress)
    folder = local_target(dst)
    return _cache_into_folder(load_source(target), folder, options, on_progress)


def _cache_into_folder(
    source: PipelineSource, folder: Path, options: CacheOptions, on_progress: OnProgress
) -> CacheResult:
    previous = manifest.load_previous(folder, leniently=options.overwrite)
    run = _Run(source, folder, options, previous, time.monotonic(), on_progress)
    is_same = _is_same(run, str(folder))
    if (
        previous is not None
        and is_same
        and all(is_whole(folder, run.work, shard) for shard in previous.shards)
    ):
        if run.work.folder.is_dir():
            clean_up(folder, run.work, keep=(shard.name for shard in previous.shards))
        return _result(run, previous.totals, len(previous.shards), kept=options.variants)
    if options.dry_run:
        return _result(run, {}, 0, prediction=_sample_only(run))
    return _make(run)


def _cache_into_bucket(
    source: PipelineSource, address: str, options: CacheOptions, on_progress: OnProgress
) -> CacheResult:
    """Make the whole of it on this machine, where it can be resumed, then put it in its place."""
    storage = open_storage(address)
    before = publish.find_published(storage, leniently=options.overwrite)
    previous = before.data_set if before else None
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    staging = cache_dir() / "caches" / digest
    run = _Run(source, staging, options, previous, time.monotonic(), on_progress)
    place = f"{address}/{manifest.MANIFEST}"
    if _is_same(run, address) and previous and publish.are_whole(storage, previous.shards):
        kept = _result(run, previous.totals, len(previous.shards), kept=options.variants)
        return replace(kept, manifest=place)
    ensure_folder(staging.parent)
    busy = f"Another tpuctl is working on {address}."
    with locked(staging.with_suffix(".lock"), wait_s=_LOCK_WAIT_S, busy=busy):
        anew = replace(options, overwrite=True)
        made = _cache_into_folder(source, staging, anew, on_progress)
        if not options.dry_run:
            _upload(manifest.load(staging), storage, before, on_progress)
            shutil.rmtree(staging)
    return replace(made, manifest=place)


def _upload(
    data_set: DataSet,
    storage: Storage,
    before: publish.Published | None,
    on_progress: OnProgress,
) -> None:
    for number, shard in enumerate(data_set.shards):
        on_progress(Progress("upload", number, len(data_set.shards), "shards", shard.name))
        storage.create(shard.name, data_set.folder / shard.name, crc32c=shard.crc32c)
    text = manifest.to_text(data_set.document).encode()
    names = frozenset(shard.name for shard in data_set.shards)
    publish.publish(storage, publish.Contents(data_set.plan_id, text, names), before)


def _is_same(run: _Run, place: str) -> bool:
    """Whether the data set that is there is this one; raises AlreadyExistsError for another."""
    if run.previous is None or run.previous.plan_id == run.plan_id:
        return run.previous is not None
    if run.options.overwrite:
        return False
    raise AlreadyExistsError(
        f"{place} holds another data set, or {run.source.text} has changed since.",
        hint="Choose another target, or replace this data set with --overwrite.",
    )


def _make(run: _Run) -> CacheResult:
    ensure_folder(run.target)
    run.work.create()
    busy = f"Another tpuctl is working on {run.target}."
    with locked(run.work.lock, wait_s=_LOCK_WAIT_S, busy=busy):
        kept = _kept(run)
        run.work.rewrite(kept)
        done = {_variant_of(shard.job) for shard in kept}
        _forget_all_but(run.work, {shard.job for shard in kept})
        if not kept:
            run.work.structure.unlink(missing_ok=True)
        made, prediction = _make_missing(run, done)
        shards = (*kept, *made)
        plan = Plan(run.plan_id, {**run.recipe, "structure": _structure(run.work)}, {}, (), (), 0)
        publish_data_set(run.target, run.work, plan, shards, run.previous)
    totals = {
        "records": sum(shard.records for shard in shards),
        "bytes_out": sum(shard.bytes for shard in shards),
    }
    return _result(run, totals, len(shards), kept=len(done), prediction=prediction)


def _make_missing(run: _Run, done: set[int]) -> tuple[list[Finished], Prediction | None]:
    from tpuctl.datasets._cache_writing import Feed, write_variant

    made: list[Finished] = []
    prediction: Prediction | None = None
    missing = [variant for variant in range(run.options.variants) if variant not in done]
    for variant in missing:
        feed = Feed(run.source, run.options, variant, partial(_agree, run))
        if prediction is None:
            prediction = _predict(feed.take_sample(), feed.count, len(missing))
            _check_space(run, prediction)
        tell = partial(_show, run, variant, feed.count)
        may_go_on = partial(_check_reserve, run) if feed.count is None else _never_mind
        try:
            shards = write_variant(feed, run.work, run.options.shard_bytes, tell, may_go_on)
        except WriteError:
            # An unfinished variant is of no use, and takes what others on this disk need. Where it
            # cannot be removed either, the first error is the one to tell.
            with contextlib.suppress(OSError):
                _forget_all_but(run.work, {shard.job for shard in run.work.finished()})
            raise
        for shard in shards:
            run.work.record(shard)
        made += shards
    return made, prediction


def _sample_only(run: _Run) -> Prediction:
    from tpuctl.datasets._cache_writing import Feed

    feed = Feed(run.source, run.options, 0, lambda structure: None)
    return _predict(feed.take_sample(), feed.count, run.options.variants)


def _predict(sample: Sequence[tuple[int, float]], count: int | None, variants: int) -> Prediction:
    """Extrapolate from (bytes, seconds) of the first elements to all variants still to be made."""
    if count is None:
        return Prediction(len(sample), None, None, None)
    elements = count * variants
    sizes = predict_total([float(size) for size, _ in sample], elements)
    seconds = predict_total([elapsed_s for _, elapsed_s in sample], elements)
    return Prediction(len(sample), elements, sizes, seconds)


def _check_space(run: _Run, prediction: Prediction) -> None:
    """Compare the free space with the upper end of the prediction, before the first byte."""
    free = free_bytes(run.target)
    if prediction.bytes is not None and prediction.bytes.high > free:
        run.work.remove()
        raise WriteError(
            f"{run.target} has {format_bytes(free)} free; {run.options.variants} variants need "
            f"{format_bytes(int(prediction.bytes.low))} to "
            f"{format_bytes(int(prediction.bytes.high))}, from a sample of {prediction.sample}.",
            hint="Free some space, keep fewer --variants or --elements, or cache an earlier stage.",
        )


def _check_reserve(run: _Run, at: int) -> None:
    """Leave the disk some space where nobody knows how much is still to come."""
    free, total = disk_space(run.target)
    if free - run.options.shard_bytes < _RESERVE * total:
        raise WriteError(
            f"{run.target} has {format_bytes(free)} of {format_bytes(total)} free after {at} "
            f"elements, and nobody knows how many {run.source.text} gives.",
            hint="Say how many to keep with --elements N, or free some space.",
        )


def _never_mind(at: int) -> None:
    """Go on: there is space for all that is to come."""


def _kept(run: _Run) -> tuple[Finished, ...]:
    """Return the journalled shards of complete variants whose bytes are still right."""
    journalled = {shard.job: shard for shard in run.work.finished()}
    kept: list[Finished] = []
    ordered = sorted(journalled.values(), key=lambda shard: shard.job)
    for _, group in groupby(ordered, key=lambda shard: _variant_of(shard.job)):
        shards = list(group)
        complete = len(shards) == int(shards[0].job.rpartition("-")[2])
        known = _plan_of(run.work) == run.plan_id
        if known and complete and all(is_whole(run.target, run.work, one) for one in shards):
            kept += shards
    return tuple(kept)


def _forget_all_but(work: Work, jobs: set[str]) -> None:
    for path in work.folder.iterdir():
        if path.suffix in (".part", ".shard") and path.stem not in jobs:
            path.unlink()


def _variant_of(job: str) -> int:
    return int(job[1:].partition("-")[0])


def _agree(run: _Run, structure: "Structure") -> None:
    """Write the structure down with the first variant; the others must have the same."""
    path = run.work.structure
    if not path.exists():
        write_atomically(path, json.dumps({"plan_id": run.plan_id, "structure": structure}))
    elif _structure(run.work) != structure:
        raise InvalidInputError("its structure is another than that of the first variant")


def _structure(work: Work) -> Any:
    return json.loads(work.structure.read_text())["structure"]


def _plan_of(work: Work) -> str | None:
    try:
        return str(json.loads(work.structure.read_text())["plan_id"])
    except (OSError, ValueError, KeyError):
        return None


def _show(run: _Run, variant: int, count: int | None, at: int) -> None:
    variants = run.options.variants
    note = f"variant {variant + 1} of {variants}" if variants > 1 else ""
    run.on_progress(Progress("cache", at, count, "elements", note))


def _result(
    run: _Run,
    totals: dict[str, int],
    shards: int,
    *,
    kept: int = 0,
    prediction: Prediction | None = None,
) -> CacheResult:
    seconds = time.monotonic() - run.started_s
    return CacheResult(
        plan_id=run.plan_id,
        target=run.source.text,
        variants=run.options.variants,
        kept_variants=kept,
        elements=totals.get("records", 0),
        shards=shards,
        bytes_out=totals.get("bytes_out", 0),
        seconds=seconds,
        predicted=prediction,
        manifest=str(run.target / manifest.MANIFEST),
        dry_run=run.options.dry_run,
        seeded=run.source.takes_seed,
    )


def _need_libraries() -> None:
    for module in ("google_crc32c", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError("Caching a pipeline", extra="images", module=module)
