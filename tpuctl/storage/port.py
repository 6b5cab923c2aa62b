"""Whether a bucket lies where a machine is: bytes from elsewhere are slow, and cost money."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tpuctl.clock import Clock
from tpuctl.errors import InvalidInputError, MissingExtraError

_FACTS = Path(__file__).parent / "data" / "locations.json"


@dataclass(frozen=True)
class Location:
    """Where a bucket keeps its bytes: `US-CENTRAL1`, `EU`, `NAM4`; two regions of one's choice."""

    name: str
    regions: tuple[str, ...] = ()

    def holds(self, zone: str) -> bool | None:
        """Whether a zone, `us-central1-a`, is inside; None for a place that is not known here."""
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
    """Say that a bucket is not where the machine is; None where it is, or nobody knows."""
    if location.holds(zone) is not False:
        return None
    place = "+".join(location.regions) or location.name
    return (
        f"{address} is in {place}, this machine in {zone}: every byte between them is slow and is "
        f"charged for. A bucket in {zone.rpartition('-')[0]} costs nothing to read."
    )


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_FACTS.read_text(encoding="utf-8"))
    return facts


_BUCKET = re.compile(r"gs:/+(?P<bucket>[^/]*)(?:/(?P<prefix>.*))?", re.DOTALL)
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_LONGEST_NAME_BYTES = 1024


@dataclass(frozen=True)
class Entry:
    """One object: its name below the address, its size, and which version of it this is.

    `crc32c` is in hexadecimal; None where it would take reading the bytes to know it.
    """

    name: str
    size_bytes: int
    version: str
    crc32c: str | None = None


class Storage(Protocol):
    """Objects below one address. Names are relative, with slashes; raises only TpuctlErrors."""

    @property
    def address(self) -> str:
        """The folder, or `gs://BUCKET/PREFIX`."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object whose name begins like that, in the order of their names."""

    def stat(self, name: str) -> Entry:
        """What is known of an object; raises NotFoundError."""

    def read(
        self,
        name: str,
        *,
        start: int = 0,
        length: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Read an object, or what there is of a range of it; raises NotFoundError.

        What is read as a whole from a bucket has been compared with its crc32c. With `version`,
        AlreadyExistsError says that another one is there now.
        """

    def fetch(self, name: str, path: Path) -> Entry:
        """Copy an object to a file of this machine, checked; raises NotFoundError, WriteError."""

    def create(self, name: str, content: bytes | Path, *, crc32c: str | None = None) -> Entry:
        """Make an object that is not there yet; there with the same bytes already is as good.

        `content` may be a file of this machine; `crc32c` is what its bytes are known to have, and
        InvalidInputError says that they have not. Raises AlreadyExistsError, WriteError.
        """

    def replace(self, entry: Entry, content: bytes | Path, *, crc32c: str | None = None) -> Entry:
        """Replace that very version of an object; raises AlreadyExistsError for another one."""

    def checksum(self, entry: Entry) -> str:
        """The crc32c of an object in hexadecimal; reads it where that is not kept."""

    def delete(self, entry: Entry) -> None:
        """Delete that very version; gone already is as good, another one AlreadyExistsError."""

    def location(self) -> Location | None:
        """Where the bytes are; None for a folder, and where that may not be asked."""


@dataclass(frozen=True)
class Patience:
    """How long to repeat what may work in a moment: waits double from the first to the longest."""

    first_s: float = 0.5
    longest_s: float = 30.0
    total_s: float = 300.0


def open_storage(
    address: str | Path, *, clock: Clock | None = None, patience: Patience | None = None
) -> Storage:
    """Open a folder, or a bucket at `gs://BUCKET/PREFIX`; nothing is asked or made yet.

    Raises InvalidInputError for an address that cannot be, NotLoggedInError, MissingExtraError.
    """
    found = _BUCKET.fullmatch(str(address))
    if found is None:
        from tpuctl.storage.folder import Folder

        return Folder(Path(address))
    bucket, prefix = found["bucket"], (found["prefix"] or "").strip("/")
    if not _BUCKET_NAME.fullmatch(bucket):
        raise InvalidInputError(
            f"{address} names no bucket.", hint="Write gs://BUCKET or gs://BUCKET/FOLDER."
        )
    try:
        from tpuctl.storage._gcs import open_bucket

        return open_bucket(bucket, prefix, clock=clock, patience=patience or Patience())
    except ImportError as error:
        raise MissingExtraError("Using buckets", extra="gcp", module=str(error.name)) from error


def check_name(name: str) -> str:
    """Return a name that any storage can have; raises InvalidInputError for others."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        why = "its parts must not be empty, . or .."
    elif re.search(r"[\x00\r\n]", name):
        why = "it has a line break or a zero in it"
    elif len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME_BYTES:
        why = f"it is longer than {_LONGEST_NAME_BYTES} bytes"
    elif not _is_unicode(name):
        why = "it is no Unicode"
    else:
        return name
    raise InvalidInputError(f"{name!r} cannot be the name of an object: {why}.")


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
