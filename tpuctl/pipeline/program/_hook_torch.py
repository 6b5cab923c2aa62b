"""Watch PyTorch's data loaders, and sample their workers."""

from functools import partial
from types import ModuleType
from typing import Any

from tpuctl.pipeline.program.watching import Origin, Series, Watch
from tpuctl.pipeline.python.stacks import StackSampler


def hook(watch: Watch, module: ModuleType, folder: str, sampler: StackSampler) -> None:
    """Watch every iterator of a loader from now on."""
    loaders: Any = module
    iterator = loaders._BaseDataLoaderIter
    plain_open, plain_next = loaders.DataLoader._get_iterator, iterator.__next__
    plain_reset = iterator._reset

    def series_of(loader: Any) -> Series:
        return watch.of(loader, lambda: _origin(loader, folder, sampler))

    def _get_iterator(self: Any) -> Any:
        series = series_of(self)
        made = plain_open(self)
        made._tpuctl = series
        watch.opened(series, made)
        return made

    def _reset(self: Any, loader: Any, *arguments: Any, **named: Any) -> None:
        """An iterator of workers that persist begins its next epoch."""
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


def _origin(loader: Any, folder: str, sampler: StackSampler) -> Origin:
    from tpuctl.pipeline._torch import open_loader

    source = open_loader(loader, folder, batch_size=loader.batch_size or 1, own=sampler)

    def begin() -> None:
        for start in source.begun:
            start()

    return Origin(
        kind="torch",
        chain=source.chain,
        lanes=source.lanes,
        runs_ahead=source.runs_ahead,
        settings=source.settings,
        begin=begin,
        costs=source.cost,
        examples=source.input.examples,
    )
