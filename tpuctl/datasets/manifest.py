"""`manifest.json`: what makes a folder a data set, and all that a reader needs to know."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.codec import from_plain
from tpuctl.datasets.quarantine import Quarantined
from tpuctl.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from tpuctl.datasets.plan import Plan

SCHEMA = "tpuctl.dataset/1"
MANIFEST = "manifest.json"
WORK = ".presize"

# The `encode` of a cache, whose records are elements of a pipeline, not images.
ELEMENTS = "elements"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Shard:
    """One file of records, as its manifest describes it."""

    name: str
    bytes: int
    records: int
    crc32c: str
    sha256: str
    first_key: str | None
    last_key: str | None
    salvaged: int = 0
    quarantined: int = 0
    bytes_in: int = 0
    job: str = ""

    def __post_init__(self) -> None:
        if not is_plain(self.name):
            raise ValueError(f"{self.name!r} is not a valid shard name")


@dataclass(frozen=True)
class FinishedShard(Shard):
    """A shard that is complete, with the inputs that were left out of it."""

    left_out: tuple[Quarantined, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "quarantined", len(self.left_out))


@dataclass(frozen=True)
class DataSet:
    """The folder of a data set, and its manifest as read."""

    folder: Path
    schema: str
    plan_id: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    totals: dict[str, int]
    quarantined: dict[str, int]
    shards: tuple[Shard, ...]
    versions: dict[str, str] = field(default_factory=dict)
    document: dict[str, Any] = field(repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"its schema is {self.schema!r}, not {SCHEMA!r}")

    @property
    def encode(self) -> str:
        """How images are stored: jpeg, png, webp, raw or yuv420; `elements` for a cache."""
        return str(self.options.get("encode", "jpeg"))

    @property
    def format(self) -> str:
        """The file format of the shards: tfrecord, wds or arrayrecord."""
        return str(self.options.get("format", "tfrecord"))

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every image; None where images differ in size, and for caches."""
        if self.options.get("mode") == "short" or "size" not in self.options:
            return None
        height, width = self.options["size"]
        return int(height), int(width)

    @property
    def records(self) -> int:
        """How many records the shards hold."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """How large the shards are together."""
        return sum(shard.bytes for shard in self.shards)

    def path(self, shard: Shard) -> Path:
        """Where a shard is."""
        return self.folder / shard.name

    def how_to_verify(self, *, deep: bool = False) -> str:
        """The command that finds everything that is wrong."""
        options = "--deep " if deep else ""
        return f"See all that is wrong: tpuctl data verify {options}{shlex.quote(str(self.folder))}"


_LISTED = tuple(each.name for each in fields(Shard))


def compose(plan: "Plan", shards: Iterable[FinishedShard]) -> dict[str, Any]:
    """Describe a finished data set; nothing here depends on when or where it was made."""
    finished = sorted(shards, key=lambda shard: shard.name)
    reasons = Counter(bad.reason for shard in finished for bad in shard.left_out)
    return {
        "schema": SCHEMA,
        "plan_id": plan.id,
        "options": plan.options,
        "versions": plan.versions,
        "classes": list(plan.classes),
        "totals": {
            "images": sum(shard.records + shard.quarantined for shard in finished),
            "records": sum(shard.records for shard in finished),
            "salvaged": sum(shard.salvaged for shard in finished),
            "quarantined": sum(reasons.values()),
            "bytes_in": sum(shard.bytes_in for shard in finished),
            "bytes_out": sum(shard.bytes for shard in finished),
        },
        "quarantined": dict(sorted(reasons.items())),
        "shards": [{name: getattr(shard, name) for name in _LISTED} for shard in finished],
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


def load_pictures(folder: Path) -> DataSet:
    """Read the manifest of a data set of images; raises NotFoundError and InvalidInputError."""
    data_set = load(folder)
    if data_set.encode == ELEMENTS:
        raise InvalidInputError(
            f"{folder} holds the elements of a pipeline, not images.",
            hint="Read it with tpuctl.data.open_cache.",
        )
    return data_set


def parse(folder: Path, data: bytes) -> DataSet:
    """Read a manifest from its bytes; raises InvalidInputError."""
    try:
        document = json.loads(data.decode())
        return from_plain(DataSet, {**document, "folder": folder, "document": document})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{folder / MANIFEST} is damaged or not from tpuctl: {error}.",
            hint="Run the tpuctl data presize command that made it again, with --overwrite.",
        ) from error


def is_plain(name: str) -> bool:
    """Whether a name can only mean a file right beside the manifest."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _not_a_data_set(folder: Path) -> NotFoundError:
    if not folder.exists():
        return NotFoundError(f"There is no folder {folder}.", hint="Check the path.")
    if (folder / WORK).is_dir():
        return NotFoundError(
            f"The data set in {folder} is not finished.",
            hint="Run the same tpuctl data presize command again; it resumes from there.",
        )
    return NotFoundError(
        f"{folder} is not a data set: there is no {MANIFEST} in it.",
        hint=f"Make one: tpuctl data presize SRC {shlex.quote(str(folder))}",
    )
