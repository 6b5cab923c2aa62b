"""Data sets from Python, as the commands see them: presize, cache, show, serve."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tpuctl.errors import UsageError, refuse_unused
from tpuctl.progress import OnProgress, silent
from tpuctl.usercode.function import target_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NoReturn

    from tpuctl.api.workers import Workers
    from tpuctl.datasets.models import (
        CacheOptions,
        CacheResult,
        CopyResult,
        Description,
        Part,
        PresizeOptions,
        PresizeResult,
    )
    from tpuctl.datasets.serve import Service


def presize(
    src: str | Path,
    dst: str | Path,
    options: PresizeOptions | None = None,
    *,
    size: int | str | tuple[int, int] | None = None,
    hosts: str = "auto",
    on_progress: OnProgress = silent,
    **changes: Any,
) -> PresizeResult:
    """Decode and shrink the images in `src` once, into shards in `dst`.

    Both are a folder or gs://BUCKET/FOLDER. The same call again resumes what was interrupted.
    `size` is 224, (height, width), or text as on the command line; `changes` are fields of
    PresizeOptions, such as `mode` or `overwrite`. `hosts` is i/n to do every n-th shard, or
    "auto": on a worker of a TPU slice, its share of a data set in a bucket. Raises TpuctlErrors.
    """
    from tpuctl.datasets.models import PresizeOptions, parse_sizes
    from tpuctl.datasets.presize import presize

    if size is not None:
        sides = size if isinstance(size, (tuple, list)) else [size]
        sizes = parse_sizes("x".join(map(str, sides)))
        changes |= {"size": sizes[0], "sizes": sizes if len(sizes) > 1 else ()}
    chosen = replace(options or PresizeOptions(), **changes)
    zone = _zone(chosen.zone, str(src), str(dst))
    part = _part(hosts, str(dst))
    return presize(src, dst, replace(chosen, zone=zone), part=part, on_progress=on_progress)


def _zone(zone: str | None, *places: str) -> str | None:
    """Return the zone given or set, or that of this machine; None if no bucket is involved."""
    from tpuctl.datasets.locations import bucket_of
    from tpuctl.settings import load_settings

    if not any(bucket_of(place) for place in places):
        return None
    if chosen := load_settings({"zone": zone})["zone"]:
        return chosen
    from tpuctl.runtime.live import live_machine

    own = live_machine().metadata("instance/zone")
    return own.rpartition("/")[2] if own else None


def _part(hosts: str, dst: str) -> Part | None:
    """Return the share of this machine; "auto" shares only what all machines can see."""
    from tpuctl.datasets.locations import bucket_of

    if hosts == "auto" and not bucket_of(dst):
        return None
    from tpuctl.datasets.models import Part, parse_part

    if hosts != "auto":
        return parse_part(hosts)
    from tpuctl.runtime.chips import find_chips
    from tpuctl.runtime.live import live_machine
    from tpuctl.runtime.topology import find_topology

    machine = live_machine()
    topology = find_topology(machine, find_chips(machine))
    if topology.worker is None or topology.hosts < 2:
        return None
    return Part(topology.worker, topology.hosts)


def cache(
    target: str | Callable[..., Any],
    dst: str | Path | None = None,
    options: CacheOptions | None = None,
    *,
    limit_bytes: int | None = None,
    on_progress: OnProgress = silent,
    **changes: Any,
) -> CacheResult | CopyResult:
    """Run an input pipeline once and keep its elements in `dst`; or copy a data set from a bucket.

    A pipeline is module:function or path.py:function, or such a function itself. A data set,
    gs://BUCKET/FOLDER, is copied to `dst`, or to a folder that all processes share, of
    `limit_bytes` at most. `changes` are fields of CacheOptions, such as `variants`. Raises
    TpuctlErrors.
    """
    from tpuctl.datasets.locations import bucket_of
    from tpuctl.datasets.models import CacheOptions

    target = target_of(target)
    given = replace(options or CacheOptions(), **changes)
    if address := bucket_of(target):
        from tpuctl.datasets.local_copies import copy_data_set

        unused = {
            f"--{option.name.replace('_bytes', '-size').replace('_', '-')}": True
            for option in fields(given)
            if option.name != "overwrite" and getattr(given, option.name) != option.default
        }
        refuse_unused(unused, "on the copy of a data set")
        return copy_data_set(
            address,
            dst,
            limit_bytes=limit_bytes,
            overwrite=given.overwrite,
            on_progress=on_progress,
        )
    refuse_unused({"--limit": limit_bytes}, "on the elements of a pipeline")
    if dst is None:
        raise UsageError("Where to? Give a folder, or gs://BUCKET/FOLDER, after the pipeline.")
    from tpuctl.datasets.cache import cache

    return cache(target, dst, given, on_progress=on_progress)


def show(dst: str | Path, *, sheet: str | Path | None = None) -> Description:
    """Describe a data set; `sheet` is a PNG to draw up to 64 of its records to."""
    from tpuctl.datasets.describe import describe, write_sheet

    drawn = None if sheet is None else str(write_sheet(dst, sheet))
    return replace(describe(dst), sheet=drawn)


def serve(
    where: Workers | None = None,
    *,
    workers: int | None = None,
    port: int | None = None,
    python: str = "python3",
    allow_unauthenticated: bool = False,
    on_ready: Callable[[Service], None] = lambda service: None,
    note: Callable[[str], None] = lambda text: None,
) -> NoReturn:
    """Run a tf.data service, here or on the machines `where`, until Ctrl-C.

    By default one worker per machine, each using all vCPUs. Only you can use it, here and on those
    machines, by socket files. With `allow_unauthenticated`, its servers listen on all interfaces
    from `port` on, and everybody who reaches them can read and write your files. `on_ready` is
    called when the service runs, `note` receives a line for each event.
    """
    from tpuctl.datasets.serve import serve

    hosts, access, _ = where.reach() if where else ((), None, None)
    serve(
        hosts,
        access,
        workers=workers,
        port=port,
        python=python,
        allow_unauthenticated=allow_unauthenticated,
        on_ready=on_ready,
        on_note=note,
    )
