"""`predict`: any number of rows on any number of replicas, with a single compiled shape."""

import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import keras
import numpy as np

from tpuctl.errors import InvalidInputError

ROWS_PER_REPLICA = 32


def predict(model: Any, x: Any, *, batch_size: int | None = None) -> Any:
    """Implement `tpuctl.predict`."""
    if not isinstance(model, keras.Model):
        raise InvalidInputError(f"Could not predict: {type(model).__name__} is not a Keras model.")
    replicas = count_replicas(model)
    wanted = ROWS_PER_REPLICA * replicas if batch_size is None else batch_size
    if wanted < 1:
        raise InvalidInputError(f"Could not predict: batch_size must be at least 1, not {wanted}.")
    size = -(-wanted // replicas) * replicas
    regrouped = _Regrouped(_batches(x), size)
    batches = iter(regrouped)
    first = next(batches, None)
    if first is None:
        return _empty_outputs(model, regrouped.empty)
    _check_shapes(model, first)
    with warnings.catch_warnings():
        # Under a strategy, Keras warns about the end of a generator as if that were an error.
        warnings.filterwarnings("ignore", message=".*ran out of data", category=UserWarning)
        try:
            outputs = model.predict(_chain(first, batches), verbose=0)
        except Exception as error:
            # The framework wraps an exception of the generator in one of its own.
            raise regrouped.error or error from None
    return keras.tree.map_structure(lambda output: output[: regrouped.rows], outputs)


def count_replicas(model: Any) -> int:
    """Return the number of replicas that a batch of the model is split over."""
    if keras.backend.backend() == "tensorflow":
        return int(model.distribute_strategy.num_replicas_in_sync)
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return int(mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)])


class _Regrouped:
    """Regroup batches to exactly `size` rows, counting the real ones."""

    def __init__(self, batches: Iterator[Any], size: int) -> None:
        self.rows = 0
        self.empty: Any = None
        self.error: Exception | None = None
        self._batches, self._size = batches, size

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._regroup()
        except Exception as error:
            self.error = error
            raise

    def _regroup(self) -> Iterator[Any]:
        held: list[Any] = []
        held_rows = 0
        for batch in self._batches:
            rows = _rows(batch)
            self.rows += rows
            self.empty = batch if not rows else self.empty
            held, held_rows = [*held, batch] if rows else held, held_rows + rows
            if held_rows < self._size:
                continue
            joined = _join(held)
            whole = held_rows // self._size * self._size
            for start in range(0, whole, self._size):
                yield _slice(joined, start, start + self._size)
            held, held_rows = [_slice(joined, whole, held_rows)], held_rows - whole
        if held_rows:
            yield _pad(_join(held), self._size - held_rows)


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[tuple[Any]]:
    """Wrap a batch in a tuple, so that all of it is x: a bare pair would be read as (x, y).

    Lists inside become tuples, because TensorFlow accepts no lists from a generator.
    """
    for batch in chain([first], rest):
        yield (keras.tree.lists_to_tuples(batch),)


def _batches(x: Any) -> Iterator[Any]:
    """Turn any object with rows into batches of arrays."""
    if hasattr(x, "element_spec") and hasattr(x, "as_numpy_iterator"):
        is_tuple = isinstance(x.element_spec, tuple)
        return (batch[0] if is_tuple else batch for batch in x.as_numpy_iterator())
    leaves = [] if isinstance(x, Iterator) else keras.tree.flatten(x)
    if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
        return iter((keras.tree.map_structure(_array, x),))
    if not isinstance(x, Iterable):
        raise InvalidInputError(f"Could not predict: {type(x).__name__} holds no rows.")
    return (
        keras.tree.map_structure(_array, batch[0] if isinstance(batch, tuple) else batch)
        for batch in x
    )


def _array(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype == object or not array.ndim:
        raise InvalidInputError(
            f"Could not predict: a batch holds {type(value).__name__}, not an array with rows.",
            hint="Pass arrays, a tf.data.Dataset, or an iterable of batches of arrays.",
        )
    return array


def _rows(batch: Any) -> int:
    counts = {len(leaf) for leaf in keras.tree.flatten(batch)}
    if len(counts) != 1:
        raise InvalidInputError(
            f"Could not predict: the arrays of one batch have {sorted(counts)} rows."
        )
    return counts.pop()


def _slice(batch: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda leaf: leaf[start:stop], batch)


def _join(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *batches)


def _pad(batch: Any, missing: int) -> Any:
    def fill(leaf: Any) -> Any:
        return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    return keras.tree.map_structure(fill, batch)


def _check_shapes(model: Any, batch: Any) -> None:
    """Raise a short error for rows of the wrong shape; TensorFlow's own has a hundred lines."""
    inputs, leaves = getattr(model, "inputs", None) or (), keras.tree.flatten(batch)
    if len(inputs) != len(leaves):
        return
    for tensor, leaf in zip(inputs, leaves, strict=True):
        taken, given = tuple(tensor.shape[1:]), leaf.shape[1:]
        # Keras adds or removes a last axis of size 1 itself.
        if not _fits(taken, given) and 1 not in (*taken[-1:], *given[-1:]):
            raise InvalidInputError(
                f"Could not predict: the model expects rows of shape {taken}, not {given}.",
                hint="The first axis of each batch is its rows.",
            )


def _fits(taken: tuple[int | None, ...], given: tuple[int, ...]) -> bool:
    return len(taken) == len(given) and all(
        one in (None, two) for one, two in zip(taken, given, strict=True)
    )


def _empty_outputs(model: Any, empty: Any) -> Any:
    """Return empty outputs with the structure, shapes and dtypes of the model's."""
    like = empty if empty is not None else getattr(model, "input", None)
    if like is None:
        raise InvalidInputError(
            "Could not predict: the input is empty and the model's input shape is unknown."
        )
    rows = keras.tree.map_structure(
        lambda leaf: keras.KerasTensor((None, *leaf.shape[1:]), dtype=str(leaf.dtype)), like
    )
    return keras.tree.map_structure(
        lambda output: np.empty((0, *output.shape[1:]), output.dtype),
        model.compute_output_spec(rows),
    )
