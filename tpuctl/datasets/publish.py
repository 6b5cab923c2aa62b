"""Which shards of a data set are complete at its target, whoever made them.

A shard is complete when a note says so, or a manifest, and the object is there with the size and
checksum of the note. Notes and shards have names of their content, so hosts may write them twice.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.models import DataSet, Shard
from tpuctl.datasets.plan import Plan
from tpuctl.datasets.reuse import finished_of
from tpuctl.datasets.shards.work import QUARANTINE, Finished, read_quarantine
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tpuctl.storage.port import Entry, Storage

_NOTE = ".presize-"
_REPLACED = f"{_NOTE}replaced.json"
LEASE = f"{_NOTE}lease-"
_CONNECTIONS = 16


@dataclass(frozen=True)
class Published:
    """A manifest that is there: which version of it, and what it says where it can be read."""

    entry: Entry
    data_set: DataSet | None

    def has(self, plan_id: str) -> bool:
        """Whether it is the manifest of that plan."""
        return self.data_set is not None and self.data_set.plan_id == plan_id


@dataclass(frozen=True)
class Contents:
    """A data set whose shards are in their place: its manifest, and the list of what it lacks."""

    plan_id: str
    manifest: bytes
    shards: frozenset[str]
    left_out: bytes = b""


def find_published(storage: Storage, *, leniently: bool) -> Published | None:
    """The manifest at an address, None where there is none; a missing bucket is an error.

    `leniently`, one that cannot be read counts as a manifest of nothing.
    """
    while entry := find_entry(storage, manifest.MANIFEST):
        try:
            data = storage.read(manifest.MANIFEST, version=entry.version)
            return Published(entry, manifest.parse(Path(storage.address), data))
        except (AlreadyExistsError, NotFoundError):
            continue  # It was written anew since we looked.
        except InvalidInputError:
            if leniently:
                return Published(entry, None)
            raise
    return None


def find_entry(storage: Storage, name: str) -> Entry | None:
    """An object by its name, None where there is none."""
    return next((entry for entry in storage.list(name) if entry.name == name), None)


def complete_shards(storage: Storage, plan: Plan, *, retry: bool) -> dict[str, Finished]:
    """The shards of a plan that are there, by job; with `retry`, only those that lack nothing."""
    # Whoever concludes writes the manifest before it deletes the notes: look the other way round.
    notes = _read_notes(storage)
    published = find_published(storage, leniently=True)
    known = {shard.job: shard for shard in (*_listed(storage, published), *notes)}
    wanted = {job.id for job in plan.jobs}
    there = {entry.name: entry for entry in storage.list("train-")} if known else {}
    return {
        job: shard
        for job, shard in known.items()
        if job in wanted
        and not (retry and shard.left_out)
        and _is_whole(storage, shard, there.get(shard.name))
    }


def commit(storage: Storage, finished: Finished, shard: Path) -> None:
    """Put a shard in its place, then the note that it is there; raises as `Storage.create`."""
    storage.create(finished.name, shard, crc32c=finished.crc32c)
    put(storage, note_of(finished.job), finished.to_json().encode())


def put(storage: Storage, name: str, content: bytes) -> Entry | None:
    """Write an object in the place of whatever is there; gives it where nothing was."""
    while True:
        with contextlib.suppress(AlreadyExistsError):
            return storage.create(name, content)
        with contextlib.suppress(AlreadyExistsError, NotFoundError):
            storage.replace(storage.stat(name), content)
            return None


def publish(storage: Storage, new: Contents, before: Published | None) -> None:
    """Write the manifest of a data set, in the place of the one that was there before.

    Raises AlreadyExistsError where somebody else was first with another data set; what is there is
    then theirs.
    """
    listed = put(storage, QUARANTINE, new.left_out) if new.left_out else None
    try:
        while not _write_manifest(storage, new, before):
            continue
    except AlreadyExistsError:
        if listed:
            storage.delete(listed)
        raise
    if not new.left_out and (old := find_entry(storage, QUARANTINE)):
        storage.delete(old)
    clean_up(storage, new.shards)


def _write_manifest(storage: Storage, new: Contents, before: Published | None) -> bool:
    """Write it unless the data set is another one now; False where somebody wrote meanwhile."""
    now = find_published(storage, leniently=True)
    is_ours = now is None or now.has(new.plan_id)
    if now and not is_ours and not (before and before.entry.version == now.entry.version):
        raise AlreadyExistsError(
            f"Somebody else has made another data set in {storage.address} in the meantime.",
            hint="Choose another target, or replace it with --overwrite.",
        )
    _note_replaced(storage, now, new.shards)
    with contextlib.suppress(AlreadyExistsError):
        if now:
            storage.replace(now.entry, new.manifest)
        else:
            storage.create(manifest.MANIFEST, new.manifest)
        return True
    return False


def _note_replaced(storage: Storage, before: Published | None, keep: Collection[str]) -> None:
    """Write down which shards a new manifest will leave without a data set."""
    old = before.data_set.shards if before and before.data_set else ()
    if names := sorted({shard.name for shard in old} - set(keep)):
        put(storage, _REPLACED, json.dumps(names).encode())


def clean_up(storage: Storage, keep: Collection[str]) -> None:
    """Delete the notes, for the manifest says it all, and the shards that were replaced."""
    notes = list(storage.list(_NOTE))
    if any(entry.name == _REPLACED for entry in notes):
        with contextlib.suppress(NotFoundError, ValueError):
            for name in json.loads(storage.read(_REPLACED)):
                if manifest.is_plain(name) and name not in keep:
                    _delete(storage, name)
    for entry in notes:
        try:
            storage.delete(entry)
        except AlreadyExistsError:
            # A lease that was renewed meanwhile: whoever holds it gives it back.
            if not entry.name.startswith(LEASE):
                raise


def _delete(storage: Storage, name: str) -> None:
    with contextlib.suppress(NotFoundError):
        storage.delete(storage.stat(name))


def note_of(job: str) -> str:
    """The name of the note that the shard of a job is complete."""
    return f"{_NOTE}{job}.json"


def _listed(storage: Storage, published: Published | None) -> Iterator[Finished]:
    if published is not None and published.data_set is not None:
        listed = find_entry(storage, QUARANTINE)
        left_out = read_quarantine(storage.read(QUARANTINE)) if listed else {}
        yield from finished_of(published.data_set, left_out)


def _read_notes(storage: Storage) -> list[Finished]:
    names = (entry.name for entry in storage.list(_NOTE))
    notes = [name for name in names if not name.startswith(LEASE)]
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        found = threads.map(lambda name: _read_note(storage, name), notes)
        return [finished for finished in found if finished is not None]


def _read_note(storage: Storage, name: str) -> Finished | None:
    with contextlib.suppress(NotFoundError, ValueError, KeyError, TypeError):
        document = json.loads(storage.read(name))
        return Finished.from_json(document) if isinstance(document, dict) else None
    return None


def are_whole(storage: Storage, shards: Sequence[Shard]) -> bool:
    """Whether all shards of a manifest are there with the size and checksum that it says."""
    there = {entry.name: entry for entry in storage.list()}
    return all(_is_whole(storage, shard, there.get(shard.name)) for shard in shards)


def _is_whole(storage: Storage, shard: Finished | Shard, entry: Entry | None) -> bool:
    return (
        entry is not None
        and entry.size_bytes == shard.bytes
        and storage.checksum(entry) == shard.crc32c
    )


def in_order(plan: Plan, shards: dict[str, Finished]) -> Sequence[Finished] | None:
    """All shards of a plan in the order of their names; None while some are missing."""
    if any(job.id not in shards for job in plan.jobs):
        return None
    return sorted((shards[job.id] for job in plan.jobs), key=lambda shard: shard.name)
