"""Any iterable as a pipeline: generators, loaders of other libraries, lists of arrays."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tpuctl.pipeline.ledger import Snapshot
from tpuctl.pipeline.models import (
    ChainNode,
    CopyingStage,
    Input,
    IsolatedStage,
    Kind,
    NodeCost,
    StageCost,
)
from tpuctl.pipeline.python.elements import count_examples, holds_a_batch
from tpuctl.pipeline.python.stacks import StackSampler, by_depth, giving, is_library, read_stacks
from tpuctl.usercode.complaint import describe

METHOD = "CPU clock of the thread, divided by samples of its stack"


@dataclass
class PythonSource:
    """A pipeline of Python functions, ready to be iterated: a `Source` for the measuring loop.

    Whether elements are batches may be None until the first has come.
    """

    kind: Kind
    chain: ChainNode
    batched: bool | None
    batch_size: int
    input: Input
    lanes: int
    runs_ahead: bool
    settings: dict[str, Any]
    opened: Callable[[], Iterator[Any]]
    cost: Callable[[], tuple[StageCost, ...]]
    threadpool_size: int = 0
    indexed: bool = False
    begun: list[Callable[[], None]] = field(default_factory=list)

    def open(self) -> Iterator[Any]:
        """Start from the beginning."""
        while self.begun:
            self.begun.pop()()
        return self.opened()

    def count(self, element: Any) -> int:
        """Say how many examples an element holds."""
        if self.batched is None:
            self.batched = holds_a_batch(element, self.batch_size, indexed=self.indexed)
        return count_examples(element) if self.batched else 1

    def snapshot(self, iterator: Iterator[Any]) -> Snapshot | None:
        """There is no model of it but what is counted."""
        return None

    def costs(self) -> tuple[StageCost, ...]:
        """What every function did so far."""
        return self.cost()

    def describe(self, error: BaseException) -> str:
        """Put the error into one sentence."""
        return describe(error)

    def isolate(self, seconds: float, *, cpu_s: Callable[[], float]) -> tuple[IsolatedStage, ...]:
        """CPU times of threads need no second measurement."""
        return ()

    def copying(self, nodes: Sequence[NodeCost]) -> tuple[CopyingStage, ...]:
        """CPU times of threads need no second measurement."""
        return ()


def open_iterable(
    made: Any, make: Callable[[], Any], folder: str, *, name: str, batch_size: int
) -> PythonSource:
    """Open what a function returned; an iterator is made anew for every epoch."""
    sampler = StackSampler(folder)
    first = [made]

    def opened() -> Iterator[Any]:
        found = first.pop() if first else (make() if _is_iterator(made) else made)
        if not _is_iterator(found):
            first[:] = [found]
        return giving(found, iterate(found))

    return PythonSource(
        kind="iterable",
        chain=ChainNode("Iterable", name, location=location_of(made), runs_python=True),
        batched=None,
        batch_size=batch_size,
        input=Input(0, None, 0),
        lanes=1,
        runs_ahead=False,
        settings={"iterable": f"{type(made).__module__}.{type(made).__qualname__}"},
        opened=opened,
        cost=partial(sampled_costs, folder, lanes=1, own=sampler),
        begun=[sampler.start],
        indexed=not isinstance(made, Iterable),
    )


def sampled_costs(
    folder: str, *, lanes: int, own: StackSampler | None = None
) -> tuple[StageCost, ...]:
    """What the samplers of all processes saw, one entry for each function."""
    if own:
        own.write()
    seen = read_stacks(folder)
    return tuple(
        StageCost(
            name=key[0],
            op="Transfer" if key[0] == "transfer" else "Python",
            location=key[1] or None,
            calls=seen[key].samples,
            wall_s=seen[key].wall_s,
            cpu_s=seen[key].cpu_s,
            parallelism=lanes,
            method=METHOD,
        )
        for key in by_depth(seen)
    )


def iterate(made: Any) -> Iterator[Any]:
    """Iterate by the iterator protocol, or by index where there is only that."""
    if isinstance(made, Iterable):
        return iter(made)
    return (made[index] for index in range(len(made)))


def _is_iterator(made: Any) -> bool:
    return isinstance(made, Iterator)


def location_of(made: Any) -> str | None:
    """Where the user wrote a generator, a function or a class; None for what is not theirs."""
    code = getattr(made, "gi_code", None) or getattr(made, "__code__", None)
    if code is not None:
        return None if is_library(code.co_filename) else f"{code.co_filename}:{code.co_firstlineno}"
    try:
        file, line = inspect.getsourcefile(type(made)), inspect.getsourcelines(type(made))[1]
    except (TypeError, OSError):
        return None
    return None if file is None or is_library(file) else f"{file}:{line}"
