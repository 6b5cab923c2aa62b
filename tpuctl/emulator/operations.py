"""Long-running operations, which a request starts and emulated time ends."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tpuctl.emulator.documents import operation_document, response
from tpuctl.emulator.errors import ServiceError, api_error
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.resources import Key, Operation, T, Target
from tpuctl.emulator.world import World


@dataclass(frozen=True)
class Failure:
    """When an operation fails, and with which error."""

    after_s: float
    error: ServiceError


def start(
    world: World,
    verb: str,
    target: T,
    failure: Failure | None,
    *,
    takes_s: float,
    then: Callable[[World, T], None],
    undo: Callable[[World, T], None],
) -> Document:
    """Start an operation on a target.

    At its end, `then(world, target)` makes the change, or `undo` reverts what was begun if the
    operation failed.
    """
    key = Key(target.key.project, target.key.zone, new_name(world))
    operation = Operation(key, verb, target.path, world.now, partial(undo, world, target))
    world.operations[key] = target.operation = operation
    schedule_end(world, operation, target, failure, takes_s=takes_s, then=then, undo=undo)
    return operation_document(operation)


def schedule_end(
    world: World,
    operation: Operation,
    target: T,
    failure: Failure | None,
    *,
    takes_s: float,
    then: Callable[[World, T], None],
    undo: Callable[[World, T], None],
) -> None:
    """Schedule the end of an operation, successful or not."""
    if failure:
        world.after(failure.after_s, end, operation, target, undo, failure.error)
    else:
        world.after(takes_s, end, operation, target, then, None)


def new_name(world: World) -> str:
    """Make up the name of an operation."""
    digest = world.digest(f"operation {world.number()}")
    milliseconds = int(world.now.timestamp() * 1000)
    return f"operation-{milliseconds}-{digest[:13]}-{digest[13:21]}-{digest[21:29]}"


def abort(world: World, target: Target, error: ServiceError) -> None:
    """End the running operation of a target, if there is one, with an error."""
    if target.operation and not target.operation.ended:
        target.operation.failure = error
        target.operation.ended = world.now


def cancel(world: World, call: Call) -> Document:
    """Cancel a running operation, and undo what it began."""
    operation = world.operation(Key.of(call))
    if not operation.ended:
        world.changes += 1
        operation.failure = api_error("cancelled", resource=operation.target)
        operation.undo()
        operation.ended = world.now
    return {}


def delete(world: World, call: Call) -> Document:
    """Delete the record of an operation, which continues if it is running."""
    del world.operations[world.operation(Key.of(call)).key]
    world.changes += 1
    return {}


def is_running(target: Target) -> bool:
    """Whether an operation on the target is running."""
    return target.operation is not None and target.operation.ended is None


def end(
    world: World,
    operation: Operation,
    target: T,
    change: Callable[[World, T], None],
    error: ServiceError | None,
) -> None:
    """End an operation, unless it was aborted earlier, for example by a deletion."""
    if operation.ended:
        return
    operation.failure = error
    change(world, target)
    if error is None:
        operation.response = response(
            None if operation.verb == "delete" else target, operation.version
        )
    operation.ended = world.now
