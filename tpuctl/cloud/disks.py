"""Data disks: how one is asked for, and where a TPU can have it."""

import re
from collections.abc import Sequence

from tpuctl.cloud.models import DataDisk
from tpuctl.cloud.placement import region_of
from tpuctl.errors import InvalidInputError

_SOURCE = re.compile(r"projects/[^/,=]+/(zones|regions)/(?P<place>[^/,=]+)/disks/(?P<name>[^/,=]+)")
_MODES = {"read-write": False, "read-only": True}


def read_disk(text: str) -> DataDisk:
    """Read `source=PATH[,mode=read-only]`, as gcloud writes it; raises InvalidInputError."""
    words = dict(word.partition("=")[::2] for word in text.split(","))
    source, mode = words.pop("source", ""), words.pop("mode", "read-write")
    if words or mode not in _MODES or not _SOURCE.fullmatch(source):
        raise InvalidInputError(
            f"{text!r} is no data disk.",
            hint="--data-disk source=projects/P/zones/Z/disks/NAME,mode=read-only (or read-write)",
        )
    return DataDisk(source, _MODES[mode])


def name_of(disk: DataDisk) -> str:
    """The name of a disk in its place."""
    return disk.source.rpartition("/")[2]


def why_not_in(zone: str, disks: Sequence[DataDisk]) -> str | None:
    """Why a TPU there cannot have these disks; None where nothing is known against it."""
    for disk in disks:
        read = _SOURCE.search(disk.source)
        if read and read["place"] not in (zone, region_of(zone)):
            return f"its data disk {read['name']} is in {read['place']}"
    return None
