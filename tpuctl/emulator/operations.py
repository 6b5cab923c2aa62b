"""Long-running operations: started by a request, ended when their time has passed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpuctl.emulator.documents import operation_document, response
from tpuctl.emulator.errors import ApiError
from tpuctl.emulator.methods import Document
from tpuctl.emulator.resources import Key, Node, Operation, QueuedResource, Target
from tpuctl.emulator.world import World

T = TypeVar("T", Node, QueuedResource)


@dataclass(frozen=True)
class Failure:
    """That an operation will fail: when, and with what error."""

    after_s: float
    error: ApiError


def start(
    world: World,
    verb: str,
    target: T,
    *,
    takes_s: float,
    on_success: Callable[[World, T], None],
    on_failure: Callable[[World, T], None],
    failure: Failure | None = None,
    deletes: bool = False,
) -> Document:
    """Start an operation on a target.

    At its end `on_success(world, target)` makes the change, or `on_failure` takes back what was
    begun. One that `deletes` its target has an empty response.
    """
    digest = world.digest(f"operation {world.number()}")
    milliseconds = int(world.now.timestamp() * 1000)
    name = f"operation-{milliseconds}-{digest[:13]}-{digest[13:21]}-{digest[21:29]}"
    key = Key(target.key.project, target.key.zone, name)
    operation = Operation(key, verb, target.path, world.now)
    world.operations[key] = target.operation = operation
    if failure:
        world.after(failure.after_s, _fail, operation, target, on_failure, failure.error)
    else:
        world.after(takes_s, _succeed, operation, target, on_success, deletes)
    return operation_document(operation)


def abort(world: World, target: Target, error: ApiError) -> None:
    """End the running operation of a target, if there is one, with an error."""
    if target.operation and not target.operation.ended:
        target.operation.failure = error
        target.operation.ended = world.now


def is_running(target: Target) -> bool:
    """Whether an operation on the target is running."""
    return target.operation is not None and target.operation.ended is None


def _succeed(
    world: World,
    operation: Operation,
    target: T,
    on_success: Callable[[World, T], None],
    deletes: bool,
) -> None:
    if not operation.ended:
        on_success(world, target)
        operation.response = response(None if deletes else target)
        operation.ended = world.now


def _fail(
    world: World,
    operation: Operation,
    target: T,
    on_failure: Callable[[World, T], None],
    error: ApiError,
) -> None:
    if not operation.ended:
        operation.failure = error
        operation.ended = world.now
        on_failure(world, target)
