"""TPUs in an emulated cloud, asked for as some other program would: without our journal."""

import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.cloud_world import CloudWorld
from tpuctl.cloud.journal import Journal, JournalEntry
from tpuctl.cloud.models import LABEL_TTL_S, NodeRequest
from tpuctl.hardware.types import describe

HERE = "us-central1-a"
FAR = "europe-west4-b"

_numbers = itertools.count()


def request_for(
    name: str,
    *,
    zone: str = HERE,
    kind: str = "v5e-8",
    labels: Mapping[str, str] | None = None,
    spot: bool = False,
) -> NodeRequest:
    """The request for a TPU, with a create id of its own."""
    described = describe(kind)
    return NodeRequest(
        name,
        zone,
        described.accelerator_type,
        described.runtime_version or "",
        create_id=f"create-{next(_numbers)}",
        labels=dict(labels or {}),
        spot=spot,
    )


def ask(world: CloudWorld, name: str, **options: Any) -> NodeRequest:
    """Ask for a node."""
    request = request_for(name, **options)
    world.api.create_node(request)
    return request


def queue(world: CloudWorld, name: str, **options: Any) -> NodeRequest:
    """Ask for a queued resource."""
    request = request_for(name, **options)
    world.api.create_queued_resource(request)
    return request


def remember(
    journal: Journal, world: CloudWorld, request: NodeRequest, **known: Any
) -> JournalEntry:
    """Put a request into the journal."""
    entry = JournalEntry(
        request.create_id,
        request.name,
        request.zone,
        known.pop("kind", "node"),
        world.api.project,
        world.api.endpoint,
        request.accelerator_type,
        **known,
    )
    journal.intend(entry)
    return entry


def ask_with_ttl(
    journal: Journal, world: CloudWorld, name: str, seconds: int, **options: Any
) -> NodeRequest:
    """Ask for a node with a time to live, from this machine."""
    request = ask(world, name, labels={LABEL_TTL_S: str(seconds)}, **options)
    remember(journal, world, request, phase="ready")
    return request


def journal_in(folder: Path) -> Journal:
    """An empty journal."""
    return Journal(folder / "creates")


def sent(world: CloudWorld, method: str) -> list[str]:
    """The names that a method was called for, in order."""
    return [name for called, _, name in world.emulator.requests if called == method]


def nodes_of(world: CloudWorld) -> dict[str, str]:
    """The state of every node there is, as the service itself knows it."""
    return {key.name: node.state for key, node in world.emulator.advance().nodes.items()}


def printed(report: Any) -> str:
    """A report on paper that is 100 characters wide, without blanks at the ends of lines."""
    paper = io.StringIO()
    Console(file=paper, width=100, color_system=None).print(report)
    return "\n".join(line.rstrip() for line in paper.getvalue().splitlines()) + "\n"
