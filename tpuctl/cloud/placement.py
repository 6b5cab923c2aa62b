"""What it costs when the data, this machine and the TPU are not in the same region."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import DataDisk
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.runtime.machine import Machine
from tpuctl.units import format_usd

DATA = Path(__file__).parent / "data" / "egress.json"
_TIB_IN_GIB = 1024


@dataclass(frozen=True)
class Source:
    """Something the TPU will read from, and where that is: a region or a multi-region."""

    name: str
    location: str


def find_traffic(
    api: TpuApi, machine: Machine, zones: tuple[str, ...], *, bucket: str | None
) -> tuple[str, ...]:
    """Warn where a TPU would be far from a bucket or from this machine; never raises."""
    sources, notes = [], []
    if bucket:
        address = f"gs://{bucket.removeprefix('gs://').partition('/')[0]}"
        try:
            sources.append(Source(address, api.bucket_location(address.removeprefix("gs://"))))
        except TpuctlError as error:
            notes.append(f"Where {address} is could not be found out: {error}")
    if zone := machine.metadata("instance/zone"):
        sources.append(Source("This machine", region_of(zone.rpartition("/")[2])))
    return (*notes, *traffic_notes(zones, tuple(sources)))


def traffic_notes(zones: tuple[str, ...], sources: tuple[Source, ...]) -> tuple[str, ...]:
    """Warn of every source that some of the zones are far from, with what reading it costs."""
    notes = []
    for source in sources:
        far = sorted({region_of(zone) for zone in zones if is_far(source.location, zone)})
        if not far:
            continue
        usd_per_gib = max(egress_usd_per_gib(source.location, region) for region in far)
        notes.append(
            f"{source.name} is in {source.location}, not in {', '.join(far)}: what the TPU reads "
            f"there is billed as traffic between regions, about {format_usd(usd_per_gib)} a GiB "
            f"({format_usd(usd_per_gib * _TIB_IN_GIB)} a TiB; as of {_data()['as_of']}), and slow."
        )
    return tuple(notes)


def is_far(location: str, zone: str) -> bool:
    """Whether traffic from a region or multi-region to a zone leaves it."""
    region = region_of(zone)
    parts = _data()["made_of"].get(location)
    if parts is None:
        return location != region
    return not any(
        region == part or (part.endswith("-") and region.startswith(part)) for part in parts
    )


def egress_usd_per_gib(location: str, region: str) -> float:
    """What a GiB from one place to another costs, in US dollars; dated, and rounded up."""
    ends = [_part_of_the_world(place) for place in (location, region)]
    return float(next(rate["usd_per_gib"] for rate in _data()["rates"] if _covers(rate, ends)))


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rpartition("-")[0] or zone


def _covers(rate: dict[str, Any], ends: list[str]) -> bool:
    both, one = rate.get("both_in", ends), rate.get("one_in", ends)
    return all(end in both for end in ends) and any(end in one for end in ends)


def _part_of_the_world(location: str) -> str:
    parts = _data()["made_of"].get(location)
    return str(parts[0] if parts else location).partition("-")[0]


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


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
