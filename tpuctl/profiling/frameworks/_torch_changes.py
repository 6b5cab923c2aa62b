"""Try another number of workers on somebody's PyTorch loaders while their function makes them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from tpuctl.profiling.whatif import Change


@contextlib.contextmanager
def building_with(change: Change) -> Iterator[None]:
    """Make loaders with so many workers."""
    plain: Any = DataLoader.__init__

    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        if change.way == "workers":
            named["num_workers"] = change.number
        plain(self, *arguments, **named)

    changed: Any = DataLoader
    changed.__init__ = __init__
    try:
        yield
    finally:
        changed.__init__ = plain
