"""Input pipelines of tf.data in a program: the steps that lead to a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tpuctl.linting.scope import argument

if TYPE_CHECKING:
    from tpuctl.linting.program import Program
    from tpuctl.linting.scope import Function

_SOURCES = (
    "tf.data.Dataset.", "tf.data.TFRecordDataset", "tf.data.TextLineDataset",
    "tf.data.FixedLengthRecordDataset", "tf.data.experimental.make_csv_dataset",
    "tensorflow_datasets.load", "tf.keras.utils.image_dataset_from_directory",
    "tf.keras.preprocessing.image_dataset_from_directory",
    "tf.keras.utils.text_dataset_from_directory", "keras.utils.image_dataset_from_directory",
    "keras.utils.text_dataset_from_directory",
)  # fmt: skip
# A method of this name alone could belong to many other classes.
_COMMON = {"map", "filter", "apply", "take", "skip", "zip", "enumerate", "concatenate", "window"}
_OWN = {
    "batch", "shuffle", "repeat", "cache", "prefetch", "interleave", "padded_batch", "unbatch",
    "shard", "flat_map", "with_options", "snapshot", "rebatch", "parallel_interleave",
}  # fmt: skip
METHODS = _COMMON | _OWN
_DEEPEST, _LONGEST = 40, 40
PYTHON_FUNCTIONS = ("tf.py_function", "tf.numpy_function", "tf.compat.v1.py_func", "tf.py_func")
# What functions given to `map` may do, and the beginnings of the calls that do it.
_WORK = {
    "decode": (
        "tf.io.decode_jpeg", "tf.image.decode_jpeg", "tf.io.decode_image", "tf.image.decode_image",
        "tf.io.decode_png", "tf.image.decode_png", "tf.io.decode_and_crop_jpeg",
        "tf.image.decode_and_crop_jpeg",
    ),
    "resize": ("tf.image.resize", "tf.compat.v1.image.resize_images"),
    "augment": (
        "tf.image.random_", "tf.random.", "tf.image.stateless_", "tf.image.sample_distorted",
        "keras.layers.Random", "tf.keras.layers.Random",
    ),
    "python": PYTHON_FUNCTIONS,
    "float": ("tf.image.convert_image_dtype",),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One call in a pipeline; `name` is the method's, or `source` for what it starts with."""

    name: str
    call: ast.Call


@dataclass(frozen=True)
class Pipeline:
    """The steps up to a call; `is_whole` if they go back to a known source."""

    steps: tuple[Step, ...]
    is_whole: bool

    @property
    def names(self) -> list[str]:
        """The names of the steps."""
        return [step.name for step in self.steps]

    def before(self, call: ast.Call) -> tuple[Step, ...]:
        """Return the steps that come before a call."""
        for at, step in enumerate(self.steps):
            if step.call is call:
                return self.steps[:at]
        return ()


class Pipelines:
    """The pipelines of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[ast.AST, Pipeline | None] = {}
        self._work: dict[ast.AST, frozenset[str]] = {}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Pipeline]]:
        """Every call of a method of a data set, with the steps up to and with it."""
        if "tf" not in self._program.modules:
            return []
        # In the order in which they run: each call of a chain needs the one before it.
        calls = sorted(
            self._program.methods(*METHODS),
            key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0),
        )
        found = [(call, pipeline) for call in calls if (pipeline := self.of(call))]
        # A map alone could be of many classes; a batch() after it tells what it is.
        sure = {
            step.call
            for _, each in found
            if each.is_whole or _OWN.intersection(each.names)
            for step in each.steps
        }
        return [(call, pipeline) for call, pipeline in found if call in sure]

    def of(self, node: ast.expr, depth: int = 0) -> Pipeline | None:
        """Return the pipeline that an expression is, or None."""
        if node not in self._known:
            self._known[node] = None
            self._known[node] = self._find(node, depth) if depth < _DEEPEST else None
        return self._known[node]

    def _find(self, node: ast.expr, depth: int) -> Pipeline | None:
        if isinstance(node, ast.Name):
            value = self._program.last_value(node)
            return self.of(value, depth + 1) if value is not None else None
        if not isinstance(node, ast.Call):
            return None
        path = self._program.path(node.func)
        if path.startswith(_SOURCES):
            return Pipeline((Step("source", node),), is_whole=True)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not path:
            base = self.of(node.func.value, depth + 1) or Pipeline((), is_whole=False)
            steps = (*base.steps[-_LONGEST:], Step(node.func.attr, node))
            return Pipeline(steps, base.is_whole and len(base.steps) <= _LONGEST)
        function = self._program.definition(node.func)
        return self._returned(function, depth) if function else None

    def _returned(self, function: Function, depth: int) -> Pipeline | None:
        """Return the pipeline that a function of the program returns."""
        if function not in self._known:
            self._known[function] = None
            values = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value]
            one = self.of(values[0], depth + 1) if len(values) == 1 else None
            self._known[function] = one
        return self._known[function]

    def work(self, call: ast.Call) -> frozenset[str]:
        """Say what the function given to a `map` does: decode, resize, augment, python, float."""
        return self._of_function(call.args[0], 0) if call.args else frozenset()

    def _of_function(self, given: ast.expr, depth: int) -> frozenset[str]:
        path = self._program.path(given)
        found = {kind for kind, paths in _WORK.items() if path.startswith(paths)}
        function = self._program.definition(given)
        if function is None or depth > _DEEPEST:
            return frozenset(found)
        if function not in self._work:
            self._work[function] = frozenset()  # ends circles
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            for call in calls:
                found |= self._of_function(call.func, depth + 1)
                kind = argument(call, 1, "dtype")
                if self._program.called(call) == "tf.cast" and kind is not None:
                    found |= {"float"} if self._program.path(kind) == "tf.float32" else set()
            self._work[function] = frozenset(found)
        return self._work[function]


def repeats_forever(steps: tuple[Step, ...]) -> bool:
    """Whether steps repeat without end, so that no batch is ever short."""
    return any(
        step.name == "repeat" and not step.call.args and not step.call.keywords for step in steps
    )


def consumed(program: Program) -> Iterator[Pipeline]:
    """Yield the data sets that a training consumes: given to fit, or looped over."""
    calls = program.methods("fit", "fit_generator", "experimental_distribute_dataset")
    given = [call.args[0] for call in calls if call.args]
    for node in (*given, *(loop.iter for loop in program.nodes[ast.For])):
        if pipeline := program.pipelines.of(node):
            yield pipeline
