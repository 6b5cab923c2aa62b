"""A scenario: which zones there are, what they hold, and what goes wrong when.

The keys are in `docs/emulator.md`. Whatever is not understood is refused, with its place.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.emulator.methods import METHODS
from tpuctl.emulator.reading import Reader
from tpuctl.emulator.refusals import load_data
from tpuctl.emulator.storage.faults import STORAGE_METHODS, StorageFault, read_fault
from tpuctl.errors import InvalidInputError, NotFoundError, UsageError
from tpuctl.hardware.types import AcceleratorType, describe, types_by_zone
from tpuctl.storage.local import open_regular

ERRORS = (
    "stockout", "quota", "rate_limit", "permission", "unavailable", "internal", "not_found",
    "already_exists", "deadline", "api_disabled", "zone_hidden", "reservation", "busy",
)  # fmt: skip
EVENTS = ("preempt", "vanish", "maintenance", "worker_down", "worker_busy", "suspend")

DEFAULT_CHIPS = 512
DEFAULT_SCALE = 60.0
_ZONE = re.compile(r"[a-z][-a-z0-9]{0,62}")
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class ZonePlan:
    """What one zone has, and what each project may have of it, in chips."""

    name: str
    types: tuple[str, ...]
    capacity_chips: int
    quota_chips: int
    spot_quota_chips: int
    reserved_chips: int


@dataclass(frozen=True)
class CallFault:
    """An error planned for the nth call of a method, and for every nth after it with `every`.

    It is the reply (`where` "rpc"), the reply although the work is done (`after_accept`), or the
    end of the operation `after_s` seconds later (`where` "operation").
    """

    on: str
    zone: str
    name: str
    nth: int
    every: bool
    error: str
    where: str
    after_s: float
    after_accept: bool


@dataclass(frozen=True)
class NodeEvent:
    """What happens to the nth node of a name, `at_s` seconds after its creation was accepted."""

    zone: str
    name: str
    event: str
    at_s: float
    nth: int
    every: bool
    worker: int
    for_s: float
    duty_cycle_percent: float | None = None


@dataclass(frozen=True)
class Scenario:
    """A whole scenario; `document` is the JSON it was read from."""

    time_scale: float
    epoch: datetime | None
    project: str | None
    provision_s: float
    delete_s: float
    latency_ms: float
    zones: dict[str, ZonePlan]
    faults: tuple[CallFault | NodeEvent, ...]
    storage_faults: tuple[StorageFault, ...]
    rate_limits_per_minute: dict[str, int]
    buckets: dict[str, str]
    os_login: dict[str, tuple[str, ...]]
    document: Mapping[str, Any] = field(compare=False)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises NotFoundError, or InvalidInputError that names the place."""
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no scenario file {path}.",
            hint="Without --scenario there is every known zone and type, and no fault.",
        ) from error
    except OSError as error:
        raise InvalidInputError(f"Could not read the scenario {path}: {error.strerror}.") from error
    if len(data) > _LARGEST_BYTES:
        raise InvalidInputError(f"The scenario {path} is larger than a scenario can be (1 MiB).")
    return parse_scenario(parse_json(data, str(path)), source=str(path))


def parse_json(data: bytes, source: str) -> Any:
    """Read strict JSON: no repeated keys, no NaN; raises InvalidInputError."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"Could not read the scenario {source}: {error}.") from error


def parse_scenario(document: Any, *, source: str = "the scenario") -> Scenario:
    """Understand a scenario; raises InvalidInputError that names the place."""
    top = Reader(document, source)
    top.allow(
        "time_scale zones provision_s delete_s faults latency_ms rate_limits_per_minute buckets"
        " project epoch os_login"
    )
    zones = top.object("zones") if top.has("zones") else None
    faults = [_fault(item) for item in top.objects("faults")]
    return Scenario(
        time_scale=top.number("time_scale", DEFAULT_SCALE, above=0, most=1e6),
        epoch=_epoch(top),
        project=top.text("project", None),
        provision_s=top.number("provision_s", 120.0),
        delete_s=top.number("delete_s", 30.0),
        latency_ms=top.number("latency_ms", 0.0, most=60_000),
        zones=_default_zones() if zones is None else _zones(zones),
        faults=tuple(fault for fault in faults if not isinstance(fault, StorageFault)),
        storage_faults=tuple(fault for fault in faults if isinstance(fault, StorageFault)),
        rate_limits_per_minute=_rates(top.object("rate_limits_per_minute")),
        buckets=_buckets(top.object("buckets")),
        os_login=_os_login(top.object("os_login")),
        document=document,
    )


@cache
def known_type(name: str) -> AcceleratorType:
    """Describe a type that a scenario has; asked for again and again, so remembered."""
    return describe(name)


def quota_id(generation: str, *, spot: bool) -> str:
    """The id under which Google's quota of a generation is known."""
    entry: dict[str, str] = load_data("service")["generations"][generation]
    return entry["spot_quota" if spot else "quota"]


