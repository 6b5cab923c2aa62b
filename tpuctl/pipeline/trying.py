"""Build somebody's pipeline with a change that we only try."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from tpuctl.pipeline.changes import Change


@contextlib.contextmanager
def building_with(change: Change | None) -> Iterator[None]:
    """Let whatever framework is loaded build in another way, until the block ends."""
    with contextlib.ExitStack() as stack:
        if change and "tensorflow" in sys.modules:
            from tpuctl.pipeline import _changes_tf

            stack.enter_context(_changes_tf.building_with(change))
        if change and "torch" in sys.modules:
            from tpuctl.pipeline import _changes_torch

            stack.enter_context(_changes_torch.building_with(change))
        yield


def finished(made: Any, kind: str | None, change: Change | None) -> Any:
    """Put what a change adds at the end of a pipeline."""
    if change is None:
        return made
    if kind == "tf.data":
        from tpuctl.pipeline import _changes_tf

        return _changes_tf.finished(made, change)
    if kind == "grain" and change.way == "workers" and hasattr(made, "mp_prefetch"):
        options = sys.modules["grain"].multiprocessing.MultiprocessingOptions
        return made.mp_prefetch(options(num_workers=change.number))
    return made
