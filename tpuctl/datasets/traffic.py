"""What a presize will ask of buckets, said before it starts: objects, bytes, operations."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.datasets.places import bucket_of
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.preparing import Prepared
from tpuctl.units import format_bytes

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
