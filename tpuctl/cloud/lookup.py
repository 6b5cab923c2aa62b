"""Find nodes and queued resources, by name or all of them, with parallel requests."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import (
    ALL_ZONES,
    LABEL_CREATE_ID,
    Departure,
    Listing,
    Node,
    QueuedResource,
    segment,
)
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    TpuctlError,
    UnavailableError,
    UsageError,
    ZoneHiddenError,
    did_you_mean,
)

T = TypeVar("T")

Resource = Node | QueuedResource

ZONES_AT_ONCE = 50


def attempt(task: Callable[[], T]) -> T | TpuctlError:
    """Run a task and return its result or its TpuctlError; any other exception is raised."""
    try:
        return task()
    except TpuctlError as error:
        return error


def attempt_all(tasks: Sequence[Callable[[], T]], *, at_once: int) -> list[T | TpuctlError]:
    """Attempt tasks in parallel threads; the results are in the order of the tasks.

    On Ctrl-C no further task is started, and running ones are not waited for.
    """
    futures: list[Future[T | TpuctlError]] = [Future() for _ in tasks]
    todo = deque(zip(futures, tasks, strict=True))
    # Not an executor: Python waits for its threads on exit, and a deletion may take half an hour.
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


@dataclass(frozen=True)
class Snapshot:
    """All nodes and queued resources that could be listed, and what could not be."""

    nodes: tuple[Node, ...]
    queued: tuple[QueuedResource, ...]
    unreachable_zones: tuple[str, ...]
    failures: tuple[TpuctlError, ...] = ()


def take_snapshot(api: TpuApi, zone: str, *, leftovers: bool = False) -> Snapshot:
    """List nodes and queued resources in parallel; `zone` may be ALL_ZONES.

    With `leftovers` also what is left of slices.

    If one of the two lists fails, its error is among the failures; it is raised if nothing is left.
    """
    list_nodes = partial(api.list_nodes, leftovers=True) if leftovers else api.list_nodes
    tasks: list[Callable[[], Any]] = [
        partial(_list, api, list_nodes, zone),
        partial(_list, api, api.list_queued_resources, zone),
    ]
    nodes, queued = attempt_all(tasks, at_once=2)
    failures = tuple(result for result in (nodes, queued) if isinstance(result, TpuctlError))
    seen: Listing[Node] = Listing(()) if isinstance(nodes, TpuctlError) else nodes
    waiting: Listing[QueuedResource] = Listing(()) if isinstance(queued, TpuctlError) else queued
    unreachable = {*seen.unreachable_zones, *waiting.unreachable_zones}
    if failures and not (seen.items or waiting.items or unreachable):
        raise failures[0]
    return Snapshot(seen.items, waiting.items, tuple(sorted(unreachable)), failures)


def _list(api: TpuApi, read: Callable[[str], Listing[T]], zone: str) -> Listing[T]:
    """List a zone, or all zones in one request, or one by one where that is refused."""
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
            # A zone that the project may not see cannot hold any of its TPUs.
            if not isinstance(result, ZoneHiddenError):
                unreachable.append(each)
        else:
            items += result.items
            unreachable += result.unreachable_zones
    return Listing(tuple(items), tuple(unreachable))


def find(api: TpuApi, name: str, zone: str | None) -> Resource:
    """Find a node by name, or the queued resource of that name that has no node yet.

    Without a zone, all are searched. Raises NotFoundError; UsageError where several zones have the
    name; UnavailableError where a zone that may have it did not answer, even if another one has it.
    """
    segment("TPU", name)
    if not zone:
        return _search(api, name)
    found = read_optional(api.get_node, name, zone) or read_optional(
        api.get_queued_resource, name, zone
    )
    if found is None:
        why = _why_gone(api, name, zone)
        raise NotFoundError(f"TPU {name} not found in {zone}{why}.", hint="tpuctl list --all-zones")
    return found


def _search(api: TpuApi, name: str) -> Resource:
    seen = take_snapshot(api, ALL_ZONES, leftovers=True)
    # In one zone, the node comes before the queued resource that made it.
    everything: tuple[Resource, ...] = (*seen.queued, *seen.nodes)
    found = {each.zone: each for each in everything if each.name == name}
    where = ", ".join(sorted(found))
    if len(found) > 1:
        queued = [zone for zone in sorted(found) if isinstance(found[zone], QueuedResource)]
        note = f" (queued in {', '.join(queued)})" if queued else ""
        raise UsageError(
            f"{len(found)} TPUs are named {name}: in {where}{note}.",
            hint=f"Add the zone to the same command: --zone {min(found)}",
        )
    add = f"Try again later, or name the zone: --zone {min(found, default='Z')}"
    if missed := ", ".join(seen.unreachable_zones):
        known = f"{name} is in {where}" if found else f"No other zone has {name}"
        raise UnavailableError(f"{missed} did not answer, and may have {name}. {known}.", hint=add)
    if seen.failures:
        error = seen.failures[0]
        error.hint = f"{add}. {error.hint or ''}".rstrip()
        raise error
    if found:
        return found[min(found)]
    why = _why_gone(api, name, ALL_ZONES)
    near = did_you_mean(name, {each.name for each in everything})
    raise NotFoundError(
        f"TPU {name} not found in any zone{why}.", hint=f"{near}tpuctl list --all-zones"
    )


def _why_gone(api: TpuApi, name: str, zone: str) -> str:
    """Say what the service knows about a TPU that is gone."""
    found = attempt(lambda: api.why_gone(name, zone=zone))
    return f": {found}".rstrip(".") if isinstance(found, Departure) else ""


def read_optional(get: Callable[..., T], name: str | None, zone: str) -> T | None:
    """Read a node or a queued resource; None if it does not exist."""
    if name is None:
        return None
    try:
        return get(name, zone=zone)
    except NotFoundError:
        return None


def identity(resource: Resource) -> tuple[str, datetime]:
    """Return what distinguishes a resource from a later one of the same name in its zone."""
    own = resource.id if isinstance(resource, Node) else resource.labels.get(LABEL_CREATE_ID, "")
    return (own, resource.created)


@dataclass(frozen=True)
class ResourceGroup:
    """A node, or a queued resource and those of its nodes that exist."""

    nodes: tuple[Node, ...]
    queued: QueuedResource | None = None

    @property
    def resources(self) -> tuple[Resource, ...]:
        """All of it; the first is the one to send a deletion for."""
        return (self.queued, *self.nodes) if self.queued else self.nodes


def group_resources(seen: Snapshot) -> list[ResourceGroup]:
    """Group every node with the queued resource that created it."""
    members: dict[tuple[str, str], list[Node]] = defaultdict(list)
    alone: list[Node] = []
    queued = {(item.zone, item.name): item for item in seen.queued}
    for node in seen.nodes:
        maker = (node.zone, node.queued_resource or "")
        (members[maker] if maker in queued else alone).append(node)
    together = [ResourceGroup(tuple(members[key]), item) for key, item in queued.items()]
    return [*(ResourceGroup((node,)) for node in alone), *together]


def read_group(api: TpuApi, resource: Resource) -> ResourceGroup:
    """Read the group that a resource belongs to."""
    if isinstance(resource, QueuedResource):
        return _with_members(api, (), resource)
    queued = read_optional(api.get_queued_resource, resource.queued_resource, resource.zone)
    return _with_members(api, (resource,), queued)


def reread_group(api: TpuApi, group: ResourceGroup) -> ResourceGroup:
    """Read whatever has the names of a group now, and new members of its queued resource."""
    zone = group.resources[0].zone
    read = (read_optional(api.get_node, node.name, zone) for node in group.nodes)
    nodes = tuple(node for node in read if node)
    makers = {node.queued_resource for node in nodes if node.queued_resource}
    maker = group.queued.name if group.queued else next(iter(makers), None)
    return _with_members(api, nodes, read_optional(api.get_queued_resource, maker, zone))


def _with_members(
    api: TpuApi, nodes: tuple[Node, ...], queued: QueuedResource | None
) -> ResourceGroup:
    """Add the nodes of a queued resource that were not read yet."""
    if queued is None:
        return ResourceGroup(nodes)
    known = {node.name for node in nodes}
    unread = (name for name in queued.nodes if name not in known)
    read = (read_optional(api.get_node, name, queued.zone) for name in unread)
    return ResourceGroup((*nodes, *(node for node in read if node)), queued)


def is_replaced(before: ResourceGroup, now: ResourceGroup) -> bool:
    """Whether another resource has one of the group's names now."""
    known = {(type(each), each.name): identity(each) for each in before.resources}
    return any(
        known.get((type(each), each.name), identity(each)) != identity(each)
        for each in now.resources
    )
