"""How a presize went: whether too much was left out, and the result to show."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpuctl.datasets.models import PresizeResult, allowed_bad
from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.prepare import Prepared
from tpuctl.datasets.quarantine import Quarantined, readable
from tpuctl.datasets.shards.work import Finished, quarantine_text
from tpuctl.errors import InvalidInputError
from tpuctl.units import format_bytes

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


# A shard and the note that it is complete; at the end the list of what was left out, the manifest.
_WRITES_PER_SHARD = 2
_LAST_WRITES = 2


@dataclass(frozen=True)
class Traffic:
    """Requests and bytes. Class A (lists, writes) costs about ten times class B (reads)."""

    objects: int = 0
    bytes: int = 0
    class_a: int = 0
    class_b: int = 0


def plan_traffic(run: Prepared, missing: Sequence[ShardJob]) -> Traffic | None:
    """Count what building these shards takes; None where no bucket is involved."""
    reads, writes = bucket_of(run.source), bucket_of(run.target)
    if not reads and not writes:
        return None
    entries = [entry for job in missing for entry in job.entries] if reads else []
    sizes = 1 + max((len(job.twins) for job in missing), default=0)
    shards = sizes * (len(missing) * _WRITES_PER_SHARD + _LAST_WRITES) if writes else 0
    return Traffic(
        objects=len(entries),
        bytes=sum(max(0, entry.bytes) for entry in entries),
        class_a=run.inputs.lists + shards,
        class_b=run.inputs.looks + len(entries),
    )


def describe_traffic(run: Prepared, traffic: Traffic) -> str:
    """Say it in one sentence."""
    read = f"{traffic.objects:,} objects, {format_bytes(traffic.bytes)}, to read"
    source = f"{run.source}: {read}; " if bucket_of(run.source) else ""
    return (
        f"{source}about {traffic.class_a:,} class A operations (lists, writes) and "
        f"{traffic.class_b:,} class B (reads)."
    )
