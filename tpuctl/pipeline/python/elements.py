"""How many examples an element of somebody's pipeline holds; nothing is known but its shape."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
