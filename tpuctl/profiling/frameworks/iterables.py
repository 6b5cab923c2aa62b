"""How many examples an element of somebody's pipeline holds; nothing is known but its shape."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tpuctl.profiling.frameworks.stacks import (
    StackSampler,
    by_depth,
    giving,
    is_library,
    read_stacks,
)
from tpuctl.profiling.models import (
    ChainNode,
    CopyingStage,
    Input,
    IsolatedStage,
    Kind,
    NodeCost,
    StageCost,
)
from tpuctl.profiling.node_stats import Snapshot
from tpuctl.usercode.error_summary import describe

CHANNELS = (1, 3, 4)
MOST_LEAVES = 64


def count_examples(element: Any) -> int:
    """The length of the first dimension, or of a list; 1 for what has neither."""
    for leaf in leaves(element):
        shape = _shape(leaf)
        if shape:
            return max(1, int(shape[0]))
    return len(element) if _is_list(element) and element else 1


def holds_a_batch(element: Any, batch_size: int, *, indexed: bool = False) -> bool:
    """Whether an element looks like a batch and not like one example.

    A single image is not one, nor is a scalar; arrays of one and the same first dimension are, and
    so is what has as many parts as a batch was said to have. What is `indexed` gives examples more
    often than batches, so there one array alone is an example.
    """
    shapes = [shape for leaf in leaves(element) if (shape := _shape(leaf)) is not None]
    if not shapes:
        return _is_list(element) and len(element) == batch_size
    if any(not shape for shape in shapes):
        return False
    firsts = {shape[0] for shape in shapes}
    if firsts == {batch_size}:
        return True
    is_image = any(len(shape) == 3 and shape[-1] in CHANNELS for shape in shapes)
    alone = len(shapes) == 1 and (indexed or len(shapes[0]) == 1)
    return len(firsts) == 1 and not is_image and not alone


def leaves(element: Any) -> Iterator[Any]:
    """The arrays and values inside nested tuples, lists and dictionaries, the first of them."""
    waiting, seen = [element], 0
    while waiting and seen < MOST_LEAVES:
        found = waiting.pop(0)
        seen += 1
        if isinstance(found, Mapping):
            waiting[:0] = list(found.values())
        elif _is_list(found):
            waiting[:0] = list(found[:MOST_LEAVES])
        else:
            yield found


def size_bytes(element: Any) -> int:
    """Bytes of the arrays inside an element."""
    return sum(int(getattr(leaf, "nbytes", 0) or 0) for leaf in leaves(element))


def wide_float_bytes(element: Any) -> int:
    """Bytes of those arrays inside an element that hold 4 or 8 bytes per number."""
    wide = ("float32", "float64", "int32", "int64")
    return sum(
        int(leaf.nbytes)
        for leaf in leaves(element)
        if str(getattr(leaf, "dtype", "")).rpartition(".")[2].strip("<>'") in wide
        and hasattr(leaf, "nbytes")
    )


def _shape(leaf: Any) -> tuple[int, ...] | None:
    shape = getattr(leaf, "shape", None)
    try:
        return None if shape is None else tuple(int(side) for side in shape)
    except (TypeError, ValueError):
        return None


def _is_list(element: Any) -> bool:
    return isinstance(element, Sequence) and not isinstance(element, (str, bytes, bytearray))


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
