"""PyTorch's DataLoader as a pipeline: the stack of each of its workers is sampled."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.machinery import PathFinder
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import tpuctl
from tpuctl.profiling.frameworks.iterables import location_of, sampled_costs
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.frameworks.stacks import StackSampler, leave_note
from tpuctl.profiling.models import ChainNode, Input
from tpuctl.profiling.whatif import Change

NOT_IN_WORKERS = (
    "Not measured: the cost of Python functions, since the workers are spawned and their Python "
    "has no tpuctl."
)


def open_loader(
    loader: "DataLoader[Any]",
    folder: str,
    *,
    batch_size: int,
    own: StackSampler | None = None,
    through: Iterable[Any] | None = None,
) -> Source:
    """Open a loader unchanged, except that its workers sample their stacks.

    If an object wraps it, it is read through that object, whose elements may differ. A program's
    `own` sampler goes with a loader that is the program's: see `sampling_workers`.
    """
    workers, data = loader.num_workers, loader.dataset
    name = type(data).__name__
    if own is None:
        _sample_workers(loader, folder)
    if workers and not _knows_tpuctl(loader.multiprocessing_context):
        leave_note(folder, NOT_IN_WORKERS)
    sized = not isinstance(data, IterableDataset) and hasattr(data, "__len__")
    own = None if workers else own or StackSampler(folder)
    return Source(
        kind="torch",
        chain=ChainNode("DataLoader", name, location=location_of(data), runs_python=True),
        batched=(through is None and _makes_batches(loader)) or None,
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
        opened=lambda: iter(loader if through is None else through),
        costs=partial(sampled_costs, folder, lanes=max(1, workers), own=own),
        starts=[own.start] if own else [],
    )


@contextlib.contextmanager
def sampling_workers(loader: "DataLoader[Any]", folder: str) -> Iterator[None]:
    """Let workers that start in the block sample their stacks; the loader is as before after it."""
    before = loader.worker_init_fn
    _sample_workers(loader, folder)
    try:
        yield
    finally:
        loader.worker_init_fn = before


def _sample_workers(loader: "DataLoader[Any]", folder: str) -> None:
    if loader.num_workers and _knows_tpuctl(loader.multiprocessing_context):
        loader.worker_init_fn = partial(_start_in_worker, folder, loader.worker_init_fn)


def _knows_tpuctl(context: Any) -> bool:
    """Whether workers can import tpuctl: a spawned one cannot where only the hook brought it."""
    # Asked otherwise, the program could not set its own method any more.
    method = (context or multiprocessing).get_start_method(allow_none=True)
    method, found = (
        method or multiprocessing.get_all_start_methods()[0],
        PathFinder.find_spec("tpuctl"),
    )
    return method == "fork" or bool(found and found.origin == tpuctl.__file__)


def _makes_batches(loader: "DataLoader[Any]") -> bool:
    return loader.batch_size is not None or loader.batch_sampler is not None


def _start_in_worker(folder: str, users: Callable[[int], None] | None, worker: int) -> None:
    """Sample the stack of a worker, after the user's own initialisation."""
    if users is not None:
        users(worker)
    StackSampler(folder).start()


@contextlib.contextmanager
def building_with(change: Change) -> Iterator[None]:
    """Give loaders that are created inside the block another number of workers."""
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
