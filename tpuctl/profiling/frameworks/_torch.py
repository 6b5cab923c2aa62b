"""PyTorch's DataLoader as a pipeline: its workers are sampled, each in its own process."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tpuctl.profiling.frameworks.iterables import PythonSource, location_of, sampled_costs
from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.models import ChainNode, Input
from tpuctl.profiling.whatif import Change


def open_loader(
    loader: "DataLoader[Any]", folder: str, *, batch_size: int, own: StackSampler | None = None
) -> PythonSource:
    """Take a loader as it is; only its workers are told to sample themselves."""
    workers, data = loader.num_workers, loader.dataset
    name = type(data).__name__
    if workers:
        loader.worker_init_fn = partial(_start_in_worker, folder, loader.worker_init_fn)
    sized = not isinstance(data, IterableDataset) and hasattr(data, "__len__")
    own = None if workers else own or StackSampler(folder)
    return PythonSource(
        kind="torch",
        chain=ChainNode("DataLoader", name, location=location_of(data), runs_python=True),
        batched=loader.batch_size is not None or loader.batch_sampler is not None or None,
        batch_size=batch_size,
        input=Input(0, len(data) if sized else None, 0),
        lanes=max(1, workers),
        runs_ahead=workers > 0,
        settings={
            "torch": torch.__version__,
            "num_workers": workers,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "pin_memory": loader.pin_memory,
        },
        opened=partial(_open, loader),
        cost=partial(sampled_costs, folder, lanes=max(1, workers), own=own),
        begun=[own.start] if own else [],
    )


def _open(loader: "DataLoader[Any]") -> Iterator[Any]:
    return iter(loader)


def _start_in_worker(folder: str, users: Callable[[int], None] | None, worker: int) -> None:
    """Sample the stacks of a worker; what the user wants at its start is done first."""
    if users is not None:
        users(worker)
    StackSampler(folder).start()


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
