"""Scenarios: the zones, their capacity, and the planned faults.

The keys are in `docs/emulator.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.codec import open_regular
from tpuctl.emulator.colab.account import Plan as ColabPlan
from tpuctl.emulator.colab.account import read_plan
from tpuctl.emulator.errors import StorageError, load_data
from tpuctl.emulator.faults import CALLS, CallFault, NodeEvent, StorageFault, read_fault
from tpuctl.emulator.kubernetes.plan import Plan as GkePlan
from tpuctl.emulator.kubernetes.plan import read_plan as read_gke
from tpuctl.emulator.storage.resources import check_bucket_name
from tpuctl.emulator.strict_json import ObjectReader, parse_json
from tpuctl.errors import InvalidInputError, NotFoundError, UsageError
from tpuctl.hardware.types import AcceleratorType, describe, types_by_zone

DEFAULT_CHIPS = 512
DEFAULT_SCALE = 60.0
_ZONE = re.compile(r"[a-z][-a-z0-9]{0,62}")
_LARGEST_BYTES = 1 << 20
# Listed in many zones, but refused to most projects (2026-11-22).
_REFUSED = ("ct5lp-*",)


@dataclass(frozen=True)
class ZonePlan:
    """The capacity of one zone and the quota of each project, in chips."""

    name: str
    types: tuple[str, ...]
    capacity_chips: int
    quota_chips: int
    spot_quota_chips: int
    reserved_chips: int
    machine_types: tuple[str, ...] = ()
    pools: Mapping[str, Mapping[float, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputeQuota:
    """The quota of each project for each generation in one region, in chips."""

    quota_chips: int = DEFAULT_CHIPS
    spot_quota_chips: int = DEFAULT_CHIPS


@dataclass(frozen=True)
class ComputePlan:
    """Compute Engine, except its zones: quotas, refused machine types, slow states."""

    default_quota: ComputeQuota
    regions: Mapping[str, ComputeQuota]
    refused_types: tuple[str, ...]
    external_ip: bool
    single_host_attributes: bool
    pending_delete_s: float | None

    def quota(self, region: str) -> ComputeQuota:
        """Return the quota of a region."""
        return self.regions.get(region, self.default_quota)

    def refuses(self, machine_type: str) -> bool:
        """Whether a machine type needs an allowlist that does not include the project."""
        return any(fnmatchcase(machine_type, pattern) for pattern in self.refused_types)


@dataclass(frozen=True)
class KagglePlan:
    """The Kaggle account: its name, its hours per week, and how long a session is queued."""

    username: str = "practice"
    tpu_hours: float = 20.0
    used_hours: float = 0.0
    queue_s: float = 5.0
    phone_verified: bool = True


@dataclass(frozen=True)
class Scenario:
    """A scenario; `document` is the JSON that it was read from."""

    time_scale: float
    epoch: datetime | None
    project: str | None
    provision_s: float
    delete_s: float
    latency_ms: float
    zones: dict[str, ZonePlan]
    call_faults: tuple[CallFault, ...]
    node_events: tuple[NodeEvent, ...]
    storage_faults: tuple[StorageFault, ...]
    rate_limits_per_minute: dict[str, int]
    buckets: dict[str, str]
    os_login: dict[str, tuple[str, ...]]
    colab: ColabPlan
    kaggle: KagglePlan
    compute: ComputePlan
    gke: GkePlan
    document: Mapping[str, Any] = field(compare=False)

    @property
    def compute_zones(self) -> dict[str, ZonePlan]:
        """The zones of Compute Engine: those whose names begin with a region."""
        return {name: plan for name, plan in self.zones.items() if name.count("-") > 1}


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises NotFoundError, or InvalidInputError with the place."""
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"Scenario file {path} not found.",
            hint="Without --scenario the emulator has every known zone and type, and no faults.",
        ) from error
    except OSError as error:
        raise InvalidInputError(f"Could not read the scenario {path}: {error.strerror}.") from error
    if len(data) > _LARGEST_BYTES:
        raise InvalidInputError(f"The scenario {path} is too large (limit: 1 MiB).")
    return parse_scenario(parse_json(data, path), source=str(path))


