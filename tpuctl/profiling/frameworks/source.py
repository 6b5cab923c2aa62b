"""A pipeline to measure, with any framework, and how many examples its elements hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpuctl.profiling.models import ChainNode, Input, Kind
from tpuctl.profiling.node_stats import Snapshot
from tpuctl.profiling.windows import CopyingStage, IsolatedStage, NodeCost, StageCost

CHANNELS = (1, 3, 4)
MOST_LEAVES = 64
MOST_COLUMNS = 3
NO_INPUT = Input(0, None, 0)


@dataclass
class Source:
    """A pipeline that can be iterated repeatedly and observed while it runs.

    `batched` (whether elements are batches) may be None until the first element is read. `lanes` is
    the number of threads or processes that produce examples, if fixed. `runs_ahead` is whether it
    works while the loop is busy, None if its stages show that. `costs` and `snapshot` read the
    counts of its functions and its runtime so far; `starts` begin that counting for each recording.
    """

    kind: Kind
    chain: ChainNode
    batched: bool | None = None
    batch_size: int = 1
    indexed: bool = False
    input: Input = NO_INPUT
    settings: dict[str, Any] = field(default_factory=dict)
    threadpool_size: int = 0
    lanes: int | None = None
    runs_ahead: bool | None = None
    opened: Callable[[], Iterator[Any]] = lambda: iter(())
    costs: Callable[[], tuple[StageCost, ...]] = tuple
    snapshot: Callable[[Any], Snapshot | None] = lambda _: None
    starts: Sequence[Callable[[], None]] = ()

    def start(self) -> None:
        """Start counting; does nothing if it has started."""
        for each in self.starts:
            each()

    def open(self) -> Iterator[Any]:
        """Iterate from the beginning."""
        self.start()
        return self.opened()

    def count(self, element: Any) -> int:
        """Count the examples in an element."""
        if self.batched is None:
            self.batched = holds_a_batch(element, self.batch_size, indexed=self.indexed)
        return count_examples(element) if self.batched else 1

    def isolate(self, seconds: float, *, cpu_s: Callable[[], float]) -> tuple[IsolatedStage, ...]:
        """Measure CPU per example of ever longer parts of it, if its kind of costs needs that."""
        return ()

    def copying(self, nodes: Sequence[NodeCost]) -> tuple[CopyingStage, ...]:
        """Measure copying stages alone, if its kind of costs needs that."""
        return ()


def count_examples(element: Any) -> int:
    """The length of the first dimension, or of a list; 1 if there is neither."""
    if _lists_examples(element):
        return len(element)
    for leaf in leaves(element):
        shape = _shape(leaf)
        if shape:
            return max(1, int(shape[0]))
    return len(element) if _is_list(element) and element else 1


def holds_a_batch(element: Any, batch_size: int, *, indexed: bool = False) -> bool:
    """Whether an element looks like a batch and not like one example.

    A single image, one with its mask or a scalar is not a batch. Arrays with the same first
    dimension are, and so is anything with `batch_size` parts. Sources that are `indexed` usually
    return examples, so there a single array or list is an example.
    """
    if _lists_examples(element) and not indexed:
        return True
    shapes = [shape for leaf in leaves(element) if (shape := _shape(leaf)) is not None]
    if not shapes:
        return _is_list(element) and len(element) == batch_size
    if any(not shape for shape in shapes):
        return False
    firsts = {shape[0] for shape in shapes}
    if firsts == {batch_size}:
        return True
    most = max(map(len, shapes))
    like_images = [shape[-1] in CHANNELS for shape in shapes if len(shape) == most == 3]
    is_image = any(like_images) and (all(like_images) or len(shapes) == 2)
    alone = len(shapes) == 1 and (indexed or len(shapes[0]) == 1)
    return len(firsts) == 1 and not is_image and not alone


def _lists_examples(element: Any) -> bool:
    """Whether it is a list of examples: of one type, and of more than a batch has columns."""
    if not isinstance(element, list) or len(element) <= MOST_COLUMNS:
        return False
    shapes = {_shape(each) or () for each in element}
    # Columns are as long as each other.
    is_ragged = len(shapes) > 1 and all(len(shape) == 1 for shape in shapes)
    is_plain = all(not shape or (len(shape) == 3 and shape[-1] in CHANNELS) for shape in shapes)
    return len({*map(type, element)}) == 1 and (is_ragged or is_plain)


def leaves(element: Any) -> Iterator[Any]:
    """The arrays and values inside nested tuples, lists and dictionaries, at most 64 of them."""
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


def _shape(leaf: Any) -> tuple[int, ...] | None:
    shape = getattr(leaf, "shape", None)
    try:
        return None if shape is None else tuple(int(side) for side in shape)
    except (TypeError, ValueError):
        return None


def _is_list(element: Any) -> bool:
    return isinstance(element, Sequence) and not isinstance(element, (str, bytes, bytearray))
