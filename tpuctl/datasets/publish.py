"""Which shards of a data set are complete, and how they become the data set: the manifest last.

Objects are written under preconditions and shards are named by their content, so that machines may
do the same thing twice, or at the same time. A target is either *shared* (a bucket, a folder that
several machines write to): each finished shard is put there at once, with a note that says so. Or
it is a folder of one machine: shards wait in its hidden work folder, journalled, until all are
there. Either way a kill at any moment leaves the previous data set, none, or the new one.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tpuctl.codec import from_plain, parse_json
from tpuctl.datasets import manifest
from tpuctl.datasets.locations import bucket_of
from tpuctl.datasets.manifest import MANIFEST, WORK, DataSet, FinishedShard, Shard
from tpuctl.datasets.plan import Plan
from tpuctl.datasets.quarantine import QUARANTINE, quarantine_text, read_quarantine
from tpuctl.datasets.shards.work import Work, to_text
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, WriteError
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage import open_storage
from tpuctl.storage.local import locked, translated_write_errors, write_atomically
from tpuctl.storage.port import Storage, StoredObject

_NOTE = ".presize-"
LEASE = f"{_NOTE}lease-"
_OUR_NOTE = re.compile(r"\.presize-[\w.-]+")
# Notes are small: what counts is the latency of a bucket.
_CONNECTIONS = 16
_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Published:
    """A manifest that is there: which version of it, and what it says if it can be read."""

    entry: StoredObject
    data_set: DataSet | None

    def has(self, plan_id: str) -> bool:
        """Whether it is the manifest of that plan."""
        return self.data_set is not None and self.data_set.plan_id == plan_id


def find_published(storage: Storage, *, leniently: bool) -> Published | None:
    """Read the manifest at an address; None if it does not exist. A missing bucket is an error.

    With `leniently`, an unreadable manifest counts as one of another data set.
    """
    while entry := find_entry(storage, MANIFEST):
        try:
            data = storage.read(MANIFEST, version=entry.version)
            return Published(entry, manifest.parse(Path(storage.address), data))
        except (AlreadyExistsError, NotFoundError):
            continue  # It was replaced or deleted since we looked.
        except InvalidInputError:
            if leniently:
                return Published(entry, None)
            raise
    return None


def find_entry(storage: Storage, name: str) -> StoredObject | None:
    """Look up an object by its name; None if it does not exist."""
    return next((entry for entry in storage.list(name) if entry.name == name), None)


def put(
    storage: Storage,
    name: str,
    content: bytes | Path,
    *,
    crc32c: str | None = None,
    move: bool = False,
) -> StoredObject | None:
    """Write an object whether or not it exists; returns it if it is new."""
    while True:
        # Neither request alone can write a name without looking whether it is there. Between the
        # two another machine may create or delete it; then it is the other one's turn again.
        with contextlib.suppress(AlreadyExistsError):
            return storage.write(name, content, crc32c=crc32c, move=move)
        with contextlib.suppress(AlreadyExistsError, NotFoundError):
            storage.write(name, content, over=storage.stat(name), crc32c=crc32c, move=move)
            return None


@dataclass(frozen=True)
class Target:
    """A data set that is being made: where it goes, and the folder where its shards are made."""

    storage: Storage
    work: Work
    shared: bool

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the work folder; yields the descriptor of its lock. Raises TryAgainError."""
        where = " on this machine" if self.shared else ""
        busy = f"Another tpuctl{where} is working on {self.storage.address}."
        while True:
            self.work.create()
            with contextlib.ExitStack() as stack:
                # The run that held it may have finished and deleted the folder with the lock.
                try:
                    lock = stack.enter_context(
                        locked(self.work.lock, wait_s=_LOCK_WAIT_S, busy=busy)
                    )
                except WriteError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):
                        raise
                    continue
                yield lock
                return

    def complete(self, plan: Plan, *, retry: bool = False) -> dict[str, FinishedShard]:
        """Return the shards of a plan that are finished and undamaged, by job.

        With `retry`, only those that left nothing out.
        """
        # The last machine writes the manifest before it deletes the notes, so read the notes first.
        recorded = _read_notes(self.storage) if self.shared else self.work.finished()
        listed = _listed(self.storage, find_published(self.storage, leniently=True))
        known = {shard.job: shard for shard in (*listed, *recorded)}
        is_whole = self.checker() if known else None
        return {
            job.id: known[job.id]
            for job in plan.jobs
            if is_whole
            and job.id in known
            and not (retry and known[job.id].left_out)
            and is_whole(known[job.id])
        }

    def checker(self) -> Callable[[Shard], bool]:
        """Read what is there; the returned function says whether a shard is there and intact."""
        places = [(self.storage, "{0.name}")]
        if not self.shared:
            places.insert(0, (open_storage(self.work.folder), "{0.job}.shard"))
        found = [
            (place, name, {each.name: each for each in place.list()}) for place, name in places
        ]

        def is_whole(shard: Shard) -> bool:
            return any(
                _matches(place, there.get(name.format(shard)), shard)
                for place, name, there in found
            )

        return is_whole

    def resume(self, kept: Collection[FinishedShard], jobs: Collection[str]) -> None:
        """Keep finished shards of an earlier run, and partial ones of `jobs`; delete the rest."""
        if not self.shared:
            published = find_published(self.storage, leniently=True)
            listed = published.data_set.shards if published and published.data_set else ()
            self._delete_unlisted({shard.name for shard in (*kept, *listed)})
            self.work.rewrite(kept)
        self.work.forget_all_but(jobs)

    def record(self, finished: FinishedShard) -> None:
        """Record that a shard is finished; at a shared target, upload it first."""
        if self.shared:
            # The note says that the shard is there, so it comes second.
            self._place(finished)
            put(self.storage, note_of(finished.job), to_text(finished).encode())
        else:
            self.work.record(finished)
        self.work.forget_part(finished.job)

    def publish(
        self,
        plan: Plan,
        shards: Iterable[FinishedShard],
        before: Published | None,
        on_progress: OnProgress = silent,
    ) -> None:
        """Make finished shards the data set, in place of the one that was there `before`.

        Raises AlreadyExistsError if another data set has been published since; that one stays.
        """
        # Shards first, then the list of what they lack, then the manifest, which makes all of it a
        # data set: a kill between any two of these leaves no manifest that promises too much.
        shards = sorted(shards, key=lambda shard: shard.name)
        names = {shard.name for shard in shards}
        for number, shard in enumerate(shards):
            on_progress(Progress("publish", number, len(shards), "shards", shard.name))
            self._place(shard)
        left_out = quarantine_text(shards)
        listed = self._put_text(QUARANTINE, left_out) if left_out else None
        text = manifest.to_text(manifest.compose(plan, shards))
        try:
            while not self._write_manifest(plan.id, text, names, before):
                continue
        except AlreadyExistsError:
            if listed:
                self.storage.delete(listed)
            raise
        if not left_out and (old := find_entry(self.storage, QUARANTINE)):
            self.storage.delete(old)
        self.clean_up(names)

    def clean_up(self, keep: Collection[str]) -> None:
        """Delete what a published data set no longer needs: notes, work, and replaced shards."""
        self._delete_unlisted(keep)
        for entry in list(self.storage.list(_NOTE)):
            if not _OUR_NOTE.fullmatch(entry.name):
                continue
            try:
                self.storage.delete(entry)
            except AlreadyExistsError:
                # A lease that was just renewed: the machine that holds it deletes it.
                if not entry.name.startswith(LEASE):
                    raise
        self.work.remove()

    @property
    def _replaced(self) -> str:
        """The list of shards that a manifest about to be written leaves without a data set."""
        inside = self.work.folder.parent == Path(self.storage.address)
        return f"{WORK}/replaced.json" if inside else f"{_NOTE}replaced.json"

    def _place(self, shard: FinishedShard) -> None:
        path = self.work.shard(shard.job)
        if path.exists():
            put(self.storage, shard.name, path, crc32c=shard.crc32c, move=True)
            with translated_write_errors(path):
                path.unlink(missing_ok=True)

    def _put_text(self, name: str, text: str) -> StoredObject | None:
        # By way of the work folder, so that a kill leaves nothing half-written beside the shards.
        path = self.work.folder / name
        write_atomically(path, text)
        return put(self.storage, name, path, move=True)

    def _write_manifest(
        self, plan_id: str, text: str, shards: Collection[str], before: Published | None
    ) -> bool:
        """Write it unless another data set is there now; False if it was modified concurrently."""
        now = find_published(self.storage, leniently=True)
        is_ours = now is None or now.has(plan_id)
        if now and not is_ours and not (before and before.entry.version == now.entry.version):
            raise AlreadyExistsError(
                f"Another data set was published in {self.storage.address} concurrently.",
                hint="Choose another target, or replace it with --overwrite.",
            )
        old = now.data_set.shards if now and now.data_set else ()
        # Written down before the manifest that lists them is gone, so that a kill orphans no shard.
        if replaced := sorted({shard.name for shard in old} - set(shards)):
            put(self.storage, self._replaced, json.dumps(replaced).encode())
        path = self.work.folder / MANIFEST
        write_atomically(path, text)
        with contextlib.suppress(AlreadyExistsError):
            self.storage.write(MANIFEST, path, over=now.entry if now else None, move=True)
            return True
        return False

    def _delete_unlisted(self, keep: Collection[str]) -> None:
        """Delete shards made by tpuctl that no data set lists any more."""
        names = set() if self.shared else {shard.name for shard in self.work.finished()}
        with contextlib.suppress(NotFoundError, ValueError, TypeError):
            listed = parse_json(self.storage.read(self._replaced))
            names |= {name for name in listed if isinstance(name, str)}
        for name in filter(manifest.is_ours, sorted(names - set(keep))):
            with contextlib.suppress(NotFoundError):
                self.storage.delete(self.storage.stat(name))


