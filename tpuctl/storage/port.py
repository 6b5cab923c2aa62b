"""The storage port: the same few operations on local folders and Cloud Storage buckets."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tpuctl.errors import InvalidInputError

_FACTS = Path(__file__).parent / "data" / "locations.json"


@dataclass(frozen=True)
class Location:
    """A bucket's location: `US-CENTRAL1`, `EU`, `NAM4`, or a configured pair of regions."""

    name: str
    regions: tuple[str, ...] = ()

    def holds(self, zone: str) -> bool | None:
        """Whether the location contains a zone such as `us-central1-a`; None if unknown."""
        region = zone.rpartition("-")[0].lower()
        if self.regions:
            return region in {name.lower() for name in self.regions}
        facts = _facts()
        if wide := facts["multi_regions"].get(self.name.upper()):
            return region.startswith(tuple(wide["prefixes"])) and region not in wide["except"]
        if pair := facts["dual_regions"].get(self.name.upper()):
            return region in pair
        return region == self.name.lower() if "-" in self.name else None


def warning_of(address: str, location: Location, zone: str) -> str | None:
    """Return a warning if a bucket is in another region than the machine, None if unknown."""
    if location.holds(zone) is not False:
        return None
    place = "+".join(location.regions) or location.name
    return (
        f"{address} is in {place}, this machine in {zone}: transfers between them are slow and "
        f"billed. Reading from a bucket in {zone.rpartition('-')[0]} is free."
    )


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_FACTS.read_text(encoding="utf-8"))
    return facts


_LONGEST_NAME_BYTES = 1024


@dataclass(frozen=True)
class StoredObject:
    """One object: its name below the address, its size and its version.

    `crc32c` is hexadecimal, or None if computing it would mean reading the object.
    """

    name: str
    size_bytes: int
    version: str
    crc32c: str | None = None


class Storage(Protocol):
    """Objects below one address; names are relative, with slashes. Raises only TpuctlErrors."""

    @property
    def address(self) -> str:
        """The folder or `gs://BUCKET/PREFIX`."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """List objects by name prefix, sorted by name."""

    def stat(self, name: str) -> StoredObject:
        """Return an object's size and version; raises NotFoundError."""

    def read(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Read an object or a range of it, cut at its end; raises NotFoundError.

        Objects read whole from a bucket are verified with their crc32c. With `version`, raises
        AlreadyExistsError if the object has another version now.
        """

    def fetch(self, name: str, path: Path) -> StoredObject:
        """Copy an object to a local file, verified; raises NotFoundError, WriteError."""

    def write(
        self,
        name: str,
        content: bytes | Path,
        *,
        over: StoredObject | None = None,
        crc32c: str | None = None,
        move: bool = False,
    ) -> StoredObject:
        """Create an object, or replace the version `over` of it.

        `content` may be a local file. Raises InvalidInputError if it does not have the given
        `crc32c`, WriteError, and AlreadyExistsError if another version is there now; one with the
        same bytes is fine. With `move`, the caller no longer needs that file: a folder on the same
        disk renames it instead of copying it.
        """

    def checksum(self, entry: StoredObject) -> str:
        """Return the crc32c of an object as hexadecimal, reading the object if necessary."""

    def delete(self, entry: StoredObject) -> None:
        """Delete this version, if it still exists; raises AlreadyExistsError if another does."""

    def location(self) -> Location | None:
        """Return the bucket's location; None for a folder or without permission."""


def check_name(name: str) -> str:
    """Return the name if every storage accepts it; raises InvalidInputError otherwise."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        why = "its parts must not be empty, . or .."
    elif re.search(r"[\x00\r\n]", name):
        why = "it contains a line break or a null byte"
    elif re.search(r"[\ud800-\udfff]", name):
        why = "it is not valid Unicode"
    elif len(name.encode()) > _LONGEST_NAME_BYTES:
        why = f"it is longer than {_LONGEST_NAME_BYTES} bytes"
    else:
        return name
    raise InvalidInputError(f"{name!r} is not a valid object name: {why}.")
