"""`manifest.json`: what makes a folder a data set, and all that a reader needs to know."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.codec import from_plain, parse_json, read_limited
from tpuctl.datasets.quarantine import QUARANTINE, Quarantined
from tpuctl.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from tpuctl.datasets.plan import Plan

SCHEMA = "tpuctl.dataset/1"
MANIFEST = "manifest.json"
WORK = ".presize"

# The `encode` of a cache, whose records are elements of a pipeline, not images.
ELEMENTS = "elements"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
# The names that presize and cache give to shards; nothing else is ever deleted.
_OUR_NAME = re.compile(
    r"(train|v\d{3,})-\d{5,}-of-\d{5,}-[0-9a-f]{8}\.(tfrecord|tar|arrayrecord)", re.ASCII
)
_ENCODINGS = ("jpeg", "webp", "png", "raw", "yuv420", ELEMENTS)


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
        for name in ("bytes", "records", "salvaged", "quarantined", "bytes_in"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.name} has {getattr(self, name)} {name}")


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
        if repeated := [name for name, n in Counter(s.name for s in self.shards).items() if n > 1]:
            raise ValueError(f"it lists {repeated[0]} more than once")
        _check_options(self.options)

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
        """The command that lists all damage."""
        options = "--deep " if deep else ""
        return f"List all damage: tpuctl data verify {options}{shlex.quote(str(self.folder))}"


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
        data = read_limited(path)
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


def _check_options(options: dict[str, Any]) -> None:
    """Check the types of all that is used without further checks; raises ValueError."""
    if options.get("encode", "jpeg") not in _ENCODINGS:
        raise ValueError(f"its encoding {options['encode']!r} is unknown")
    size = options.get("size", [1, 1])
    is_pair = isinstance(size, list) and [type(side) for side in size] == [int, int]
    if not is_pair or min(size) < 1:
        raise ValueError(f"its size {size!r} is not a height and a width")
    if options.get("encode") == ELEMENTS:
        variants, target = options.get("variants"), options.get("target")
        if type(variants) is not int or variants < 1 or not isinstance(target, str):
            raise ValueError("it has no number of variants or no target")
        _check_structure(options.get("structure"))


def _check_structure(structure: Any) -> None:
    kind = structure.get("kind") if isinstance(structure, dict) else None
    if kind == "leaf" and all(isinstance(structure.get(key), str) for key in ("name", "dtype")):
        return
    items = structure.get("items") if kind in ("dict", "tuple") else None
    if not isinstance(items, dict if kind == "dict" else list):
        raise ValueError("its structure of elements is damaged")
    for item in items.values() if isinstance(items, dict) else items:
        _check_structure(item)


def parse(folder: Path, data: bytes) -> DataSet:
    """Read a manifest from its bytes; raises InvalidInputError."""
    try:
        document = parse_json(data.decode())
        return from_plain(DataSet, {**document, "folder": folder, "document": document})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            f"{folder / MANIFEST} is damaged or not from tpuctl: {error}.",
            hint="Run the tpuctl data presize command that made it again, with --overwrite.",
        ) from error


def is_plain(name: str) -> bool:
    """Whether a name can only mean a file right beside the manifest."""
    return _PLAIN_NAME.fullmatch(name) is not None and name not in (MANIFEST, QUARANTINE)


def is_ours(name: str) -> bool:
    """Whether presize or cache gives such a name: other files that a manifest lists are kept."""
    return _OUR_NAME.fullmatch(name) is not None


def _not_a_data_set(folder: Path) -> NotFoundError:
    if not folder.exists():
        return NotFoundError(f"The folder {folder} does not exist.", hint="Check the path.")
    if (folder / WORK).is_dir():
        return NotFoundError(
            f"The data set in {folder} is not finished.",
            hint="Run the same tpuctl data presize command again; it resumes from there.",
        )
    if folder.name == MANIFEST:
        return NotFoundError(
            f"{folder} is the manifest of a data set.",
            hint=f"Give its folder: {shlex.quote(str(folder.parent))}",
        )
    return NotFoundError(
        f"{folder} is not a data set: it has no {MANIFEST}.",
        hint=f"Make one: tpuctl data presize SRC {shlex.quote(str(folder))}",
    )
