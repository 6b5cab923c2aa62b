"""Run an input pipeline once for each variant, and store its elements.

Random augmentation is kept too: with K variants, made with K seeds, a reader takes another one in
every epoch. A finished variant survives any interruption; an unfinished one is made again, because
pipelines do not promise to yield their elements in the same order twice.
"""

import contextlib
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.codec import read_json
from tpuctl.datasets.locations import bucket_of, local_target
from tpuctl.datasets.manifest import ELEMENTS, MANIFEST, DataSet, FinishedShard, Shard
from tpuctl.datasets.models import CacheOptions, CacheResult, Interval, Prediction
from tpuctl.datasets.plan import Plan, digest_of
from tpuctl.datasets.publish import Published, Target, find_published, open_target
from tpuctl.errors import AlreadyExistsError, InvalidInputError, WriteError
from tpuctl.lazy import need_modules
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.storage.local import disk_space, free_bytes, write_atomically
from tpuctl.units import format_bytes

if TYPE_CHECKING:
    from tpuctl.datasets._cache_writing import PipelineSource
    from tpuctl.datasets._elements import Structure

# Of a disk, left to others by a pipeline that may never end.
_RESERVE = 0.05

# Two-sided 95 % of Student's t for 1 to 10 degrees of freedom, then for 20, 30, ... 60.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_T95_BY_TENS = (2.09, 2.05, 2.02, 2.01, 2.00)


