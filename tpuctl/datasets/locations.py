"""Sources and targets of data: folders on this machine, and buckets."""

import os
import re
from pathlib import Path

from tpuctl.errors import InvalidInputError, UsageError, WriteError
from tpuctl.storage import open_storage
from tpuctl.storage.port import warning_of

_BUCKET = re.compile(r"gs:/+")


def check_locations(src: str | Path, dst: str | Path) -> tuple[str, str]:
    """Return both: folders free of links, addresses of buckets in full.

    Raises UsageError and WriteError for an impossible target.
    """
    source = bucket_of(src) or os.path.realpath(src)
    target = bucket_of(dst) or str(local_target(dst))
    if f"{target}/".startswith(f"{source.rstrip('/')}/"):
        raise UsageError(
            f"The target {dst} is inside the source {src}: the next run would read it.",
            hint="Choose a target outside the source.",
        )
    return source, target


def local_target(dst: str | Path) -> Path:
    """Return the folder to make, free of links; raises InvalidInputError and WriteError."""
    if bucket := bucket_of(dst):
        raise InvalidInputError(
            f"tpuctl cannot write to {bucket}: DST has to be a folder on this machine.",
            hint=f"Write to a local folder, then: gcloud storage cp -r FOLDER {bucket}",
        )
    target = Path(os.path.realpath(dst))
    if target.exists() and not target.is_dir():
        raise WriteError(f"{dst} is a file; a data set is a folder.", hint="Choose another target.")
    return target


def bucket_of(place: str | Path) -> str | None:
    """Return the address of a bucket in full, since a Path keeps one slash of two; else None."""
    text = str(place)
    return _BUCKET.sub("gs://", text, count=1).rstrip("/") if _BUCKET.match(text) else None


def warn_far_away(source: str, target: str, zone: str | None) -> tuple[str, ...]:
    """Warn about buckets that are not in the region of this machine, or of its TPU."""
    if zone is None:
        return ()
    storages = [open_storage(place) for place in (source, target) if bucket_of(place)]
    placed = [(storage.address, storage.location()) for storage in storages]
    warnings = (warning_of(address, place, zone) for address, place in placed if place)
    return tuple(warning for warning in warnings if warning)
