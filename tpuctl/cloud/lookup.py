"""Several requests at once, none of which can spoil the others."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar, cast

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import ALL_ZONES, Listing, Node, QueuedResource
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    TpuctlError,
    UnavailableError,
    UsageError,
    ZoneHiddenError,
)

T = TypeVar("T")
U = TypeVar("U")


def attempt(task: Callable[[], T]) -> T | TpuctlError:
    """Run a task; give the error where it failed. What is no TpuctlError is a bug, and raised."""
    try:
        return task()
    except TpuctlError as error:
        return error


def attempt_both(
    first: Callable[[], T], second: Callable[[], U]
) -> tuple[T | TpuctlError, U | TpuctlError]:
    """Attempt two tasks at once."""
    tasks: tuple[Callable[[], T | U], ...] = (first, second)
    one, other = attempt_all(tasks, at_once=2)
    return cast(T, one), cast(U, other)


def attempt_all(tasks: Sequence[Callable[[], T]], *, at_once: int) -> list[T | TpuctlError]:
    """Attempt every task on threads; the results are in the order of the tasks.

    Ctrl-C ends it at once: what has not begun never begins, and what has is not waited for. (An
    executor would wait, and a deletion is followed for up to half an hour.)
    """
    futures: list[Future[T | TpuctlError]] = [Future() for _ in tasks]
    todo = deque(zip(futures, tasks, strict=True))
    for _ in range(min(at_once, len(tasks))):
        threading.Thread(target=_work, args=(todo,), daemon=True).start()
    try:
        return [future.result() for future in futures]
    finally:
        todo.clear()


def _work(todo: deque[tuple[Future[T | TpuctlError], Callable[[], T]]]) -> None:
    while True:
        try:
            future, task = todo.popleft()
        except IndexError:
            return
        try:
            future.set_result(attempt(task))
        except BaseException as bug:
            future.set_exception(bug)


Resource = Node | QueuedResource

ZONES_AT_ONCE = 50


@dataclass(frozen=True)
class Snapshot:
    """All nodes and queued resources that could be seen, and what could not be."""

    nodes: tuple[Node, ...]
    queued: tuple[QueuedResource, ...]
    unreachable_zones: tuple[str, ...]
    failures: tuple[TpuctlError, ...] = ()


def take_snapshot(api: TpuApi, zone: str) -> Snapshot:
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


def find(api: TpuApi, name: str, zone: str | None) -> Resource:
    """Find what bears a name: a node, or a queued resource that has none of that name yet.

    Without a zone all are searched. Raises NotFoundError; UsageError where several bear the name;
    UnavailableError where a zone that did not answer may hold it.
    """
    return _read(api, name, zone) if zone else _search(api, name)


def reread(api: TpuApi, resource: Resource) -> Resource | None:
    """Read whatever bears the name of a resource now, another one included; None when nothing does."""
    read = api.get_node if isinstance(resource, Node) else api.get_queued_resource
    try:
        return read(resource.name, zone=resource.zone)
    except NotFoundError:
        return None


def identity(resource: Resource) -> tuple[str, datetime]:
    """What tells a resource from a later one of the same name in the same zone."""
    return (resource.id if isinstance(resource, Node) else "", resource.created)


def _read(api: TpuApi, name: str, zone: str) -> Resource:
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


def _search(api: TpuApi, name: str) -> Resource:
    seen = take_snapshot(api, ALL_ZONES)
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
    results = attempt_all([partial(read, zone) for zone in zones], at_once=ZONES_AT_ONCE)
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


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class ResourceGroup:
    """A node, or a queued resource and those of its nodes that exist."""

    nodes: tuple[Node, ...]
    queued: QueuedResource | None = None

    @property
    def resources(self) -> tuple[Resource, ...]:
        """All of it, what a deletion is sent for first."""
        return (self.queued, *self.nodes) if self.queued else self.nodes


def group_resources(seen: Snapshot) -> list[ResourceGroup]:
    """Put every node to the queued resource that made it."""
    members: dict[tuple[str, str], list[Node]] = defaultdict(list)
    alone: list[Node] = []
    queued = {(item.zone, item.name): item for item in seen.queued}
    for node in seen.nodes:
        maker = (node.zone, node.queued_resource or "")
        (members[maker] if maker in queued else alone).append(node)
    together = [ResourceGroup(tuple(members[key]), item) for key, item in queued.items()]
    return [*(ResourceGroup((node,)) for node in alone), *together]


def read_group(api: TpuApi, resource: Resource) -> ResourceGroup:
    """Read what goes together with one resource."""
    if isinstance(resource, QueuedResource):
        return _with_joined(api, (), resource)
    queued = _read_optional(api.get_queued_resource, resource.queued_resource, resource.zone)
    return _with_joined(api, (resource,), queued)


def reread_group(api: TpuApi, group: ResourceGroup) -> ResourceGroup:
    """Read whatever bears the names of a group now, and what has joined it."""
    zone = group.resources[0].zone
    read = (_read_optional(api.get_node, node.name, zone) for node in group.nodes)
    nodes = tuple(node for node in read if node)
    makers = {node.queued_resource for node in nodes if node.queued_resource}
    maker = group.queued.name if group.queued else next(iter(makers), None)
    return _with_joined(api, nodes, _read_optional(api.get_queued_resource, maker, zone))


def is_replaced(before: ResourceGroup, now: ResourceGroup) -> bool:
    """Whether something else bears a name of the group by now."""
    known = {(type(resource), resource.name): identity(resource) for resource in before.resources}
    return any(
        known.get((type(resource), resource.name), identity(resource)) != identity(resource)
        for resource in now.resources
    )


def _with_joined(
    api: TpuApi, nodes: tuple[Node, ...], queued: QueuedResource | None
) -> ResourceGroup:
    """Add those nodes of a queued resource that were not read yet."""
    if queued is None:
        return ResourceGroup(nodes)
    known = {node.name for node in nodes}
    unknown = (name for name in queued.nodes if name not in known)
    read = (_read_optional(api.get_node, name, queued.zone) for name in unknown)
    return ResourceGroup((*nodes, *(node for node in read if node)), queued)


class _Get(Protocol[T_co]):
    def __call__(self, name: str, *, zone: str) -> T_co: ...


def _read_optional(get: _Get[T_co], name: str | None, zone: str) -> T_co | None:
    if name is None:
        return None
    try:
        return get(name, zone=zone)
    except NotFoundError:
        return None
