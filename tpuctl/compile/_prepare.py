"""From what a question names to a program that the compiler takes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpuctl.compile._mlir import batched_by_size, read_file, work_of
from tpuctl.compile.models import CompileRequest, LoweredProgram
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.usercode.function import Function, load_function, parameters, users_errors

EXAMPLES_PER_DEVICE = 32
BATCH_NAMES = ("batch", "batch_size")
WIDTHS = {"bf16": "bfloat16", "f32": "float32"}
EXPECTED = (
    "a compiled Keras model, (model, (x, y)) with an example batch, or (step, arguments) with a "
    "JAX function or a tf.function"
)


def prepare(
    question: CompileRequest, devices: list[Any], enter: Callable[[str], None]
) -> LoweredProgram:
    """Load and lower a target. `enter` is told what the user's code is doing.

    Raises TargetError where the user's code fails, InvalidInputError for what cannot be compiled.
    """
    target = question.target
    if target.kind == "file":
        return _from_file(question, devices)
    assert target.function
    enter(f"loading {target.text}")
    made = _Made(question, target.function, len(devices))
    enter(f"tracing {target.text}")
    with users_errors(f"Tracing {target.text} failed", target.function):
        return made.lower(devices)


def _from_file(question: CompileRequest, devices: list[Any]) -> LoweredProgram:
    program = read_file(Path(question.target.path or ""))
    batched: list[int | None] = []
    notes: tuple[str, ...] = ()
    if question.batch_size:
        batched = batched_by_size(program, question.batch_size)
        if not any(at is not None for at in batched):
            raise InvalidInputError(
                f"No argument of {question.target.text} has {question.batch_size} examples in its "
                "first dimension.",
                hint="Leave --batch out, or give the batch that the program was made for.",
            )
    elif len(devices) > 1:
        notes = ("Without --batch nothing tells which arguments hold examples: unless the program "
                 "says how it is cut, every device does all of the work.",)  # fmt: skip
    examples = question.batch_size
    return work_of(
        program, devices, batched=batched, examples=examples, framework="MLIR", notes=notes
    )


class _Made:
    """What the user's function gave, and for which batch."""

    def __init__(self, question: CompileRequest, function: Function, devices: int) -> None:
        self._question, self._function, self._devices = question, function, devices
        given = (*BATCH_NAMES, "image_size", "dtype")
        self._call = load_function(function, given=given, caller="fit")
        takes = parameters(self._call)
        self._batch_name = next((name for name in BATCH_NAMES if name in takes), None)
        # On a TPU the templates compute in bfloat16 unless they are told otherwise.
        dtype = question.dtype or ("bf16" if question.target.kind == "template" else None)
        fixed = {"image_size": question.image_size, "dtype": WIDTHS[dtype] if dtype else None}
        self._fixed = {name: value for name, value in fixed.items() if value and name in takes}
        self._policy = None if "dtype" in takes else dtype
        default = takes[self._batch_name].default if self._batch_name else None
        fallback = default if isinstance(default, int) else EXAMPLES_PER_DEVICE * devices
        self.batch_size = question.batch_size or fallback
        self.value = self._make(self.batch_size)

    def _make(self, batch_size: int) -> Any:
        """Call the user's function, under the policies that were asked for if Keras is there."""
        given = {**self._fixed, **({self._batch_name: batch_size} if self._batch_name else {})}
        question = self._question
        had_keras = "keras" in sys.modules
        with users_errors(f"Calling {self._function} failed", self._function):
            if not had_keras:
                value = self._call(**given)
            if "keras" in sys.modules and (had_keras or self._policy or question.remat):
                from tpuctl.compile import _keras

                # Policies count from the moment they are set: a function that has only now
                # imported Keras is called again.
                if had_keras or _keras.is_model(_first(value)):
                    value = _keras.build(
                        lambda: self._call(**given), dtype=self._policy, remat=question.remat
                    )
        return value

    def lower(self, devices: list[Any]) -> LoweredProgram:
        value, name = self.value, str(self._function)
        if "keras" in sys.modules:
            from tpuctl.compile import _keras

            if _keras.is_model(_first(value)):
                data = value[1] if isinstance(value, tuple) else None
                return _keras.lower(
                    _first(value),
                    data,
                    devices,
                    training=self._question.training,
                    batch_size=self.batch_size,
                    name=name,
                )
        if not (isinstance(value, tuple) and len(value) == 2 and callable(value[0])):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise InvalidInputError(
                f"{name} returned a {kind}, which fit cannot compile.", hint=f"Return {EXPECTED}."
            )
        return self._lower_step(value[0], _as_arguments(value[1]), devices)

    def _lower_step(
        self, step: Any, arguments: tuple[Any, ...], devices: list[Any]
    ) -> LoweredProgram:
        adapter = _adapter_of(step, arguments)
        shapes = adapter.shapes_of(arguments)
        if self._batch_name:
            batched = self._found_by_calling_twice(adapter, shapes)
            examples: int | None = self.batch_size
            notes: tuple[str, ...] = ()
        else:
            batched, examples = _found_by_last_argument(adapter, arguments, shapes)
            notes = _notes(examples, len(devices))
            if self._question.batch_size not in (None, examples):
                raise UsageError(
                    f"{self._function} takes no batch, so --batch cannot change it.",
                    hint=f"Give it a parameter: def {self._function.name}(batch): ...",
                )
        work: LoweredProgram = adapter.lower(
            step,
            arguments,
            devices,
            batched=batched,
            dtype=None if "dtype" in self._fixed else self._question.dtype,
            examples=examples,
            notes=notes,
        )
        return work

    def _found_by_calling_twice(
        self, adapter: Any, shapes: list[tuple[int, ...]]
    ) -> list[int | None]:
        """The dimension of each array that grows with the batch."""
        other = self._make(self.batch_size + self._devices)
        others = adapter.shapes_of(_as_arguments(other[1]))
        if len(others) != len(shapes):
            raise InvalidInputError(f"{self._function} gives other arguments for another batch.")
        return [
            next((axis for axis, (m, n) in enumerate(zip(a, b, strict=False)) if m != n), None)
            for a, b in zip(shapes, others, strict=True)
        ]


def _found_by_last_argument(
    adapter: Any, arguments: tuple[Any, ...], shapes: list[tuple[int, ...]]
) -> tuple[list[int | None], int | None]:
    """Take for data the arguments all of whose arrays are as long as the last one's."""
    lengths = {shape[0] if shape else None for shape in adapter.shapes_of(arguments[-1:])}
    examples = lengths.pop() if len(lengths) == 1 else None
    batched: list[int | None] = []
    for argument in arguments:
        own = adapter.shapes_of((argument,))
        is_data = examples is not None and all(shape[:1] == (examples,) for shape in own)
        batched += [0 if is_data else None] * len(own)
    assert len(batched) == len(shapes)
    return batched, examples


def _notes(examples: int | None, devices: int) -> tuple[str, ...]:
    if examples is not None:
        return (f"A batch of {examples:,}: the first dimension of the last argument.",)
    if devices > 1:
        return ("Nothing tells which arguments hold examples: every device does all of the work. "
                "Give the function a parameter batch.",)  # fmt: skip
    return ()


def _adapter_of(step: Any, arguments: tuple[Any, ...]) -> Any:
    if "tensorflow" in sys.modules:
        from tpuctl.compile import _tf

        if _tf.is_tensorflow(step, arguments):
            return _tf
    from tpuctl.compile import _jax

    return _jax


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and value else value


def _as_arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
