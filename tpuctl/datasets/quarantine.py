"""Images that were left out: why, and the list of them."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tpuctl.codec import from_plain, parse_json, read_limited
from tpuctl.printable import printable

if TYPE_CHECKING:
    from tpuctl.datasets.manifest import FinishedShard

QUARANTINE = "quarantine.jsonl"

Reason = Literal[
    "empty",
    "not_image",
    "truncated",
    "corrupt",
    "bomb",
    "unsupported",
    "crashed_worker",
    "read_error",
]


class BadImageError(Exception):
    """An image that cannot be used; never raised outside the package, but listed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Quarantined:
    """One input that was left out: its path below the source, the reason, what the decoder said."""

    path: str
    reason: Reason
    detail: str = ""
    bytes: int = 0
    sha256: str | None = None


def left_out_of(shards: Iterable["FinishedShard"]) -> tuple[Quarantined, ...]:
    """All that was left out of some shards, by path, in printable text."""
    left_out = (bad for shard in shards for bad in shard.left_out)
    return tuple(
        replace(bad, path=printable(bad.path), detail=printable(bad.detail))
        for bad in sorted(left_out, key=lambda bad: bad.path)
    )


def quarantine_text(shards: Iterable["FinishedShard"]) -> str:
    """Write the list of left-out files, one JSON object per line, by path."""
    lines = []
    left_out = [(bad, shard.job) for shard in shards for bad in shard.left_out]
    for bad, job in sorted(left_out, key=lambda each: each[0].path):
        fields = asdict(bad)
        line = {"key": fields.pop("path"), **fields, "job": job}
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


def read_quarantine(text: bytes) -> dict[str, list[Quarantined]]:
    """Read a list of left-out files, by the job of the shard they are missing from."""
    listed: dict[str, list[Quarantined]] = {}
    for document in parse_lines(text):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            bad = from_plain(Quarantined, {**document, "path": document["key"]})
            listed.setdefault(document["job"], []).append(bad)
    return listed


def quarantine_of(folder: Path) -> dict[str, list[Quarantined]]:
    """Read the list of left-out files of the data set in a folder."""
    try:
        return read_quarantine(read_limited(folder / QUARANTINE))
    except OSError:
        return {}


def parse_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text, one per line; a torn line is skipped."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            document = parse_json(line)
            if isinstance(document, dict):
                yield document
