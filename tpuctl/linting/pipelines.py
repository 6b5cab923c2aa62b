"""Input pipelines of tf.data in a program: the steps that lead to a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tpuctl.linting.program import Program
from tpuctl.linting.scope import FUNCTIONS

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
_DECODERS = (
    "tf.io.decode_jpeg", "tf.image.decode_jpeg", "tf.io.decode_image", "tf.image.decode_image",
    "tf.io.decode_png", "tf.image.decode_png", "tf.io.decode_and_crop_jpeg",
    "tf.image.decode_and_crop_jpeg",
)  # fmt: skip
_RESIZERS = (
    "tf.image.resize", "tf.image.resize_with_pad", "tf.image.resize_with_crop_or_pad",
    "tf.compat.v1.image.resize_images", "tf.image.resize_images",
)  # fmt: skip
_RANDOM = (
    "tf.image.random_", "tf.random.", "tf.image.stateless_", "tf.image.sample_distorted",
    "keras.layers.Random", "tf.keras.layers.Random",
)  # fmt: skip
PYTHON_FUNCTIONS = ("tf.py_function", "tf.numpy_function", "tf.compat.v1.py_func", "tf.py_func")


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
        self._known: dict[ast.expr, Pipeline | None] = {}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, Pipeline]]:
        """Every call of a method of a data set, with the steps up to and with it."""
        if not self._uses_tensorflow:
            return []
        found = [(call, self.of(call)) for call in self._program.methods(*METHODS)]
        # A map alone could be of many classes; a batch() after it tells what it is.
        sure = {s.call for _, p in found if p and _is_tf_data(p) for s in p.steps}
        return [(call, pipeline) for call, pipeline in found if pipeline and call in sure]

    @property
    def _uses_tensorflow(self) -> bool:
        return any(path == "tf" or path.startswith("tf.") for _, path in self._program.imports)

    def of(self, node: ast.expr, depth: int = 0) -> Pipeline | None:
        """Return the pipeline that an expression is, or None."""
        if node not in self._known:
            self._known[node] = None
            self._known[node] = self._find(node, depth)
        return self._known[node]

    def _find(self, node: ast.expr, depth: int) -> Pipeline | None:
        if depth > _DEEPEST:
            return None
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
        return self._returned(node, depth)

    def _returned(self, call: ast.Call, depth: int) -> Pipeline | None:
        """Return the pipeline that a function of the program returns."""
        for function in self._program.definitions(call.func):
            returns = [
                child.value
                for child in ast.walk(function)
                if isinstance(child, ast.Return) and child.value is not None
            ]
            if len(returns) == 1 and (found := self.of(returns[0], depth + 1)):
                return found
        return None

    def called_in(self, call: ast.Call) -> set[str]:
        """Return the paths of all functions that the function given to a `map` calls."""
        found: set[str] = set()
        if call.args:
            self._collect(call.args[0], found, set())
        return found

    def _collect(self, function: ast.expr, found: set[str], seen: set[ast.AST]) -> None:
        found.add(self._program.path(function))
        for definition in self._program.definitions(function):
            if definition in seen:
                continue
            seen.add(definition)
            for child in ast.walk(definition):
                if isinstance(child, ast.Call):
                    self._collect(child.func, found, seen)
                elif isinstance(child, FUNCTIONS):
                    seen.add(child)


def _is_tf_data(pipeline: Pipeline) -> bool:
    return pipeline.is_whole or bool(_OWN.intersection(pipeline.names))


def decodes(called: set[str]) -> bool:
    """Whether a function decodes images."""
    return bool(called.intersection(_DECODERS))


def resizes(called: set[str]) -> bool:
    """Whether a function resizes images."""
    return bool(called.intersection(_RESIZERS))


def augments(called: set[str]) -> bool:
    """Whether a function changes examples at random."""
    return any(path.startswith(_RANDOM) for path in called)


def runs_python(called: set[str]) -> bool:
    """Whether a function calls back into Python."""
    return bool(called.intersection(PYTHON_FUNCTIONS))


def repeats_forever(steps: tuple[Step, ...]) -> bool:
    """Whether steps repeat without end, so that no batch is ever short."""
    return any(
        step.name == "repeat" and not step.call.args and not step.call.keywords for step in steps
    )


def loops_over(program: Program, pipelines: Pipelines) -> Iterator[tuple[ast.expr, Pipeline]]:
    """Yield the data sets that a training consumes: given to fit, or looped over."""
    for call in program.methods("fit", "fit_generator", "experimental_distribute_dataset"):
        if call.args and (pipeline := pipelines.of(call.args[0])):
            yield call.args[0], pipeline
    for loop in program.nodes[ast.For]:
        if pipeline := pipelines.of(loop.iter):
            yield loop.iter, pipeline
