"""Try changes on somebody's tf.data pipeline while their own function builds it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tpuctl.pipeline._tfgraph import location_of_function
from tpuctl.pipeline.changes import Change

AUTOTUNE = tf.data.AUTOTUNE


@contextlib.contextmanager
def building_with(change: Change) -> Iterator[None]:
    """Build with another number of calls, a cache in between, or smaller decoded images."""
    with contextlib.ExitStack() as stack:
        if change.way in ("calls", "threads", "cache"):
            stack.enter_context(_patched(tf.data.Dataset, "map", _map(change)))
        if change.way in ("calls", "threads"):
            stack.enter_context(_patched(tf.data.Dataset, "interleave", _interleave(change)))
        if change.way == "ratio":
            for place in (tf.io, tf.image):
                stack.enter_context(_patched(place, "decode_jpeg", _decode(change)))
        yield


def finished(dataset: Any, change: Change) -> Any:
    """Change what stands at the end of a pipeline."""
    options = tf.data.Options()
    if change.way == "prefetch":
        return dataset.prefetch(change.number or AUTOTUNE)
    if change.way == "unordered":
        options.deterministic = False
        return dataset.prefetch(change.number or AUTOTUNE).with_options(options)
    if change.way == "threads":
        options.threading.private_threadpool_size = change.number or 0
        return dataset.with_options(options)
    return dataset


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _map(change: Change) -> Wrap:
    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def map(self: Any, map_func: Any, num_parallel_calls: Any = None, **named: Any) -> Any:
            here = change.location in (None, location_of_function(map_func))
            if change.way != "cache" and here:
                num_parallel_calls = change.number or AUTOTUNE
            made = plain(self, map_func, num_parallel_calls=num_parallel_calls, **named)
            return made.cache() if change.way == "cache" and here else made

        return map

    return wrap


def _interleave(change: Change) -> Wrap:
    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def interleave(self: Any, map_func: Any, *arguments: Any, **named: Any) -> Any:
            if named.get("num_parallel_calls") is None and len(arguments) < 3:
                named["num_parallel_calls"] = AUTOTUNE
            return plain(self, map_func, *arguments, **named)

        return interleave

    return wrap


def _decode(change: Change) -> Wrap:
    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def decode_jpeg(contents: Any, channels: int = 0, ratio: int = 1, **named: Any) -> Any:
            return plain(contents, channels=channels, ratio=max(ratio, change.number or 1), **named)

        return decode_jpeg

    return wrap


@contextlib.contextmanager
def _patched(place: Any, name: str, wrap: Wrap) -> Iterator[None]:
    plain = getattr(place, name)
    setattr(place, name, wrap(plain))
    try:
        yield
    finally:
        setattr(place, name, plain)
