"""`manifest.json`: the only thing that makes a folder a data set, and all a reader needs."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tpuctl.datasets.models import DataSet, Shard
from tpuctl.datasets.plan import Plan
from tpuctl.datasets.shards.pool.work import Finished
from tpuctl.errors import InvalidInputError, NotFoundError

SCHEMA = "tpuctl.dataset/1"
MANIFEST = "manifest.json"
WORK = ".presize"

# What `encode` says where records are whatever a pipeline gave.
ELEMENTS = "elements"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def compose(plan: Plan, shards: Iterable[Finished]) -> dict[str, Any]:
    """Write down a finished data set; nothing here depends on when or where it was made."""
    finished = sorted(shards, key=lambda shard: shard.name)
    reasons = Counter(bad.reason for shard in finished for bad in shard.left_out)
    return {
        "schema": SCHEMA,
        "plan_id": plan.id,
        "options": plan.options,
        "versions": plan.versions,
        "classes": list(plan.classes),
        "totals": {
            "images": sum(shard.records + len(shard.left_out) for shard in finished),
            "records": sum(shard.records for shard in finished),
            "salvaged": sum(shard.salvaged for shard in finished),
            "quarantined": sum(reasons.values()),
            "bytes_in": sum(shard.bytes_in for shard in finished),
            "bytes_out": sum(shard.bytes for shard in finished),
        },
        "quarantined": dict(sorted(reasons.items())),
        "shards": [_describe(shard) for shard in finished],
    }


def _describe(shard: Finished) -> dict[str, Any]:
    return {
        "name": shard.name,
        "bytes": shard.bytes,
        "records": shard.records,
        "crc32c": shard.crc32c,
        "sha256": shard.sha256,
        "first_key": shard.first_key,
        "last_key": shard.last_key,
        "salvaged": shard.salvaged,
        "quarantined": len(shard.left_out),
        "bytes_in": shard.bytes_in,
        "job": shard.job,
    }


def to_text(document: dict[str, Any]) -> str:
    """Write the manifest so that equal data sets have equal files, in plain ASCII."""
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def load(folder: Path) -> DataSet:
    """Read the manifest of a data set; raises NotFoundError and InvalidInputError."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _not_a_data_set(folder) from None
    except OSError as error:
        raise InvalidInputError(f"Could not read {path}: {error}.") from error
    return parse(folder, data)


def parse(folder: Path, data: bytes) -> DataSet:
    """Understand the manifest of the data set in a folder; raises InvalidInputError."""
    path = folder / MANIFEST
    try:
        return _parse(folder, json.loads(data.decode()))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{path} is damaged or not from tpuctl: {error}.",
            hint="Run the tpuctl data presize command that made it again, with --overwrite.",
        ) from error


def load_pictures(folder: Path) -> DataSet:
    """Read the manifest of a data set of pictures; raises NotFoundError and InvalidInputError."""
    data_set = load(folder)
    if data_set.options.get("encode") == ELEMENTS:
        raise InvalidInputError(
            f"{folder} holds the elements of a pipeline, not pictures.",
            hint="Read it with tpuctl.datasets.open_cache.",
        )
    return data_set


def load_if_there(folder: Path) -> DataSet | None:
    """Read the manifest of a data set, or None where there is none."""
    return load(folder) if (folder / MANIFEST).exists() else None


def load_previous(folder: Path, *, leniently: bool) -> DataSet | None:
    """Read what is there already; `leniently`, a damaged manifest counts as none."""
    try:
        return load_if_there(folder)
    except InvalidInputError:
        if leniently:
            return None
        raise


def is_plain(name: str) -> bool:
    """Whether a name can only mean a file right beside the manifest."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _not_a_data_set(folder: Path) -> NotFoundError:
    if not folder.exists():
        return NotFoundError(f"There is no folder {folder}.", hint="Check the path.")
    if (folder / WORK).is_dir():
        return NotFoundError(
            f"The data set in {folder} is not finished.",
            hint="Run the same tpuctl data presize command again; it goes on from there.",
        )
    return NotFoundError(
        f"{folder} is no data set: there is no {MANIFEST} in it.",
        hint=f"Make one: tpuctl data presize SRC {shlex.quote(str(folder))}",
    )


def _parse(folder: Path, document: Any) -> DataSet:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA!r}")
    shards = tuple(_parse_shard(shard) for shard in document["shards"])
    return DataSet(
        folder=folder,
        plan_id=str(document["plan_id"]),
        options=dict(document["options"]),
        classes=tuple(str(name) for name in document["classes"]),
        totals={name: int(number) for name, number in document["totals"].items()},
        quarantined={name: int(number) for name, number in document["quarantined"].items()},
        shards=shards,
        document=document,
    )


def _parse_shard(shard: Any) -> Shard:
    name = str(shard["name"])
    if not is_plain(name):
        raise ValueError(f"{name!r} cannot be the name of a shard")
    return Shard(
        name=name,
        bytes=int(shard["bytes"]),
        records=int(shard["records"]),
        crc32c=str(shard["crc32c"]),
        sha256=str(shard["sha256"]),
        first_key=shard["first_key"],
        last_key=shard["last_key"],
        job=str(shard.get("job", "")),
        quarantined=int(shard.get("quarantined", 0)),
        salvaged=int(shard.get("salvaged", 0)),
        bytes_in=int(shard.get("bytes_in", 0)),
    )