def parse_scenario(document: Any, *, source: str = "the scenario") -> Scenario:
    """Read a scenario; raises InvalidInputError with the place of the error."""
    top = ObjectReader(document, source)
    top.allow(
        "time_scale zones provision_s delete_s faults latency_ms rate_limits_per_minute buckets"
        " project epoch os_login colab kaggle compute gke"
    )
    zones = top.object("zones") if "zones" in top else None
    users = top.object("os_login")
    faults = [read_fault(item) for item in top.objects("faults")]
    return Scenario(
        time_scale=top.number("time_scale", DEFAULT_SCALE, above=0, most=1e6),
        epoch=_epoch(top),
        project=top.text("project", "") or None,
        provision_s=top.number("provision_s", 120.0),
        delete_s=top.number("delete_s", 30.0),
        latency_ms=top.number("latency_ms", 0.0, most=60_000),
        zones=_default_zones(source) if zones is None else _zones(zones),
        call_faults=tuple(fault for fault in faults if isinstance(fault, CallFault)),
        node_events=tuple(fault for fault in faults if isinstance(fault, NodeEvent)),
        storage_faults=tuple(fault for fault in faults if isinstance(fault, StorageFault)),
        rate_limits_per_minute=_rates(top.object("rate_limits_per_minute")),
        buckets=_buckets(top.object("buckets")),
        os_login={name: tuple(users.texts(name)) for name in users},
        colab=_colab(top),
        kaggle=_kaggle(top.object("kaggle")),
        compute=_compute(top.object("compute")),
        gke=read_gke(top.object("gke")),
        document=document,
    )


@cache
def known_type(name: str) -> AcceleratorType:
    """Describe an accelerator type; cached, because every request needs one."""
    return describe(name)


def quota_id(generation: str, *, spot: bool) -> str:
    """Return the ID of Google's quota for a generation."""
    entry: dict[str, str] = load_data("service")["generations"][generation]
    return entry["spot_quota" if spot else "quota"]


def _zones(zones: ObjectReader) -> dict[str, ZonePlan]:
    if not list(zones):
        raise zones.error("", "must name at least one zone")
    for name in zones:
        if not _ZONE.fullmatch(name):
            raise zones.error(name, "is not a valid zone name such as us-central1-a")
    return {name: _zone(name, zones.object(name)) for name in zones}


def _zone(name: str, zone: ObjectReader) -> ZonePlan:
    zone.allow(
        "types capacity_chips quota_chips spot_quota_chips reserved_chips machine_types pools"
    )
    quota = zone.count("quota_chips", DEFAULT_CHIPS)
    return ZonePlan(
        name=name,
        types=_types(zone) if "types" in zone else _known_types(name),
        capacity_chips=zone.count("capacity_chips", DEFAULT_CHIPS),
        quota_chips=quota,
        spot_quota_chips=zone.count("spot_quota_chips", quota),
        reserved_chips=zone.count("reserved_chips", 0),
        machine_types=_machine_types(name, zone),
        pools=_pools(zone.object("pools")),
    )


def _pools(pools: ObjectReader) -> dict[str, dict[float, int]]:
    """Read pools: numbers of chips, or maps from a time in seconds to the number from then on."""
    found: dict[str, dict[float, int]] = {}
    for name in pools:
        steps = pools.object(name) if isinstance(pools.value(name), dict) else None
        found[name] = {} if steps else {0: pools.count(name, 0)}
        for at in steps or ():
            if not at.isdecimal():
                raise pools.error(name, f"has {at!r}, which is not a number of seconds")
            found[name][int(at)] = steps.count(at, 0) if steps else 0
    return found


def _machine_types(name: str, zone: ObjectReader) -> tuple[str, ...]:
    """Read the machine types of a zone; by default those of its generations, or all."""
    known = load_data("compute")["machine_types"]
    if "machine_types" in zone:
        chosen = tuple(zone.texts("machine_types"))
        for index, text in enumerate(chosen):
            if text not in known:
                names = ", ".join(known)
                raise zone.error(f"machine_types[{index}]", f"is not one of {names}")
        return chosen
    here = {known_type(text).generation for text in types_by_zone().get(name, ())}
    return tuple(text for text, row in known.items() if not here or row["generation"] in here)


