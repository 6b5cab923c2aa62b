"""Compute Engine's quotas of TPU chips, read from the answers of the Cloud Quotas API."""

from collections.abc import Iterable, Iterator
from typing import Any

from tpuctl.cloud.models import Quota
from tpuctl.hardware.compute_engine import Hardware, hardware_of
from tpuctl.hardware.types import load_data

Json = dict[str, Any]


def quotas_of(infos: Iterable[Json]) -> tuple[Quota, ...]:
    """Read the quotas of chips; a generation without a value in a region has none there."""
    return tuple(quota for info in infos for quota in _quotas(info))


def _quotas(info: Json) -> Iterator[Quota]:
    quota_id = str(info.get("quotaId", ""))
    if "-per-project-" not in quota_id:
        return
    for name in load_data("compute_engine")["generations"]:
        hardware = hardware_of(name)
        for model in ("on_demand", "spot"):
            if hardware and quota_id.startswith(hardware.quota[model][0]):
                yield from _places(info, quota_id, name, hardware, model)


def _places(
    info: Json, quota_id: str, generation: str, hardware: Hardware, model: str
) -> Iterator[Quota]:
    family = next(iter(hardware.quota[model][1:]), None)
    entries = [
        entry
        for entry in info.get("dimensionsInfos") or ()
        if (entry.get("dimensions") or {}).get("tpu_family") in (family, None)
    ]
    named = {place for entry in entries if (place := _place(entry))}
    for entry in entries:
        # A value of 0 is left out of JSON, as are all defaults.
        limit = int((entry.get("details") or {}).get("value") or 0)
        place = _place(entry)
        others = sorted(set(entry.get("applicableLocations") or ()) - named)
        for where in [place] if place else others:
            if limit >= 0:
                yield Quota(quota_id, generation, model == "spot", where, limit, "chips")


def _place(entry: Json) -> str:
    dimensions = entry.get("dimensions") or {}
    return str(dimensions.get("zone") or dimensions.get("region") or "")
