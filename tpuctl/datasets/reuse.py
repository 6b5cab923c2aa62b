"""What of an earlier run is still good: whatever the plan still asks for, and its bytes confirm."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.models import DataSet, PresizeOptions, Shard
from tpuctl.datasets.plan import Plan, ShardJob
from tpuctl.datasets.quarantine import Quarantined
from tpuctl.datasets.shards.work import Finished, Work, quarantine_of
from tpuctl.errors import AlreadyExistsError, InvalidInputError


def reusable(folder: Path, work: Work, plan: Plan, *, retry: bool) -> tuple[Finished, ...]:
    """Return the finished shards of this plan whose size and crc32c are still right.

    With `retry`, shards that leave something out do not count.
    """
    known = {shard.job: shard for shard in (*_published(folder), *work.finished())}
    kept = []
    for job in plan.jobs:
        shard = known.get(job.id)
        if shard is None or (retry and shard.left_out):
            continue
        if is_whole(folder, work, shard):
            kept.append(shard)
    return tuple(kept)


def _published(folder: Path) -> Iterator[Finished]:
    try:
        data_set = manifest.load_if_there(folder)
    except InvalidInputError:
        return
    if data_set is not None:
        yield from finished_of(data_set, quarantine_of(folder))


def finished_of(
    data_set: DataSet, left_out: Mapping[str, Sequence[Quarantined]]
) -> Iterator[Finished]:
    """Yield the shards of a data set as they were when they were finished."""
    for shard in data_set.shards:
        missing = tuple(left_out.get(shard.job, ()))
        if shard.job and len(missing) == shard.quarantined:
            yield Finished(
                job=shard.job,
                name=shard.name,
                bytes=shard.bytes,
                records=shard.records,
                crc32c=shard.crc32c,
                sha256=shard.sha256,
                first_key=shard.first_key,
                last_key=shard.last_key,
                salvaged=shard.salvaged,
                bytes_in=shard.bytes_in,
                left_out=missing,
            )


def usable(work: Work, jobs: Sequence[ShardJob], *, retry: bool) -> tuple[Finished, ...]:
    """Return the shards of these jobs that are finished in the work folder, and still right."""
    known = {shard.job: shard for shard in work.finished()}
    found = (known[job.id] for job in jobs if job.id in known)
    return tuple(
        shard
        for shard in found
        if not (retry and shard.left_out) and is_whole(work.folder, work, shard)
    )


def is_whole(folder: Path, work: Work, shard: Finished | Shard) -> bool:
    """Whether a shard is there, published or not, with the bytes that it had."""
    from tpuctl.datasets.formats._tfrecord import digest_file

    for path in (work.shard(shard.job), folder / shard.name):
        try:
            if path.stat().st_size == shard.bytes:
                return digest_file(path, sha256=False).crc32c == shard.crc32c
        except OSError:
            continue
    return False


def refuse_another_plan(previous: DataSet, plan: Plan, options: PresizeOptions) -> None:
    """Protect a finished data set from being replaced by accident; raises AlreadyExistsError."""
    if options.overwrite:
        return
    repaired = only_repairs(previous, plan)
    if repaired and options.retry_quarantined:
        return
    hint = "Choose another target, or replace this data set with --overwrite."
    if repaired:
        hint = "Only files that had been left out are new: take them in with --retry-quarantined."
    raise AlreadyExistsError(
        f"{previous.folder} holds another data set: {_difference(previous, plan)}.", hint=hint
    )


def only_repairs(previous: DataSet, plan: Plan) -> bool:
    """Whether nothing differs but shards that had left something out."""
    if len(previous.shards) != len(plan.jobs):
        return False
    pairs = zip(previous.shards, plan.jobs, strict=True)
    return _same_recipe(previous, plan) and all(
        shard.job == job.id or shard.quarantined for shard, job in pairs
    )


def _same_recipe(previous: DataSet, plan: Plan) -> bool:
    return (
        previous.options == plan.options
        and previous.document.get("versions") == plan.versions
        and previous.classes == plan.classes
    )


def _difference(previous: DataSet, plan: Plan) -> str:
    """Say what makes the two differ, in the user's words."""
    for name, value in plan.options.items():
        if previous.options.get(name) != value:
            before, now = _plain(previous.options.get(name)), _plain(value)
            return f"its {name.replace('_', ' ')} is {before}, not {now}"
    if previous.classes != plan.classes:
        return "its classes are others"
    if previous.document.get("versions") != plan.versions:
        return "it was made by other versions of the image libraries"
    return "it was made from other files, or these files have changed since"


def _plain(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
