"""A data set made by several machines, or into a bucket: shard by shard, the manifest last.

The plan is the same on every machine, each takes every n-th shard of it, and none waits for
another: whoever finds all shards complete writes the manifest. Everything is written under
preconditions and names of its content, so to do anything twice, or at once, does no harm.
"""

import hashlib
import importlib.util
import random
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tpuctl.clock import Clock, SteadyClock
from tpuctl.datasets import manifest
from tpuctl.datasets.build import build_missing
from tpuctl.datasets.commits import (
    Contents,
    Published,
    clean_up,
    commit,
    complete_shards,
    find_published,
    in_order,
    publish,
)
from tpuctl.datasets.leases import POLL_S, Leases
from tpuctl.datasets.models import PresizeResult
from tpuctl.datasets.plan import ShardJob, Twin
from tpuctl.datasets.pool import Claim, claim_all
from tpuctl.datasets.preparing import Prepared
from tpuctl.datasets.results import (
    check_quarantine,
    describe_traffic,
    plan_traffic,
    result_of,
    summed,
)
from tpuctl.datasets.reuse import refuse_another_plan, usable
from tpuctl.datasets.state import Finished, Work, quarantine_text
from tpuctl.errors import MissingExtraError, UsageError, WriteError
from tpuctl.progress import OnProgress, message
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder, free_bytes, locked, write_atomically
from tpuctl.storage.port import Storage, open_storage
from tpuctl.units import format_bytes

_LOCK_WAIT_S = 10.0
_Jobs = tuple[ShardJob, ...]


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


@dataclass(frozen=True)
class _Share:
    """What one machine does of a data set: what is there of it, and where its shards wait."""

    run: Prepared
    part: Part
    storage: Storage
    published: Published | None
    done: dict[str, Finished]

    @property
    def work(self) -> Work:
        return Work(_staging(self.run.target, self.part))

    @property
    def is_complete(self) -> bool:
        """Whether nothing is to be done but to tidy up."""
        is_ours = self.published is not None and self.published.has(self.run.plan.id)
        return is_ours and in_order(self.run.plan, self.done) is not None


def presize_into_storage(
    runs: Sequence[Prepared], part: Part, *, on_progress: OnProgress, clock: Clock | None = None
) -> PresizeResult:
    """Do this machine's part of a data set, and conclude it if nothing is missing then.

    `runs` are the sizes that are made in one pass. Raises AlreadyExistsError where another data set
    is, and whatever storage raises.
    """
    options = runs[0].options
    shares = [_look(run, part, retry=options.retry_quarantined) for run in runs]
    if options.dry_run:
        return summed([_result(share, {}) for share in shares])
    missing = [] if all(share.is_complete for share in shares) else _missing(shares)
    if missing and (traffic := plan_traffic(runs[0], missing)):
        on_progress(message(describe_traffic(runs[0], traffic)))
    if options.engine == "beam":
        _build_on_beam(runs, missing)
        built: dict[str, Finished] = {}
    elif options.steal and missing:
        built = _build_all(shares, missing, on_progress, clock or SteadyClock())
    else:
        built = _build(shares, missing, on_progress)
    return summed([_conclude(share, built) for share in shares])


def _look(run: Prepared, part: Part, *, retry: bool) -> _Share:
    storage = open_storage(run.target)
    published = find_published(storage, leniently=run.options.overwrite)
    if published and published.data_set and not published.has(run.plan.id):
        refuse_another_plan(published.data_set, run.plan, run.options)
    done = complete_shards(storage, run.plan, retry=retry)
    return _Share(run, part, storage, published, done)


def _missing(shares: Sequence[_Share]) -> list[ShardJob]:
    """The jobs of this machine that any size lacks, those of the other sizes as their twins."""
    lead, *others = shares
    done = {job for share in shares for job in share.done}
    together = list(zip(*(share.run.plan.jobs for share in shares), strict=True))
    return [
        replace(jobs[0], twins=tuple(map(_twin, others, jobs[1:])))
        for jobs in _in_turn(together, lead.part, steal=lead.run.options.steal)
        if any(job.id not in done for job in jobs)
    ]


def _in_turn(jobs: Sequence[_Jobs], part: Part, *, steal: bool) -> list[_Jobs]:
    """This machine's jobs; to steal, then those of the others, each machine in another order."""
    ours = list(jobs[part.host :: part.hosts])
    if not steal:
        return ours
    others = [each for number, each in enumerate(jobs) if number % part.hosts != part.host]
    random.shuffle(others or ours)
    return ours + others


def _build_all(
    shares: Sequence[_Share], missing: Sequence[ShardJob], on_progress: OnProgress, clock: Clock
) -> dict[str, Finished]:
    """Build what nobody else is at, and what others have left, until nothing is missing."""
    leases = Leases(shares[0].storage, clock, _owner_of(shares[0]))
    built: dict[str, Finished] = {}
    is_waiting = False
    with leases.kept():
        while True:
            built |= _build(shares, missing, on_progress, leases.claim)
            now = [_look(share.run, share.part, retry=False) for share in shares]
            if not (missing := _missing(now)):
                return built
            if not is_waiting:
                left = f"Other machines are at {len(missing)} of the shards"
                on_progress(message(f"{left}; what they leave is taken over."))
            is_waiting = True
            clock.sleep(POLL_S)
            leases.look()


def _owner_of(share: _Share) -> str:
    """Name whoever does this share here: a name that outlives a killed run, as its shards do.

    Shards are claimed while the lock beside it is held, so that no two runs are one owner at once.
    """
    path = share.work.folder / "owner"
    with suppress(OSError):
        return path.read_text()
    write_atomically(path, uuid.uuid4().hex)
    return path.read_text()


