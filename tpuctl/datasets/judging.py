"""How a presize went: whether too much was left out, and the result to show."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tpuctl.datasets.models import PresizeResult, allowed_bad
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.quarantine import Quarantined, readable
from tpuctl.datasets.state import Finished, quarantine_text
from tpuctl.errors import InvalidInputError

_SHOWN_FILES = 5


def check_quarantine(
    run: Prepared, shards: Sequence[Finished], write_list: Callable[[str], str]
) -> None:
    """Stop before publishing when too much is bad; what was done is kept.

    `write_list` writes the list of what was left out, and says where.
    """
    left_out = left_out_of(shards)
    images = run.plan.images
    allowed = allowed_bad(run.options.max_bad, images)
    if len(left_out) < images and len(left_out) <= allowed:
        return
    listed = write_list(quarantine_text(shards))
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


def left_out_of(shards: Sequence[Finished]) -> tuple[Quarantined, ...]:
    """What was left out, in the order of names that can be printed."""
    left_out = (bad for shard in shards for bad in shard.left_out)
    return tuple(
        replace(bad, path=readable(bad.path), detail=readable(bad.detail))
        for bad in sorted(left_out, key=lambda bad: bad.path)
    )


def result_of(
    run: Prepared,
    shards: Sequence[Finished],
    kept: frozenset[str],
    *,
    resumed: bool,
    manifest: str,
) -> PresizeResult:
    """Sum up a run whose finished shards are `shards`, of which the jobs `kept` were there."""
    seconds = time.monotonic() - run.started_s
    written = sum(shard.records for shard in shards if shard.job not in kept)
    return PresizeResult(
        plan_id=run.plan.id,
        images=run.plan.images,
        written=written,
        skipped=sum(shard.records for shard in shards if shard.job in kept),
        salvaged=sum(shard.salvaged for shard in shards),
        quarantined=left_out_of(shards),
        shards=len(run.plan.jobs),
        bytes_in=sum(max(0, picture.bytes) for picture in run.inputs.pictures),
        bytes_out=sum(shard.bytes for shard in shards) if shards else run.plan.estimated_bytes,
        images_per_s=written / seconds if seconds else 0.0,
        seconds=seconds,
        resumed=resumed,
        manifest=manifest,
        classes=run.plan.classes,
        ignored=run.inputs.ignored,
        dry_run=run.options.dry_run,
        notes=run.notes,
    )


def summed(results: Sequence[PresizeResult]) -> PresizeResult:
    """One result for the sizes of one pass: that of the first, with the bytes of all."""
    if len(results) == 1:
        return results[0]
    return replace(
        results[0],
        bytes_out=sum(result.bytes_out for result in results),
        shards=sum(result.shards for result in results),
        shards_missing=sum(result.shards_missing for result in results),
        sizes=tuple(results),
    )