def _compute(part: ObjectReader) -> ComputePlan:
    part.allow(
        "quota_chips spot_quota_chips regions refused_types external_ip single_host_attributes"
        " pending_delete_s"
    )
    regions, default_quota = part.object("regions"), _compute_quota(part, ComputeQuota())
    for name in regions:
        regions.object(name).allow("quota_chips spot_quota_chips")
    slow = part.number("pending_delete_s", 0.0) if "pending_delete_s" in part else None
    return ComputePlan(
        default_quota=default_quota,
        regions={name: _compute_quota(regions.object(name), default_quota) for name in regions},
        refused_types=tuple(part.texts("refused_types")) if "refused_types" in part else _REFUSED,
        external_ip="external_ip" not in part or part.flag("external_ip"),
        single_host_attributes=part.flag("single_host_attributes"),
        pending_delete_s=slow,
    )


def _compute_quota(part: ObjectReader, default_quota: ComputeQuota) -> ComputeQuota:
    chips = part.count("quota_chips", default_quota.quota_chips)
    return ComputeQuota(chips, part.count("spot_quota_chips", default_quota.spot_quota_chips))


def _types(zone: ObjectReader) -> tuple[str, ...]:
    found = []
    for index, text in enumerate(zone.texts("types")):
        try:
            known = known_type(text)
        except UsageError as error:
            raise zone.error(f"types[{index}]", f"is not an accelerator type: {error}") from error
        if known.generation not in load_data("service")["generations"]:
            raise zone.error(f"types[{index}]", f"is {text}, which the Cloud TPU API does not have")
        found.append(known.accelerator_type)
    return tuple(dict.fromkeys(found))


def _known_types(zone: str) -> tuple[str, ...]:
    """Return the types of the real zone; for a made-up zone, all types."""
    by_zone = types_by_zone()
    names = by_zone.get(zone) or dict.fromkeys(name for names in by_zone.values() for name in names)
    generations = load_data("service")["generations"]
    return tuple(name for name in names if known_type(name).generation in generations)


def _default_zones(source: str) -> dict[str, ZonePlan]:
    plans = _zones(ObjectReader({zone: {} for zone in types_by_zone()}, source))
    return {name: plan for name, plan in plans.items() if plan.types}


def _rates(rates: ObjectReader) -> dict[str, int]:
    for name in rates:
        if name not in CALLS:
            raise rates.error(name, f"is not a known method; known methods: {', '.join(CALLS)}")
    return {name: rates.count(name, 0, least=1) for name in rates}


def _buckets(buckets: ObjectReader) -> dict[str, str]:
    found = {}
    for name in buckets:
        try:
            check_bucket_name(name)
        except StorageError as error:
            raise buckets.error(name, "is not a valid bucket name") from error
        bucket = buckets.object(name)
        bucket.allow("location")
        found[name] = bucket.text("location", "US").upper()
    return found


def _colab(top: ObjectReader) -> ColabPlan:
    part = top.object("colab")
    try:
        return read_plan({name: part.value(name) for name in part})
    except (TypeError, ValueError) as error:
        raise top.error("colab", f"cannot be read: {error}") from error


def _kaggle(account: ObjectReader) -> KagglePlan:
    account.allow("username tpu_hours used_hours queue_s phone_verified")
    default_quota = KagglePlan()
    return KagglePlan(
        username=account.text("username", default_quota.username),
        tpu_hours=account.number("tpu_hours", default_quota.tpu_hours),
        used_hours=account.number("used_hours", default_quota.used_hours),
        queue_s=account.number("queue_s", default_quota.queue_s),
        phone_verified="phone_verified" not in account or account.flag("phone_verified"),
    )


def _epoch(top: ObjectReader) -> datetime | None:
    if not (text := top.text("epoch", "")):
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise top.error("epoch", f"is not a date such as 2026-11-20T09:00:00Z: {text!r}") from error
    if not 1970 <= moment.year < 3000:
        raise top.error("epoch", f"must be between 1970 and 2999, not {text!r}")
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
