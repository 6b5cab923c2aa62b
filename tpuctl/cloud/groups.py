"""What can only be deleted together: a node alone, or a queued resource with its nodes."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.looking import Snapshot, Thing, identity
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.errors import NotFoundError

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Group:
    """A node, or a queued resource and those of its nodes that exist."""

    nodes: tuple[Node, ...]
    queued: QueuedResource | None = None

    @property
    def things(self) -> tuple[Thing, ...]:
        """All of it, what a deletion is sent for first."""
        return (self.queued, *self.nodes) if self.queued else self.nodes


def group_all(seen: Snapshot) -> list[Group]:
    """Put every node to the queued resource that made it."""
    members: dict[tuple[str, str], list[Node]] = defaultdict(list)
    alone: list[Node] = []
    queued = {(item.zone, item.name): item for item in seen.queued}
    for node in seen.nodes:
        maker = (node.zone, node.queued_resource or "")
        (members[maker] if maker in queued else alone).append(node)
    together = [Group(tuple(members[key]), item) for key, item in queued.items()]
    return [*(Group((node,)) for node in alone), *together]


def group_of(api: TpuApi, thing: Thing) -> Group:
    """Read what goes together with one thing."""
    if isinstance(thing, QueuedResource):
        return _with_joined(api, (), thing)
    queued = _read(api.get_queued_resource, thing.queued_resource, thing.zone)
    return _with_joined(api, (thing,), queued)


def read_again(api: TpuApi, group: Group) -> Group:
    """Read whatever bears the names of a group now, and what has joined it."""
    zone = group.things[0].zone
    read = (_read(api.get_node, node.name, zone) for node in group.nodes)
    nodes = tuple(node for node in read if node)
    makers = {node.queued_resource for node in nodes if node.queued_resource}
    maker = group.queued.name if group.queued else next(iter(makers), None)
    return _with_joined(api, nodes, _read(api.get_queued_resource, maker, zone))


def is_replaced(before: Group, now: Group) -> bool:
    """Whether something else bears a name of the group by now."""
    known = {(type(thing), thing.name): identity(thing) for thing in before.things}
    return any(
        known.get((type(thing), thing.name), identity(thing)) != identity(thing)
        for thing in now.things
    )


def _with_joined(api: TpuApi, nodes: tuple[Node, ...], queued: QueuedResource | None) -> Group:
    """Add those nodes of a queued resource that were not read yet."""
    if queued is None:
        return Group(nodes)
    known = {node.name for node in nodes}
    read = (_read(api.get_node, name, queued.zone) for name in queued.nodes if name not in known)
    return Group((*nodes, *(node for node in read if node)), queued)


class _Get(Protocol[T_co]):
    def __call__(self, name: str, *, zone: str) -> T_co: ...


def _read(get: _Get[T_co], name: str | None, zone: str) -> T_co | None:
    if name is None:
        return None
    try:
        return get(name, zone=zone)
    except NotFoundError:
        return None
