"""TensorFlow functions: TensorFlow lowers them to StableHLO, which is compiled like any other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tpuctl.compile._mlir import lower_module
from tpuctl.compile.models import Dtype, LoweredProgram

DTYPES = {"bf16": tf.bfloat16, "f32": tf.float32}


def is_tensorflow(step: Any, arguments: Sequence[Any]) -> bool:
    """Whether a step or its arguments are TensorFlow's."""
    kinds = (tf.Tensor, tf.TensorSpec, tf.Variable)
    leaves = tf.nest.flatten(list(arguments))
    return hasattr(step, "get_concrete_function") or any(isinstance(x, kinds) for x in leaves)


def shapes_of(arguments: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shape of every leaf."""
    return [tuple(spec.shape) for spec in _specs(arguments, None)]


def lower(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    devices: list[Any],
    *,
    batched: Sequence[int | None],
    dtype: Dtype | None,
    examples: int | None,
    notes: tuple[str, ...] = (),
    framework: str = "tensorflow",
    layers: tuple[str, ...] = (),
) -> LoweredProgram:
    """Lower a function; the variables that it captures become arguments after its own."""
    plain = getattr(step, "python_function", step)
    specs = _specs(arguments, dtype)

    def flat(*tensors: Any) -> Any:
        """Take flat arguments, so that their order is known whatever their nesting."""
        return plain(*tf.nest.pack_sequence_as(list(arguments), tensors))

    compiled = tf.function(flat, jit_compile=True)
    text = compiled.experimental_get_compiler_ir(*specs)(stage="stablehlo")
    program = lower_module(
        text, devices, batched=batched, examples=examples, framework=framework, notes=notes
    )
    return replace(program, layers=layers)


def spec(shape: Sequence[int], dtype: str) -> Any:
    """Describe a tensor by shape and element type."""
    return tf.TensorSpec(shape, dtype)


def _specs(arguments: Sequence[Any], dtype: Dtype | None) -> list[Any]:
    specs = []
    for leaf in tf.nest.flatten(list(arguments)):
        tensor = leaf if hasattr(leaf, "shape") else tf.convert_to_tensor(leaf)
        kind = tensor.dtype
        if dtype and tf.as_dtype(kind).is_floating:
            kind = DTYPES[dtype]
        specs.append(tf.TensorSpec(tensor.shape, kind))
    return specs
