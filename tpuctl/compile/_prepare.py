"""From the target of a request to a program that the compiler accepts."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpuctl.compile._mlir import find_batched, lower_module, read_file
from tpuctl.compile.models import CompileRequest, LoweredProgram
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.usercode.function import Function, load_function, parameters, user_code_errors

EXAMPLES_PER_DEVICE = 32
BATCH_NAMES = ("batch", "batch_size")
DTYPE_NAMES = {"bf16": "bfloat16", "f32": "float32"}
EXPECTED = (
    "a compiled Keras model, (model, (x, y)) with an example batch, or (step, arguments) with a "
    "JAX function or a tf.function"
)


def prepare(
    request: CompileRequest, devices: list[Any], enter: Callable[[str], None]
) -> LoweredProgram:
    """Load and lower a target; `enter` is called with each phase of running the user's code.

    Raises TargetError where the user's code fails, InvalidInputError for what cannot be compiled.
    """
    target = request.target
    if target.kind == "file":
        return _lower_file(request, devices)
    assert target.function
    enter(f"loading {target.text}")
    program = UserProgram(request, target.function, len(devices))
    enter(f"tracing {target.text}")
    with user_code_errors(f"Tracing {target.text} failed", target.function):
        return program.lower(devices)


def _lower_file(request: CompileRequest, devices: list[Any]) -> LoweredProgram:
    program = read_file(Path(request.target.path or ""))
    batched: list[int | None] = []
    notes: tuple[str, ...] = ()
    if request.batch_size:
        batched = find_batched(program, request.batch_size)
        if not any(dimension is not None for dimension in batched):
            raise InvalidInputError(
                f"No argument of {request.target.text} has {request.batch_size} examples in its "
                "first dimension.",
                hint="Omit --batch, or give the batch size that the program was built for.",
            )
    elif len(devices) > 1:
        notes = ("Without --batch it is unknown which arguments hold examples: unless the program "
                 "contains its sharding, every device does all of the work.",)  # fmt: skip
    examples = request.batch_size
    return lower_module(
        program, devices, batched=batched, examples=examples, framework="MLIR", notes=notes
    )


class UserProgram:
    """The result of the user's function, and its batch size."""

    def __init__(self, request: CompileRequest, function: Function, devices: int) -> None:
        self._request, self._function, self._devices = request, function, devices
        given = (*BATCH_NAMES, "image_size", "dtype")
        self._call = load_function(function, given=given, caller="fit")
        takes = parameters(self._call)
        self._batch_name = next((name for name in BATCH_NAMES if name in takes), None)
        # On a TPU the templates compute in bfloat16 by default.
        dtype = request.dtype or ("bf16" if request.target.kind == "template" else None)
        fixed = {"image_size": request.image_size, "dtype": DTYPE_NAMES[dtype] if dtype else None}
        self._fixed = {name: value for name, value in fixed.items() if value and name in takes}
        self._policy = None if "dtype" in takes else dtype
        default = takes[self._batch_name].default if self._batch_name else None
        fallback = default if isinstance(default, int) else EXAMPLES_PER_DEVICE * devices
        self.batch_size = request.batch_size or fallback
        self.value = self._make(self.batch_size)

    def _make(self, batch_size: int) -> Any:
        """Call the user's function, with Keras' policies set if it uses Keras."""
        given = {**self._fixed, **({self._batch_name: batch_size} if self._batch_name else {})}
        remat = self._request.remat
        had_keras = "keras" in sys.modules
        with user_code_errors(f"Calling {self._function} failed", self._function):
            if not had_keras:
                value = self._call(**given)
            if "keras" in sys.modules and (had_keras or self._policy or remat):
                from tpuctl.compile import _keras

                # A policy only affects layers that are built after it was set, so a function
                # that has just imported Keras is called a second time.
                if had_keras or _keras.is_model(_first(value)):
                    value = _keras.build(
                        lambda: self._call(**given), dtype=self._policy, remat=remat
                    )
        return value

    def lower(self, devices: list[Any]) -> LoweredProgram:
        """Lower a Keras model, or a step with its arguments."""
        value, name = self.value, str(self._function)
        if "keras" in sys.modules:
            from tpuctl.compile import _keras

            if _keras.is_model(_first(value)):
                return _keras.lower(
                    _first(value),
                    value[1] if isinstance(value, tuple) else None,
                    devices,
                    training=self._request.training,
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
        examples: int | None
        notes: tuple[str, ...] = ()
        if self._batch_name:
            batched, examples = self._compare_two_batches(adapter, arguments), self.batch_size
        else:
            batched, examples = _match_last_argument(adapter, arguments)
            if examples is not None:
                notes = (f"Batch size {examples:,}: the first dimension of the last argument.",)
            elif len(devices) > 1:
                notes = ("It is unknown which arguments hold examples: every device does all of "
                         "the work. Give the function a parameter batch.",)  # fmt: skip
            if self._request.batch_size not in (None, examples):
                raise UsageError(
                    f"{self._function} has no parameter batch, so --batch has no effect on it.",
                    hint=f"Give it a parameter: def {self._function.name}(batch): ...",
                )
        program: LoweredProgram = adapter.lower(
            step,
            arguments,
            devices,
            batched=batched,
            dtype=None if "dtype" in self._fixed else self._request.dtype,
            examples=examples,
            notes=notes,
        )
        return program

    def _compare_two_batches(self, adapter: Any, arguments: tuple[Any, ...]) -> list[int | None]:
        """Call the function for a second batch size: the dimensions that grow are the batch."""
        shapes = adapter.shapes_of(arguments)
        other = self._make(self.batch_size + self._devices)
        others = adapter.shapes_of(_as_arguments(other[1]))
        if len(others) != len(shapes):
            raise InvalidInputError(
                f"{self._function} returns different arguments for another batch size."
            )
        return [
            next((axis for axis, (m, n) in enumerate(zip(a, b, strict=False)) if m != n), None)
            for a, b in zip(shapes, others, strict=True)
        ]


def _match_last_argument(
    adapter: Any, arguments: tuple[Any, ...]
) -> tuple[list[int | None], int | None]:
    """Take for data every argument whose arrays are all as long as those of the last one."""
    lengths = {shape[0] if shape else None for shape in adapter.shapes_of(arguments[-1:])}
    examples = lengths.pop() if len(lengths) == 1 else None
    batched: list[int | None] = []
    for argument in arguments:
        shapes = adapter.shapes_of((argument,))
        is_data = examples is not None and all(shape[:1] == (examples,) for shape in shapes)
        batched += [0 if is_data else None] * len(shapes)
    return batched, examples


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
