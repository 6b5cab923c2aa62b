"""Long-running operations: started by a request, ended when their time has passed."""

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
    """That an operation will fail: when, and with what error."""

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

    At its end `then(world, target)` makes the change, or after a failure `undo` takes back what
    was begun.
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
    """Have an operation end, in one of its two ways."""
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
    """Cancel an operation that is running, and take back what it began."""
    operation = world.operation(Key.of(call))
    if not operation.ended:
        world.changes += 1
        operation.failure = api_error("cancelled", resource=operation.target)
        operation.undo()
        operation.ended = world.now
    return {}


def delete(world: World, call: Call) -> Document:
    """Forget an operation, which goes on if it is running."""
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
    """End an operation, unless a deletion, for example, has aborted it before its time."""
    if operation.ended:
        return
    operation.failure = error
    change(world, target)
    if error is None:
        operation.response = response(
            None if operation.verb == "delete" else target, operation.version
        )
    operation.ended = world.now