def open_target(address: str, staging: str, *, shared: bool) -> Target:
    """Open a place for a data set; the work folder is in it if it is a folder of this machine.

    Otherwise it is in the cache folder, under a name that only the same `staging` gives again.
    """
    is_here = not shared and not bucket_of(address)
    if is_here:
        work = Path(address) / WORK
    else:
        digest = hashlib.sha256(staging.encode()).hexdigest()[:16]
        work = cache_dir() / "presize" / digest
    return Target(open_storage(address), Work(work, private=not is_here), shared)


def note_of(job: str) -> str:
    """The name of the note that the shard of a job is complete."""
    return f"{_NOTE}{job}.json"


def _matches(storage: Storage, entry: StoredObject | None, shard: Shard) -> bool:
    """Whether an object is there with the size and checksum of a shard."""
    if entry is None or entry.size_bytes != shard.bytes:
        return False
    with contextlib.suppress(NotFoundError, InvalidInputError):
        return storage.checksum(entry) == shard.crc32c
    return False


def _listed(storage: Storage, published: Published | None) -> Iterator[FinishedShard]:
    """Yield the shards of a published data set as they were when they were finished."""
    if published is None or published.data_set is None:
        return
    listed = find_entry(storage, QUARANTINE)
    left_out = read_quarantine(storage.read(QUARANTINE)) if listed else {}
    for shard in published.data_set.shards:
        missing = tuple(left_out.get(shard.job, ()))
        if shard.job and len(missing) == shard.quarantined:
            yield FinishedShard(**asdict(shard), left_out=missing)


def _read_notes(storage: Storage) -> list[FinishedShard]:
    names = (entry.name for entry in storage.list(_NOTE))
    notes = [name for name in names if not name.startswith(LEASE)]

    def read(name: str) -> FinishedShard | None:
        with contextlib.suppress(NotFoundError, ValueError):
            return from_plain(FinishedShard, parse_json(storage.read(name)))
        return None

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        return [finished for finished in threads.map(read, notes) if finished is not None]
