"""Operations of Compute Engine, started by users and by the system."""

from collections.abc import Callable
from typing import TypeVar

from tpuctl.emulator import operations
from tpuctl.emulator.compute.resources import (
    GLOBAL,
    ROOT,
    ComputeOperation,
    Instance,
    Resource,
    place_of,
    rfc3339,
)
from tpuctl.emulator.methods import Document
from tpuctl.emulator.operations import Failure
from tpuctl.emulator.resources import Key
from tpuctl.emulator.world import World

H = TypeVar("H", bound=Instance | Resource)

USER = "you@example.com"


def begin(
    world: World, verb: str, target: Instance | Resource, *, user: str = USER
) -> ComputeOperation:
    """Record an operation that runs until `operations.end` is called."""
    key = Key(target.key.project, target.key.zone, operations.new_name(world))
    operation = ComputeOperation(
        key, verb, target.path, world.now, lambda: None,
        id=new_id(world), target_id=target.id, user=user,
    )  # fmt: skip
    world.compute.operations[key] = operation
    # A change of labels, for example, does not hide that the target is still being created.
    if target.operation is None or target.operation.ended:
        target.operation = operation
    world.changes += 1
    return operation


def start(
    world: World,
    verb: str,
    target: H,
    failure: Failure | None,
    *,
    takes_s: float,
    then: Callable[[World, H], None],
    undo: Callable[[World, H], None],
) -> ComputeOperation:
    """Start an operation that ends by itself."""
    operation = begin(world, verb, target)
    operations.schedule_end(
        world, operation, target, failure, takes_s=takes_s, then=then, undo=undo
    )
    return operation


def record(world: World, verb: str, target: Instance) -> None:
    """Record an operation that the system has done on an instance."""
    begin(world, verb, target, user="system").ended = world.now


def new_id(world: World) -> int:
    """Make up the numeric ID of a resource."""
    return int(world.digest(f"id {world.number()}")[:15], 16)


def document(operation: ComputeOperation) -> Document:
    """Write an operation as the API shows it."""
    where, key = place_of(operation.key.zone), operation.key
    path = f"projects/{key.project}/{where}"
    found: Document = {
        "kind": "compute#operation",
        "id": str(operation.id),
        "name": key.name,
        "operationType": operation.verb,
        "targetLink": ROOT + operation.target,
        "targetId": str(operation.target_id),
        "status": "DONE" if operation.done else "RUNNING",
        "user": operation.user,
        "progress": 100 if operation.done else 0,
        "insertTime": rfc3339(operation.created),
        "startTime": rfc3339(operation.created),
        "selfLink": f"{ROOT}{path}/operations/{key.name}",
    }
    if key.zone != GLOBAL:
        found[where.partition("s/")[0]] = ROOT + path
    if operation.done and operation.ended:
        found["endTime"] = rfc3339(operation.ended)
        if operation.failure:
            status = operation.failure.http_status
            reason = {404: "NOT FOUND", 409: "CONFLICT", 503: "SERVICE UNAVAILABLE"}
            found["error"] = {"errors": [operation.failure.document]}
            found["httpErrorStatusCode"] = status
            found["httpErrorMessage"] = reason.get(status, "BAD REQUEST")
    return found
