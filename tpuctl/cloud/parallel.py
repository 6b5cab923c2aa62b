"""Several requests at once, none of which can spoil the others."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar, cast

from tpuctl.errors import TpuctlError

T = TypeVar("T")
U = TypeVar("U")


def attempt(task: Callable[[], T]) -> T | TpuctlError:
    """Run a task; give the error where it failed. What is no TpuctlError is a bug, and raised."""
    try:
        return task()
    except TpuctlError as error:
        return error


def attempt_both(
    first: Callable[[], T], second: Callable[[], U]
) -> tuple[T | TpuctlError, U | TpuctlError]:
    """Attempt two tasks at once."""
    tasks: tuple[Callable[[], T | U], ...] = (first, second)
    one, other = attempt_all(tasks, at_once=2)
    return cast(T, one), cast(U, other)


def attempt_all(tasks: Sequence[Callable[[], T]], *, at_once: int) -> list[T | TpuctlError]:
    """Attempt every task on threads; the results are in the order of the tasks.

    Ctrl-C ends it at once: what has not begun never begins, and what has is not waited for. (An
    executor would wait, and a deletion is followed for up to half an hour.)
    """
    futures: list[Future[T | TpuctlError]] = [Future() for _ in tasks]
    todo = deque(zip(futures, tasks, strict=True))
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
