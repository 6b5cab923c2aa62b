"""Check that a data set matches its manifest, if wanted down to every pixel."""

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from tpuctl.datasets import manifest
from tpuctl.datasets.formats import open_container, suffix_of
from tpuctl.datasets.formats.records import DamagedRecordError, decode_example
from tpuctl.datasets.local_copies import local_copy
from tpuctl.datasets.manifest import DataSet, Shard
from tpuctl.datasets.models import Damage, VerifyResult
from tpuctl.datasets.quarantine import QUARANTINE, quarantine_of
from tpuctl.datasets.reading import Record, need_images_extra, to_record
from tpuctl.errors import InvalidInputError
from tpuctl.printable import printable
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.storage import open_storage

_MOST_PER_SHARD = 20


def verify(
    dst: str | Path, *, deep: bool = False, on_progress: OnProgress = silent
) -> VerifyResult:
    """Compare every byte with the manifest's checksums; `deep` decodes every record as well.

    Raises NotFoundError and InvalidInputError when there is no manifest to compare with; damage is
    a result.
    """
    need_images_extra()
    with local_copy(dst, on_progress=on_progress) as folder:
        started_s = time.monotonic()
        data_set = manifest.load(folder)
        count = len(data_set.shards)
        maker = "tpuctl data presize SRC"
        if data_set.encode == manifest.ELEMENTS:
            maker = f"tpuctl data cache {shlex.quote(str(data_set.options['target']))}"
        damage = list(_check_totals(data_set))
        for number, shard in enumerate(data_set.shards):
            on_progress(Progress("verify", number, count, "shards", shard.name))
            damage += _check_shard(data_set, shard, deep=deep)
        on_progress(Progress("verify", count, count, "shards"))
        return VerifyResult(
            path=str(dst),
            plan_id=data_set.plan_id,
            depth="records" if deep else "bytes",
            shards=count,
            records=data_set.records,
            bytes=data_set.bytes,
            damage=tuple(damage),
            seconds=time.monotonic() - started_s,
            foreign=_foreign(dst, data_set),
            maker=maker,
        )


def _check_totals(data_set: DataSet) -> Iterator[Damage]:
    """Compare the manifest with itself and with the list of left-out files."""
    totals, shards = data_set.totals, data_set.shards
    if not shards:
        yield Damage(manifest.MANIFEST, "manifest", "it lists no shards")
    sums = {
        "records": data_set.records,
        "bytes_out": data_set.bytes,
        "images": sum(shard.records + shard.quarantined for shard in shards),
        "quarantined": sum(data_set.quarantined.values()),
    }
    for name, total in sums.items():
        if totals.get(name) != total:
            detail = f"totals.{name} is {totals.get(name)}, its parts add up to {total}"
            yield Damage(manifest.MANIFEST, "manifest", detail)
    listed = quarantine_of(data_set.folder)
    for shard in shards:
        found = len(listed.get(shard.job, ()))
        if found != shard.quarantined:
            detail = f"{found} lines for {shard.name}, the manifest counts {shard.quarantined}"
            yield Damage(QUARANTINE, "quarantine", detail)


def _check_shard(data_set: DataSet, shard: Shard, *, deep: bool) -> list[Damage]:
    from tpuctl.datasets.formats._tfrecord import digest_file

    path = data_set.path(shard)
    try:
        if path.is_symlink():
            return [Damage(shard.name, "unreadable", "a link, not a file of this data set")]
        size = path.stat().st_size
        found = []
        if size != shard.bytes:
            found.append(Damage(shard.name, "size", f"{size} bytes, should be {shard.bytes}"))
            if not deep:
                return found
        digest = digest_file(path)
    except FileNotFoundError:
        return [Damage(shard.name, "missing", "the file is not there")]
    except OSError as error:
        return [Damage(shard.name, "unreadable", error.strerror or str(error))]
    for name in ("crc32c", "sha256"):
        is_now, should_be = getattr(digest, name), getattr(shard, name)
        if is_now != should_be:
            found.append(Damage(shard.name, name, f"{is_now}, should be {should_be}"))
    return found + (_check_records(data_set, shard, path) if deep else [])


def _check_records(data_set: DataSet, shard: Shard, path: Path) -> list[Damage]:
    """Decode every record; compare count, keys, labels and sizes with the manifest."""
    found: list[Damage] = []
    keys: list[str] = []
    container = open_container(data_set.format, data_set.encode)
    try:
        for offset, data in container.read(path):
            key, complaint = _examine(data_set, data)
            if complaint:
                detail = f"record {len(keys)} at byte {offset}: {complaint}"
                found.append(Damage(shard.name, "record", detail))
            keys.append(key)
    except DamagedRecordError as error:
        found.append(Damage(shard.name, "record", f"record {len(keys)}: {error}"))
    except OSError as error:
        found.append(Damage(shard.name, "unreadable", error.strerror or str(error)))
    if len(found) > _MOST_PER_SHARD:
        rest = f"{len(found) - _MOST_PER_SHARD} more damaged records"
        found = [*found[:_MOST_PER_SHARD], Damage(shard.name, "record", rest)]
    return found + _check_keys(shard, keys)


def _examine(data_set: DataSet, data: bytes) -> tuple[str, str | None]:
    """Return a record's key, as far as it has one, and what is wrong with the record."""
    key = ""
    try:
        features = decode_example(data)
        key = os.fsdecode(features.get("key", b""))  # type: ignore[arg-type]
        if data_set.encode != manifest.ELEMENTS:
            return key, _complain(data_set, to_record(features, data_set))
        from tpuctl.datasets._elements import rebuild

        rebuild(features, data_set.options["structure"])
    except (InvalidInputError, ValueError, KeyError, TypeError) as error:
        return key, printable(str(error))
    return key, None


def _check_keys(shard: Shard, keys: list[str]) -> list[Damage]:
    if len(keys) != shard.records:
        detail = f"{len(keys)} readable records, should be {shard.records}"
        return [Damage(shard.name, "count", detail)]
    ends = (keys[0], keys[-1]) if keys else (None, None)
    if ends != (shard.first_key, shard.last_key):
        return [Damage(shard.name, "keys", "the first or the last key is not the manifest's")]
    return []


def _complain(data_set: DataSet, record: Record) -> str | None:
    """Say what is wrong with a record that could be parsed, if anything; may raise."""
    classes = len(data_set.classes)
    if not (0 <= record.label < classes if classes else record.label == -1):
        return f"label {record.label} with {classes} classes"
    height, width, _ = record.array().shape
    mode, size = data_set.options.get("mode"), data_set.options.get("size")
    if mode == "short":
        if isinstance(size, list) and min(height, width) != size[0]:
            return f"{height}x{width}, the shorter side should be {size[0]}"
    elif [height, width] != size:
        return f"{height}x{width}, should be {size}"
    return None


def _foreign(dst: str | Path, data_set: DataSet) -> tuple[str, ...]:
    """Name the shards beside a data set that are not of it."""
    listed = {shard.name for shard in data_set.shards}
    suffix = suffix_of(data_set.format)
    there = (entry.name for entry in open_storage(dst).list())
    return tuple(
        printable(name)
        for name in there
        if name.endswith(suffix) and "/" not in name and name not in listed
    )
