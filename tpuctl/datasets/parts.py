"""A data set made by several machines, or into a bucket: shard by shard, the manifest last.

The plan is the same on every machine, each takes every n-th shard of it, and none waits for
another: whoever finds all shards complete writes the manifest. Everything is written under
preconditions and names of its content, so to do anything twice, or at once, does no harm.
"""

import hashlib
import importlib.util
import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.building import build_missing
from tpuctl.datasets.commits import (
    Published,
    clean_up,
    commit,
    complete_shards,
    find_entry,
    find_published,
    in_order,
    note_replaced,
    put,
)
from tpuctl.datasets.judging import check_quarantine, result_of
from tpuctl.datasets.models import PresizeResult
from tpuctl.datasets.plan import ShardJob
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.reuse import refuse_another_plan, usable
from tpuctl.datasets.state import QUARANTINE, Finished, Work, quarantine_text
from tpuctl.datasets.traffic import describe_traffic, plan_traffic
from tpuctl.errors import AlreadyExistsError, MissingExtraError, UsageError, WriteError
from tpuctl.progress import OnProgress, told
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder, free_bytes, locked, write_atomically
from tpuctl.storage.port import Storage, open_storage
from tpuctl.units import format_bytes

_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Part:
    """The share of one machine: every `hosts`-th shard, from the `host`-th on."""

    host: int = 0
    hosts: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise UsageError(
                f"--hosts {self.host}/{self.hosts} is no machine of {self.hosts}.",
                hint=f"The first is 0/{max(1, self.hosts)}.",
            )


def parse_part(text: str) -> Part:
    """Read `i/n`: machine i of n, counted from 0; raises UsageError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if not match:
        raise UsageError(
            f"--hosts {text} names no share of the work.",
            hint="Write --hosts 0/4 on the first of four machines, or --hosts auto on a TPU slice.",
        )
    return Part(int(match[1]), int(match[2]))


def presize_into_storage(run: Prepared, part: Part, *, on_progress: OnProgress) -> PresizeResult:
    """Do this machine's part of a data set, and conclude it if nothing is missing then.

    Raises AlreadyExistsError where another data set is, and whatever storage raises.
    """
    storage = open_storage(run.target)
    published = find_published(storage, leniently=run.options.overwrite)
    if published and published.data_set and not published.has(run.plan.id):
        refuse_another_plan(published.data_set, run.plan, run.options)
    retry = run.options.retry_quarantined
    done = complete_shards(storage, run.plan, published, retry=retry)
    missing = [job for job in run.plan.jobs[part.host :: part.hosts] if job.id not in done]
    if run.options.dry_run:
        return _result(run, part, (), frozenset(), missing=0)
    if published and published.has(run.plan.id) and (shards := in_order(run.plan, done)):
        clean_up(storage, {shard.name for shard in shards})
        return _result(run, part, shards, frozenset(done), missing=0)
    if traffic := plan_traffic(run, missing):
        on_progress(told(describe_traffic(run, traffic)))
    there = dict(done)
    if run.options.engine == "beam":
        _build_on_beam(run, missing)
    else:
        built = _build(run, part, storage, missing, on_progress)
        there |= {shard.job: shard for shard in built}
    if len(there) < len(run.plan.jobs):
        there = complete_shards(storage, run.plan, published, retry=False) | there
    if shards := in_order(run.plan, there):
        conclude(run, storage, shards, published)
    shutil.rmtree(_staging(run.target, part), ignore_errors=True)
    return _result(
        run, part, tuple(there.values()), frozenset(done), missing=len(run.plan.jobs) - len(there)
    )


def _build_on_beam(run: Prepared, missing: Sequence[ShardJob]) -> None:
    if not missing:
        return
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("--engine beam", extra="beam", module="apache_beam")
    from tpuctl.datasets._beam import run_pipeline

    run_pipeline(run, missing)


def conclude(
    run: Prepared, storage: Storage, shards: Sequence[Finished], before: Published | None
) -> None:
    """Write the manifest over all shards, in the place of the one that was there before.

    Raises InvalidInputError where too much was left out, AlreadyExistsError where somebody else was
    first with another data set; what is there is then theirs.
    """
    check_quarantine(run, shards, lambda text: _list_left_out(run, text))
    left_out = quarantine_text(shards).encode()
    new = put(storage, QUARANTINE, left_out) if left_out else None
    names = {shard.name for shard in shards}
    text = manifest.to_text(manifest.compose(run.plan, shards)).encode()
    now = find_published(storage, leniently=True)
    note_replaced(storage, now, names)
    try:
        if now is None:
            storage.create(manifest.MANIFEST, text)
        elif now.has(run.plan.id) or (before and before.entry.version == now.entry.version):
            storage.replace(now.entry, text)
        else:
            raise AlreadyExistsError(
                f"Somebody else has made another data set in {storage.address} in the meantime.",
                hint="Choose another target, or replace it with --overwrite.",
            )
    except AlreadyExistsError:
        if new:
            storage.delete(new)
        raise
    if not left_out and (old := find_entry(storage, QUARANTINE)):
        storage.delete(old)
    clean_up(storage, names)


def _build(
    run: Prepared,
    part: Part,
    storage: Storage,
    missing: Sequence[ShardJob],
    on_progress: OnProgress,
) -> list[Finished]:
    """Build the missing shards in a folder of this machine; each is put in its place at once."""
    if not missing:
        return []
    work = Work(_staging(run.target, part))
    ensure_folder(work.folder)
    busy = f"Another presize on this machine is working on {run.target}."
    with locked(work.lock, wait_s=_LOCK_WAIT_S, busy=busy) as lock:
        kept = usable(work, missing, retry=run.options.retry_quarantined)
        work.forget_all_but(missing)
        work.rewrite(kept)
        finished = {shard.job for shard in kept}
        rest = [job for job in missing if job.id not in finished]
        if run.options.retry_quarantined:
            work.forget_left_out(rest)
        _check_space(run, work, rest)
        built = []
        with closing(build_missing(run, work, rest, lock, on_progress)) as fresh:
            for shard in chain(kept, fresh):
                commit(storage, shard, work.shard(shard.job))
                built.append(shard)
                work.shard(shard.job).unlink(missing_ok=True)
        return built


def _staging(target: str, part: Part) -> Path:
    name = f"{target}\n{part.host}/{part.hosts}"
    return cache_dir() / "presize" / hashlib.sha256(name.encode()).hexdigest()[:16]


def _check_space(run: Prepared, work: Work, missing: Sequence[ShardJob]) -> None:
    """Shards wait here until they are in their place: one per worker, and one on its way."""
    at_once = min(run.workers + 1, len(missing))
    needed = run.plan.estimated_bytes * at_once // len(run.plan.jobs)
    if needed > (free := free_bytes(work.folder)):
        raise WriteError(
            f"{work.folder} has {format_bytes(free)} free; shards on their way to {run.target} "
            f"need about {format_bytes(needed)}.",
            hint="Free some space, set TPUCTL_CACHE_DIR to a larger disk, or take fewer --workers.",
        )


def _list_left_out(run: Prepared, text: str) -> str:
    path = _staging(run.target, Part()).with_suffix(".jsonl")
    write_atomically(path, text)
    return str(path)


def _result(
    run: Prepared,
    part: Part,
    shards: Sequence[Finished],
    kept: frozenset[str],
    *,
    missing: int,
) -> PresizeResult:
    name = f"{run.target}/{manifest.MANIFEST}"
    result = result_of(run, shards, kept, resumed=bool(kept), manifest=name)
    return replace(result, host=part.host, hosts=part.hosts, shards_missing=missing)
