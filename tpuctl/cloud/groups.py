"""What can only be deleted together: a node alone, or a queued resource with its nodes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.looking import Snapshot, Thing, find_again, identity
from tpuctl.cloud.models import Node, QueuedResource
from tpuctl.errors import NotFoundError


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
        return Group(_read_nodes(api, thing.nodes, thing.zone), thing)
    if not thing.queued_resource:
        return Group((thing,))
    try:
        queued = api.get_queued_resource(thing.queued_resource, zone=thing.zone)
    except NotFoundError:
        return Group((thing,))
    others = [name for name in queued.nodes if name != thing.name]
    return Group((thing, *_read_nodes(api, others, thing.zone)), queued)


def read_again(api: TpuApi, group: Group) -> Group:
    """Read whatever bears the names of a group now, and the nodes that have joined it."""
    now = [find_again(api, thing) for thing in group.things]
    queued = next((thing for thing in now if isinstance(thing, QueuedResource)), None)
    nodes = tuple(thing for thing in now if isinstance(thing, Node))
    names = {node.name for node in group.nodes}
    joined = [name for name in queued.nodes if name not in names] if queued else []
    zone = group.things[0].zone
    return Group((*nodes, *_read_nodes(api, joined, zone)), queued)


def is_replaced(before: Group, now: Group) -> bool:
    """Whether something else bears a name of the group by now."""
    known = {(type(thing), thing.name): identity(thing) for thing in before.things}
    return any(
        known.get((type(thing), thing.name), identity(thing)) != identity(thing)
        for thing in now.things
    )


def _read_nodes(api: TpuApi, names: Iterable[str], zone: str) -> tuple[Node, ...]:
    found = []
    for name in names:
        try:
            found.append(api.get_node(name, zone=zone))
        except NotFoundError:
            continue
    return tuple(found)
