"""Record the iterators of Grain, PyTorch and Keras on JAX.

The classes that are patched are private to these libraries.
"""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.program.watch import Series, Watch

# The iterators inside these adapters are recorded by the hooks of their own frameworks.
WATCHED_BELOW = ("TFDatasetAdapter", "TorchDataLoaderAdapter", "GrainDatasetAdapter")


def hook_grain(watch: Watch, module: ModuleType, sampler: StackSampler) -> None:
    """Record every outermost iterator from now on."""
    data: Any = module
    output = data._OutputIterDataset
    plain = output.__iter__

    def __iter__(self: Any, *arguments: Any, **named: Any) -> Any:
        outermost = self._parent
        series = watch.of(outermost, lambda: _grain_source(outermost, sampler.folder))
        # Grain calls this only in the first epoch, and then treats an outermost data set as
        # part of another one; resetting `has_child` makes it call this again.
        again = "_tpuctl" in outermost.__dict__
        made = outermost.__iter__() if again else plain(self, *arguments, **named)
        outermost._tpuctl, outermost.has_child = True, False
        _watch_class(watch, type(made))
        made._tpuctl = series
        watch.opened(series, made)
        return made

    output.__iter__ = __iter__


def _watch_class(watch: Watch, kind: Any) -> None:
    if getattr(kind.__next__, "_tpuctl", False):
        return
    plain = kind.__next__

    def __next__(self: Any) -> Any:
        series = self.__dict__.get("_tpuctl")
        if series is None:
            return plain(self)
        return watch.take(series, partial(plain, self))

    __next__._tpuctl = True  # type: ignore[attr-defined]
    kind.__next__ = __next__


def _grain_source(data: Any, folder: str) -> Source:
    from tpuctl.profiling.frameworks._grain import open_grain

    return _detached(open_grain(data, folder, batch_size=1))


def _detached(source: Source) -> Source:
    """Detach a source from its data set or loader, which it must not keep alive."""
    return replace(source, opened=lambda: iter(()))


def hook_torch(watch: Watch, module: ModuleType, sampler: StackSampler) -> None:
    """Record every iterator of a loader from now on."""
    loaders: Any = module
    iterator = loaders._BaseDataLoaderIter
    plain_open, plain_next = loaders.DataLoader._get_iterator, iterator.__next__
    plain_reset = iterator._reset

    def series_of(loader: Any) -> Series:
        return watch.of(loader, lambda: _torch_source(loader, sampler))

    def _get_iterator(self: Any) -> Any:
        from tpuctl.profiling.frameworks._torch import sampling_workers

        series = series_of(self)
        with sampling_workers(self, sampler.folder):
            made = plain_open(self)
        made._tpuctl = series
        watch.opened(series, made)
        return made

    def _reset(self: Any, loader: Any, *arguments: Any, **named: Any) -> None:
        """Record that the iterator of persistent workers starts its next epoch."""
        plain_reset(self, loader, *arguments, **named)
        if hasattr(self, "_tpuctl"):
            self._tpuctl = series_of(loader)
            watch.opened(self._tpuctl, self)

    def __next__(self: Any) -> Any:
        series = getattr(self, "_tpuctl", None)
        if series is None:
            return plain_next(self)
        return watch.take(series, partial(plain_next, self))

    loaders.DataLoader._get_iterator = _get_iterator
    iterator._reset, iterator.__next__ = _reset, __next__


def _torch_source(loader: Any, sampler: StackSampler) -> Source:
    from tpuctl.profiling.frameworks._torch import open_loader

    size = loader.batch_size or 1
    return _detached(open_loader(loader, sampler.folder, batch_size=size, own=sampler))


def hook_keras(watch: Watch, module: ModuleType, sampler: StackSampler) -> None:
    """Record every epoch of `fit` from now on."""
    from tpuctl.profiling.frameworks.iterables import watched

    iterator: Any = module.__dict__["JAXEpochIterator"]
    plain = iterator._get_iterator

    def _get_iterator(self: Any) -> Any:
        made, name = plain(self), type(self.data_adapter).__name__
        if name in WATCHED_BELOW:
            return made
        data = getattr(self.data_adapter, "py_dataset", None)
        source = watched(data or self.data_adapter, sampler)
        if data is not None:
            settings = {"loader": "py_dataset", "loader_class": type(data).__name__}
            source = replace(source, lanes=max(1, data.workers), settings=settings)
        return watch.wrapped(watch.of(self, lambda: source), iter(made))

    iterator._get_iterator = _get_iterator
