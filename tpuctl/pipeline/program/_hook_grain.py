"""Watch Grain's loaders and data sets."""

from functools import partial
from types import ModuleType
from typing import Any

from tpuctl.pipeline.program.watching import Origin, Watch


def hook(watch: Watch, module: ModuleType, folder: str) -> None:
    """Watch every outermost iterator from now on."""
    data: Any = module
    output = data._OutputIterDataset
    plain = output.__iter__

    def __iter__(self: Any, *arguments: Any, **named: Any) -> Any:
        outermost = self._parent
        series = watch.of(outermost, lambda: _origin(outermost, folder))
        # Grain comes here in the first epoch only: an outermost data set is then taken for the
        # part of another one. It is told otherwise, and iterated as Grain would from now on.
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


def _origin(data: Any, folder: str) -> Origin:
    from tpuctl.pipeline._grain import open_grain

    source = open_grain(data, folder, batch_size=1)
    return Origin(
        kind="grain",
        chain=source.chain,
        lanes=source.lanes,
        runs_ahead=source.runs_ahead,
        settings=source.settings,
        costs=source.cost,
        examples=source.input.examples,
    )
