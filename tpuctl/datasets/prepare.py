"""What a presize decides before the first image is decoded: libraries, images, the plan."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tpuctl.datasets.formats import need_array_record
from tpuctl.datasets.inputs import ScanResult, scan, scan_bucket
from tpuctl.datasets.locations import bucket_of, check_locations, warn_far_away
from tpuctl.datasets.manifest import DataSet
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.plan import Plan, ShardJob, plan_presize
from tpuctl.errors import AlreadyExistsError, InvalidInputError
from tpuctl.lazy import need_modules
from tpuctl.storage import open_storage
from tpuctl.units import format_bytes

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
KERNEL_VERSION = 4


@dataclass(frozen=True)
class Prepared:
    """One presize, decided: `source` and `target` are folders free of links, or addresses."""

    source: str
    target: str
    options: PresizeOptions
    inputs: ScanResult
    plan: Plan
    started_s: float
    notes: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        """How many processes may work at once."""
        return self.options.workers or len(os.sched_getaffinity(0))


def prepare_sizes(
    src: str | Path, dst: str | Path, options: PresizeOptions, *, started_s: float
) -> tuple[Prepared, ...]:
    """Plan each size that one pass makes; several go into one folder each.

    Raises NotFoundError, InvalidInputError, UsageError, MissingExtraError.
    """
    source, target = check_locations(src, dst)
    versions = _check_modules(options)
    if bucket_of(source):
        inputs = scan_bucket(open_storage(source))
    else:
        inputs = scan(Path(source), None if bucket_of(target) else Path(target))
    if not inputs.pictures:
        there = ", ".join(f"{count} {kind}" for kind, count in inputs.ignored.items())
        raise InvalidInputError(
            f"No images found in {source}" + (f", only: {there}." if there else "."),
            hint="Point presize to the folder that holds the images, at any depth.",
        )
    far_away = warn_far_away(source, target, options.zone)
    prepared = []
    for size in options.sizes or (options.size,):
        this = replace(options, size=size)
        plan = plan_presize(inputs.pictures, this, versions)
        notes = (*inputs.notes, *plan.notes, *far_away)
        place = f"{target}/{size[0]}x{size[1]}" if len(options.sizes) > 1 else target
        prepared.append(Prepared(source, place, this, inputs, plan, started_s, notes))
    return tuple(prepared)


def _check_modules(options: PresizeOptions) -> dict[str, str]:
    """Return the versions that affect pixels; raises MissingExtraError."""
    need_modules("Presizing images", *_MODULES, extra="images")
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


# A shard and the note that it is complete; at the end the list of what was left out, the manifest.
_WRITES_PER_SHARD = 2
_LAST_WRITES = 2


def describe_traffic(run: Prepared, missing: Sequence[ShardJob]) -> str | None:
    """Describe the requests that building these shards takes; None without buckets.

    Class A operations (lists, writes) cost about ten times as much as class B (reads).
    """
    reads, writes = bucket_of(run.source), bucket_of(run.target)
    if not reads and not writes:
        return None
    pictures = [picture for job in missing for picture in job.pictures] if reads else []
    sizes = 1 + max((len(job.siblings) for job in missing), default=0)
    shards = sizes * (len(missing) * _WRITES_PER_SHARD + _LAST_WRITES) if writes else 0
    total = format_bytes(sum(max(0, picture.bytes) for picture in pictures))
    source = f"{run.source}: {len(pictures):,} objects, {total}, to read; " if reads else ""
    return (
        f"{source}about {run.inputs.lists + shards:,} class A operations (lists, writes) and "
        f"{run.inputs.reads + len(pictures):,} class B (reads)."
    )


def refuse_another_plan(previous: DataSet, plan: Plan, options: PresizeOptions) -> None:
    """Protect a finished data set from being replaced by accident; raises AlreadyExistsError."""
    if options.overwrite:
        return
    repaired = _only_repairs(previous, plan)
    if repaired and options.retry_quarantined:
        return
    hint = "Choose another target, or replace this data set with --overwrite."
    if repaired:
        hint = "Only files that had been left out are new: add them with --retry-quarantined."
    raise AlreadyExistsError(
        f"{previous.folder} holds another data set: {_difference(previous, plan)}.", hint=hint
    )


def _only_repairs(previous: DataSet, plan: Plan) -> bool:
    """Whether nothing differs but shards that had left something out."""
    same_recipe = (previous.options, previous.versions, previous.classes) == (
        plan.options, plan.versions, plan.classes,
    )  # fmt: skip
    return (
        same_recipe
        and len(previous.shards) == len(plan.jobs)
        and all(
            shard.job == job.id or shard.quarantined
            for shard, job in zip(previous.shards, plan.jobs, strict=True)
        )
    )


def _difference(previous: DataSet, plan: Plan) -> str:
    """Describe how the two differ."""
    for name, value in plan.options.items():
        if previous.options.get(name) != value:
            before, now = _plain(previous.options.get(name)), _plain(value)
            return f"its {name.replace('_', ' ')} is {before}, not {now}"
    if previous.classes != plan.classes:
        return "its classes differ"
    if previous.versions != plan.versions:
        return "it was made with other versions of the image libraries"
    return "it was made from other files, or these files have changed since"


def _plain(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
