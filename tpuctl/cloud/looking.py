"""What there is right now, in one zone or in all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import ALL_ZONES, Listing, Node, QueuedResource
from tpuctl.cloud.parallel import attempt_all, attempt_both
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    TpuctlError,
    UnavailableError,
    UsageError,
    ZoneHiddenError,
)

T = TypeVar("T")
Thing = Node | QueuedResource

_ZONES_AT_ONCE = 50


@dataclass(frozen=True)
class Snapshot:
    """All nodes and queued resources that could be seen, and what could not be."""

    nodes: tuple[Node, ...]
    queued: tuple[QueuedResource, ...]
    unreachable_zones: tuple[str, ...]
    failures: tuple[TpuctlError, ...] = ()


def look(api: TpuApi, zone: str) -> Snapshot:
    """List nodes and queued resources, both at once; `zone` may be ALL_ZONES.

    One of the two may fail, and is then among the failures; if both do, the first is raised.
    """
    nodes, queued = attempt_both(
        partial(_list, api, api.list_nodes, zone),
        partial(_list, api, api.list_queued_resources, zone),
    )
    if isinstance(nodes, TpuctlError) and isinstance(queued, TpuctlError):
        raise nodes
    failures = tuple(result for result in (nodes, queued) if isinstance(result, TpuctlError))
    seen = Listing[Node](()) if isinstance(nodes, TpuctlError) else nodes
    waiting = Listing[QueuedResource](()) if isinstance(queued, TpuctlError) else queued
    unreachable = {*seen.unreachable_zones, *waiting.unreachable_zones}
    return Snapshot(seen.items, waiting.items, tuple(sorted(unreachable)), failures)


def find(api: TpuApi, name: str, zone: str | None) -> Thing:
    """Find what bears a name: a node, or a queued resource that has none of that name yet.

    Without a zone all are searched. Raises NotFoundError; UsageError where several bear the name;
    UnavailableError where a zone that did not answer may hold it.
    """
    return _read(api, name, zone) if zone else _search(api, name)


def find_again(api: TpuApi, thing: Thing) -> Thing | None:
    """Read whatever bears the name of a thing now, another one included; None when nothing does."""
    read = api.get_node if isinstance(thing, Node) else api.get_queued_resource
    try:
        return read(thing.name, zone=thing.zone)
    except NotFoundError:
        return None


def identity(thing: Thing) -> tuple[str, datetime]:
    """What tells a thing from a later one of the same name in the same zone."""
    return (thing.id if isinstance(thing, Node) else "", thing.created)


def _read(api: TpuApi, name: str, zone: str) -> Thing:
    try:
        return api.get_node(name, zone=zone)
    except NotFoundError:
        pass
    try:
        return api.get_queued_resource(name, zone=zone)
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no TPU {name} in {zone}.", hint="tpuctl list --all-zones"
        ) from error


def _search(api: TpuApi, name: str) -> Thing:
    seen = look(api, ALL_ZONES)
    nodes = [node for node in seen.nodes if node.name == name]
    found: list[Node] | list[QueuedResource] = nodes or [q for q in seen.queued if q.name == name]
    if len(found) > 1:
        zones = ", ".join(sorted(item.zone for item in found))
        raise UsageError(
            f"{len(found)} TPUs bear the name {name}: in {zones}.",
            hint=f"Add the zone to the same command: --zone {found[0].zone}",
        )
    if found:
        return found[0]
    if seen.failures:
        raise seen.failures[0]
    if silent := seen.unreachable_zones:
        raise UnavailableError(
            f"There is no TPU {name} in any zone that answered; {', '.join(silent)} did not.",
            hint="Try again later, or name the zone: --zone Z",
        )
    raise NotFoundError(f"There is no TPU {name} in any zone.", hint="tpuctl list --all-zones")


def _list(api: TpuApi, read: Callable[[str], Listing[T]], zone: str) -> Listing[T]:
    """List a zone, or all of them in one call, or each in a call of its own if that is refused."""
    try:
        return read(zone)
    except (InvalidInputError, NotFoundError, ZoneHiddenError):
        if zone != ALL_ZONES:
            raise
    zones = api.list_zones()
    results = attempt_all([partial(read, zone) for zone in zones], at_once=_ZONES_AT_ONCE)
    items: list[T] = []
    unreachable: list[str] = []
    for each, result in zip(zones, results, strict=True):
        if isinstance(result, TpuctlError):
            # A zone that a project may not see holds nothing of it.
            if not isinstance(result, ZoneHiddenError):
                unreachable.append(each)
        else:
            items += result.items
            unreachable += result.unreachable_zones
    return Listing(tuple(items), tuple(unreachable))