def _zones(zones: Reader) -> dict[str, ZonePlan]:
    if not zones:
        raise zones.error("", "must name at least one zone")
    for name in zones:
        if not _ZONE.fullmatch(name):
            raise zones.error(name, "is no name of a zone, such as us-central1-a")
    return {name: _zone(name, zones.object(name)) for name in zones}


def _zone(name: str, zone: Reader) -> ZonePlan:
    zone.allow("types capacity_chips quota_chips spot_quota_chips reserved_chips")
    quota = zone.count("quota_chips", DEFAULT_CHIPS)
    return ZonePlan(
        name=name,
        types=_types(zone) if zone.has("types") else _known_types(name),
        capacity_chips=zone.count("capacity_chips", DEFAULT_CHIPS),
        quota_chips=quota,
        spot_quota_chips=zone.count("spot_quota_chips", quota),
        reserved_chips=zone.count("reserved_chips", 0),
    )


def _types(zone: Reader) -> tuple[str, ...]:
    found = []
    for index, text in enumerate(zone.texts("types")):
        try:
            known = known_type(text)
        except UsageError as error:
            raise zone.error(f"types[{index}]", f"is no accelerator type: {error}") from error
        if known.generation not in load_data("service")["generations"]:
            raise zone.error(f"types[{index}]", f"names {text}, which the Cloud TPU API never had")
        found.append(known.accelerator_type)
    return tuple(dict.fromkeys(found))


def _known_types(zone: str) -> tuple[str, ...]:
    """The types that the real zone has; every type there is in a zone that is made up."""
    by_zone = types_by_zone()
    names = by_zone.get(zone) or dict.fromkeys(name for names in by_zone.values() for name in names)
    generations = load_data("service")["generations"]
    return tuple(name for name in names if known_type(name).generation in generations)


def _default_zones() -> dict[str, ZonePlan]:
    names = {zone: _known_types(zone) for zone in types_by_zone()}
    return {
        zone: ZonePlan(zone, types, DEFAULT_CHIPS, DEFAULT_CHIPS, DEFAULT_CHIPS, 0)
        for zone, types in names.items()
        if types
    }


def _fault(fault: Reader) -> CallFault | NodeEvent | StorageFault:
    on = fault.choice("on", (*METHODS, *STORAGE_METHODS, "node"))
    if on in STORAGE_METHODS:
        return read_fault(fault, on)
    return _node_event(fault) if on == "node" else _call_fault(fault, on)


def _node_event(fault: Reader) -> NodeEvent:
    fault.allow("on zone name nth every event at_s worker for_s duty_cycle_percent")
    return NodeEvent(
        zone=fault.text("zone", "*") or "*",
        name=fault.text("name", "*") or "*",
        event=fault.choice("event", EVENTS),
        at_s=fault.number("at_s", 0.0),
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        worker=fault.count("worker", 0),
        for_s=fault.number("for_s", 600.0),
        duty_cycle_percent=fault.number("duty_cycle_percent", 0.0, most=100)
        if fault.has("duty_cycle_percent")
        else None,
    )


def _call_fault(fault: Reader, on: str) -> CallFault:
    fault.allow("on zone name nth every error where after_s after_accept")
    after_accept = fault.flag("after_accept")
    error = fault.choice("error", ERRORS, "unavailable" if after_accept else None)
    # A stockout is never the reply, and only an operation can fail some time after it.
    late = METHODS[on].starts and not after_accept and (error == "stockout" or fault.has("after_s"))
    where = fault.choice("where", ("rpc", "operation"), "operation" if late else "rpc")
    if where == "operation" and not METHODS[on].starts:
        raise fault.error("where", f"cannot be 'operation': {on} starts none")
    if where == "operation" and after_accept:
        raise fault.error("after_accept", "loses the reply, so `where` must be 'rpc'")
    return CallFault(
        on=on,
        zone=fault.text("zone", "*") or "*",
        name=fault.text("name", "*") or "*",
        nth=fault.count("nth", 1, least=1),
        every=fault.flag("every"),
        error=error,
        where=where,
        after_s=fault.number("after_s", 20.0),
        after_accept=after_accept,
    )


def _rates(rates: Reader) -> dict[str, int]:
    for name in rates:
        if name not in METHODS:
            raise rates.error(name, f"is no method; methods are {', '.join(METHODS)}")
    return {name: rates.count(name, 0, least=1) for name in rates}


def _buckets(buckets: Reader) -> dict[str, str]:
    found = {}
    for name in buckets:
        bucket = buckets.object(name)
        bucket.allow("location")
        found[name] = (bucket.text("location", "US") or "US").upper()
    return found


def _os_login(users: Reader) -> dict[str, tuple[str, ...]]:
    return {name: tuple(users.texts(name)) for name in users}


def _epoch(top: Reader) -> datetime | None:
    if (text := top.text("epoch", None)) is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise top.error("epoch", f"is no date such as 2026-11-20T09:00:00Z: {text!r}") from error
    if not 1970 <= moment.year < 3000:
        raise top.error("epoch", f"is too far away: {text!r}")
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