def _twin(share: _Share, job: ShardJob) -> Twin:
    return Twin(job.id, str(share.work.folder), share.run.plan.options)


def _conclude(share: _Share, built: dict[str, Finished]) -> PresizeResult:
    """Write the manifest of a data set if all of its shards are there by now."""
    run, storage = share.run, share.storage
    ours = {job.id for job in run.plan.jobs}
    there = share.done | {job: shard for job, shard in built.items() if job in ours}
    if len(there) < len(ours):
        there = complete_shards(storage, run.plan, retry=False) | there
    if shards := in_order(run.plan, there):
        if share.is_complete and not ours & built.keys():
            clean_up(storage, {shard.name for shard in shards})
        else:
            conclude(run, storage, shards, share.published)
    shutil.rmtree(share.work.folder, ignore_errors=True)
    return _result(share, there)


def _build_on_beam(runs: Sequence[Prepared], missing: Sequence[ShardJob]) -> None:
    if not missing:
        return
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("--engine beam", extra="beam", module="apache_beam")
    from tpuctl.datasets._beam import run_pipeline

    run_pipeline(runs, missing)


def conclude(
    run: Prepared, storage: Storage, shards: Sequence[Finished], before: Published | None
) -> None:
    """Write the manifest over all shards, in the place of the one that was there before.

    Raises InvalidInputError where too much was left out, AlreadyExistsError where somebody else was
    first with another data set; what is there is then theirs.
    """
    check_quarantine(run, shards, lambda text: _list_left_out(run, text))
    names = frozenset(shard.name for shard in shards)
    text = manifest.to_text(manifest.compose(run.plan, shards)).encode()
    left_out = quarantine_text(shards).encode()
    publish(storage, Contents(run.plan.id, text, names, left_out), before)


def _build(
    shares: Sequence[_Share],
    missing: Sequence[ShardJob],
    on_progress: OnProgress,
    claim: Claim = claim_all,
) -> dict[str, Finished]:
    """Build the missing shards in a folder of this machine; each is put in its place at once."""
    if not missing:
        return {}
    lead = shares[0]
    at = {job.id: share for share in shares for job in share.run.plan.jobs}
    with ExitStack() as stack:
        locks = [stack.enter_context(_locked(share)) for share in shares]
        kept = {shard.job: shard for share in shares for shard in _take_up(share, missing)}
        rest = [job for job in missing if not {job.id, *(t.id for t in job.twins)} <= kept.keys()]
        _check_space(shares, rest)
        fresh = build_missing(lead.run, lead.work, rest, locks[0], on_progress, claim)
        built = {}
        for shard in chain(kept.values(), stack.enter_context(closing(fresh))):
            share = at[shard.job]
            commit(share.storage, shard, share.work.shard(shard.job))
            share.work.shard(shard.job).unlink(missing_ok=True)
            built[shard.job] = shard
        return built


@contextmanager
def _locked(share: _Share) -> Iterator[int]:
    ensure_folder(share.work.folder)
    busy = f"Another presize on this machine is working on {share.run.target}."
    with locked(share.work.lock, wait_s=_LOCK_WAIT_S, busy=busy) as lock:
        yield lock


def _take_up(share: _Share, missing: Sequence[ShardJob]) -> tuple[Finished, ...]:
    """Keep what an earlier run has finished here and not put in its place; forget the rest."""
    work, retry = share.work, share.run.options.retry_quarantined
    wanted = {number for job in missing for number in (job.id, *(twin.id for twin in job.twins))}
    jobs = [job for job in share.run.plan.jobs if job.id in wanted]
    kept = usable(work, jobs, retry=retry)
    work.forget_all_but(jobs)
    work.rewrite(kept)
    if retry:
        finished = {shard.job for shard in kept}
        work.forget_left_out([job for job in jobs if job.id not in finished])
    return kept


def _staging(target: str, part: Part) -> Path:
    name = f"{target}\n{part.host}/{part.hosts}"
    return cache_dir() / "presize" / hashlib.sha256(name.encode()).hexdigest()[:16]


def _check_space(shares: Sequence[_Share], missing: Sequence[ShardJob]) -> None:
    """Shards wait here until they are in their place: one per worker, and one on its way."""
    run, folder = shares[0].run, shares[0].work.folder
    at_once = min(run.workers + 1, len(missing))
    whole = sum(share.run.plan.estimated_bytes for share in shares)
    needed = whole * at_once // len(run.plan.jobs)
    if needed > (free := free_bytes(folder)):
        raise WriteError(
            f"{folder} has {format_bytes(free)} free; shards on their way to {run.target} "
            f"need about {format_bytes(needed)}.",
            hint="Free some space, set TPUCTL_CACHE_DIR to a larger disk, or take fewer --workers.",
        )


def _list_left_out(run: Prepared, text: str) -> str:
    path = _staging(run.target, Part()).with_suffix(".jsonl")
    write_atomically(path, text)
    return str(path)


def _result(share: _Share, there: dict[str, Finished]) -> PresizeResult:
    run, part = share.run, share.part
    missing = 0 if run.options.dry_run else len(run.plan.jobs) - len(there)
    kept = frozenset(share.done) & there.keys()
    name = f"{run.target}/{manifest.MANIFEST}"
    shards = tuple(there.values())
    result = result_of(run, shards, kept, resumed=bool(kept), manifest=name)
    return replace(result, host=part.host, hosts=part.hosts, shards_missing=missing)
