"""Long-running operations: begun by a request, ended by the passing of time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpuctl.emulator.documents import operation_document, response
from tpuctl.emulator.methods import Document
from tpuctl.emulator.records import Key, Node, Operation, Queued, Target
from tpuctl.emulator.refusals import Refusal
from tpuctl.emulator.world import World

T = TypeVar("T", Node, Queued)


@dataclass(frozen=True)
class Failure:
    """How an operation will end badly: when, and with what error."""

    after_s: float
    error: Refusal


def begin(
    world: World,
    verb: str,
    target: T,
    *,
    lasts_s: float,
    done: Callable[[World, T], None],
    undone: Callable[[World, T], None],
    failure: Failure | None = None,
    answers: bool = True,
) -> Document:
    """Start an operation on a target.

    At its end `done(world, target)` makes the change, or `undone` takes back what was begun.
    `answers` is whether the target is still there to be the response.
    """
    digest = world.digest(f"operation {world.number()}")
    milliseconds = int(world.now.timestamp() * 1000)
    name = f"operation-{milliseconds}-{digest[:13]}-{digest[13:21]}-{digest[21:29]}"
    key = Key(target.key.project, target.key.zone, name)
    operation = Operation(key, verb, target.path, world.now)
    world.operations[key] = target.operation = operation
    if failure:
        world.after(failure.after_s, _fail, operation, target, undone, failure.error)
    else:
        world.after(lasts_s, _finish, operation, target, done, answers)
    return operation_document(operation)


def cut_short(world: World, target: Target, error: Refusal) -> None:
    """End the operation that a target is in, if it is in one."""
    if target.operation and not target.operation.ended:
        target.operation.failure = error
        target.operation.ended = world.now


def is_busy(target: Target) -> bool:
    """Whether an operation on it is still going on."""
    return target.operation is not None and target.operation.ended is None


def _finish(
    world: World, operation: Operation, target: T, done: Callable[[World, T], None], answers: bool
) -> None:
    if not operation.ended:
        done(world, target)
        operation.response = response(target if answers else None)
        operation.ended = world.now


def _fail(
    world: World,
    operation: Operation,
    target: T,
    undone: Callable[[World, T], None],
    error: Refusal,
) -> None:
    if not operation.ended:
        operation.failure = error
        operation.ended = world.now
        undone(world, target)
