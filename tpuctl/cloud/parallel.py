"""Several requests at once, none of which can spoil the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tpuctl.errors import TpuctlError

T = TypeVar("T")


def attempt(task: Callable[[], T]) -> T | TpuctlError:
    """Run a task; give the error where it failed. What is no TpuctlError is a bug, and raised."""
    try:
        return task()
    except TpuctlError as error:
        return error


def attempt_all(tasks: Sequence[Callable[[], T]], *, at_once: int) -> list[T | TpuctlError]:
    """Attempt every task on threads; the results are in the order of the tasks."""
    if not tasks:
        return []
    with ThreadPoolExecutor(min(at_once, len(tasks))) as pool:
        return list(pool.map(attempt, tasks))
