"""The moment a data set comes into being: shards first, the manifest last, in one rename."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.models import DataSet
from tpuctl.datasets.plan import Plan
from tpuctl.datasets.state import QUARANTINE, Finished, Work, quarantine_text
from tpuctl.storage.local import publish, sync_folder, translated_write_errors, write_atomically


def publish_data_set(
    folder: Path, work: Work, plan: Plan, shards: Sequence[Finished], previous: DataSet | None
) -> None:
    """Turn finished shards into the data set of this folder; raises WriteError.

    A kill at any moment leaves the previous data set, or none, or the new one; running it again
    completes the step.
    """
    _claim(work, [shard.name for shard in shards], previous)
    with translated_write_errors(folder / manifest.MANIFEST):
        for shard in shards:
            with contextlib.suppress(FileNotFoundError):
                os.replace(work.shard(shard.job), folder / shard.name)
        sync_folder(folder)
    left_out = quarantine_text(shards)
    if left_out:
        _put(folder / QUARANTINE, left_out, work)
    _put(folder / manifest.MANIFEST, manifest.to_text(manifest.compose(plan, shards)), work)
    if not left_out:
        with translated_write_errors(folder / QUARANTINE):
            (folder / QUARANTINE).unlink(missing_ok=True)
    clean_up(folder, work, keep=(shard.name for shard in shards))


def clean_up(folder: Path, work: Work, *, keep: Iterable[str]) -> None:
    """Delete what a finished publication leaves behind, and only that; raises WriteError."""
    superfluous = _claimed(work) - set(keep)
    with translated_write_errors(folder):
        for name in superfluous:
            (folder / name).unlink(missing_ok=True)
    work.remove()


def _put(path: Path, text: str, work: Work) -> None:
    """Write a file where a kill leaves nothing beside it, then give it its place."""
    part = work.folder / path.name
    write_atomically(part, text)
    publish(part, path)


def _claim(work: Work, names: Sequence[str], previous: DataSet | None) -> None:
    """Write down which files here are ours before any of them can become an orphan."""
    old = {shard.name for shard in previous.shards} if previous else set()
    write_atomically(work.claims, json.dumps(sorted(_claimed(work) | old | set(names))))


def _claimed(work: Work) -> set[str]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return {name for name in json.loads(work.claims.read_text()) if manifest.is_plain(name)}
    return set()