@dataclass(frozen=True)
class _Run:
    """One run of `cache`."""

    source: "PipelineSource"
    target: Target
    options: CacheOptions
    previous: Published | None
    started_s: float
    on_progress: OnProgress

    @property
    def address(self) -> str:
        return self.target.storage.address

    @property
    def disk(self) -> Path | str:
        """The path to name in a message about free space: the target, or the work folder."""
        return self.target.work.folder if bucket_of(self.address) else self.address

    @property
    def recipe(self) -> dict[str, Any]:
        return {
            "format": "tfrecord",
            "encode": ELEMENTS,
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
    """Store the elements of a pipeline as a data set in `dst`, a folder or `gs://BUCKET/FOLDER`.

    An interrupted cache is resumed. `target` is module:function or path.py:function; the function
    returns a tf.data pipeline or any other iterable of nested arrays, and takes `seed` if its
    variants are to differ by more than global seeds. Everything is made on this machine; shards go
    to a bucket when all of them are finished. Raises TpuctlError subclasses, TargetError where the
    user's code fails.
    """
    need_modules("Caching a pipeline", "google_crc32c", "numpy", extra="images")
    from tpuctl.datasets._cache_writing import Feed, load_source

    options = options or CacheOptions()
    address = bucket_of(dst) or str(local_target(dst))
    source = load_source(target)
    place = open_target(address, address, shared=False)
    previous = find_published(place.storage, leniently=options.overwrite)
    run = _Run(source, place, options, previous, time.monotonic(), on_progress)
    if (there := _already_complete(run)) is not None:
        if run.target.work.folder.is_dir():
            with place.locked():
                place.clean_up({shard.name for shard in there.shards})
        return _result(run, there.shards, kept=options.variants)
    if options.dry_run:
        feed = Feed(source, options, 0, lambda structure: None)
        predicted = _predict(feed.take_sample(), feed.count, options.variants)
        return _result(run, (), prediction=predicted)
    with place.locked():
        return _make(run)


def _already_complete(run: _Run) -> DataSet | None:
    """Return the existing data set if it is this one and undamaged.

    Raises AlreadyExistsError for another one.
    """
    there = run.previous.data_set if run.previous else None
    if there is None:
        return None
    if there.plan_id != run.plan_id:
        if run.options.overwrite:
            return None
        raise AlreadyExistsError(
            f"{run.address} holds another data set, or {run.source.text} has changed since.",
            hint="Choose another target, or replace this data set with --overwrite.",
        )
    return there if all(map(run.target.checker(), there.shards)) else None


def _make(run: _Run) -> CacheResult:
    kept = _kept(run)
    done = {_variant_of(shard.job) for shard in kept}
    run.target.resume(kept, {shard.job for shard in kept})
    if not kept:
        run.target.work.structure.unlink(missing_ok=True)
    made, prediction = _make_missing(run, done)
    shards = (*kept, *made)
    plan = Plan(run.plan_id, {**run.recipe, "structure": _structure(run)}, {}, (), (), 0)
    run.target.publish(plan, shards, run.previous, run.on_progress)
    return _result(run, shards, kept=len(done), prediction=prediction)


def _make_missing(run: _Run, done: set[int]) -> tuple[list[FinishedShard], Prediction | None]:
    from tpuctl.datasets._cache_writing import Feed, write_variant

    made: list[FinishedShard] = []
    prediction: Prediction | None = None
    missing = [variant for variant in range(run.options.variants) if variant not in done]
    for variant in missing:
        feed = Feed(run.source, run.options, variant, partial(_agree, run))
        if prediction is None:
            prediction = _predict(feed.take_sample(), feed.count, len(missing))
            _check_space(run, prediction)
        tell = partial(_show, run, variant, feed.count)
        check = partial(_check_reserve, run) if feed.count is None else None
        try:
            shards = write_variant(feed, run.target.work, run.options.shard_bytes, tell, check)
        except WriteError:
            # An unfinished variant is of no use, and takes what others on this disk need. If it
            # cannot be removed either, the first error is the one to report.
            with contextlib.suppress(WriteError):
                run.target.work.forget_all_but({shard.job for shard in run.target.work.finished()})
            raise
        for shard in shards:
            run.target.record(shard)
        made += shards
    return made, prediction


def _predict(sample: Sequence[tuple[int, float]], count: int | None, variants: int) -> Prediction:
    """Extrapolate from (bytes, seconds) of the first elements to all variants still to be made."""
    if count is None:
        return Prediction(len(sample), None, None, None)
    elements = count * variants
    sizes = predict_total([float(size) for size, _ in sample], elements)
    seconds = predict_total([elapsed_s for _, elapsed_s in sample], elements)
    return Prediction(len(sample), elements, sizes, seconds)


def predict_total(sample: Sequence[float], count: int) -> Interval:
    """Predict the sum over `count` items of which `sample` is a part; it counts as it is.

    Mean ± t · s/√n of Student's distribution for what is not sampled yet.
    """
    known, left = sum(sample), max(0, count - len(sample))
    mean = known / len(sample)
    if len(sample) < 2:
        return Interval(known, known + left * mean, known + left * 2 * mean)
    spread = statistics.stdev(sample) / math.sqrt(len(sample)) * _t95(len(sample) - 1)
    low, high = max(0.0, mean - spread), mean + spread
    return Interval(known + left * low, known + left * mean, known + left * high)


def _t95(freedom: int) -> float:
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    tens = freedom // 10 - 2
    return _T95[-1] if tens < 0 else _T95_BY_TENS[tens] if tens < len(_T95_BY_TENS) else 1.96


def _check_space(run: _Run, prediction: Prediction) -> None:
    """Compare the free space with the upper end of the prediction, before anything is written."""
    free = free_bytes(run.target.work.folder)
    if prediction.bytes is not None and prediction.bytes.high > free:
        run.target.work.remove()
        raise WriteError(
            f"{run.disk} has {format_bytes(free)} free; {run.options.variants} variants need "
            f"{format_bytes(int(prediction.bytes.low))} to "
            f"{format_bytes(int(prediction.bytes.high))}, from a sample of {prediction.sample}.",
            hint="Free some space, keep fewer --variants or --elements, or cache an earlier stage.",
        )


def _check_reserve(run: _Run, at: int) -> None:
    """Keep some disk space free if the total size is unknown."""
    free, total = disk_space(run.target.work.folder)
    if free - run.options.shard_bytes < _RESERVE * total:
        raise WriteError(
            f"{run.disk} has {format_bytes(free)} of {format_bytes(total)} free after {at} "
            f"elements, and it is unknown how many {run.source.text} yields.",
            hint="Keep a fixed number with --elements N, or free some space.",
        )


def _kept(run: _Run) -> tuple[FinishedShard, ...]:
    """Return the journalled shards of complete variants whose bytes are unchanged."""
    try:
        document = read_json(run.target.work.structure)
        if document["plan_id"] != run.plan_id:
            return ()
    except (OSError, ValueError, KeyError):
        return ()
    is_whole = run.target.checker()
    journalled = {shard.job: shard for shard in run.target.work.finished()}
    kept: list[FinishedShard] = []
    ordered = sorted(journalled.values(), key=lambda shard: shard.job)
    for _, group in groupby(ordered, key=lambda shard: _variant_of(shard.job)):
        shards = list(group)
        if len(shards) == int(shards[0].job.rpartition("-")[2]) and all(map(is_whole, shards)):
            kept += shards
    return tuple(kept)


def _variant_of(job: str) -> int:
    return int(job[1:].partition("-")[0])


def _agree(run: _Run, structure: "Structure") -> None:
    """Record the structure of the first variant; the others must have the same."""
    path = run.target.work.structure
    if not path.exists():
        write_atomically(path, json.dumps({"plan_id": run.plan_id, "structure": structure}))
    elif _structure(run) != structure:
        raise InvalidInputError("its structure differs from that of the first variant")


def _structure(run: _Run) -> Any:
    return read_json(run.target.work.structure)["structure"]


def _show(run: _Run, variant: int, count: int | None, at: int) -> None:
    variants = run.options.variants
    note = f"variant {variant + 1} of {variants}" if variants > 1 else ""
    run.on_progress(Progress("cache", at, count, "elements", note))


def _result(
    run: _Run, shards: Sequence[Shard], *, kept: int = 0, prediction: Prediction | None = None
) -> CacheResult:
    return CacheResult(
        plan_id=run.plan_id,
        target=run.source.text,
        variants=run.options.variants,
        kept_variants=kept,
        elements=sum(shard.records for shard in shards),
        shards=len(shards),
        bytes_out=sum(shard.bytes for shard in shards),
        seconds=time.monotonic() - run.started_s,
        predicted=prediction,
        manifest=f"{run.address}/{MANIFEST}",
        dry_run=run.options.dry_run,
        seeded=run.source.takes_seed,
    )
