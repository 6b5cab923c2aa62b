"""Keras 3 models on JAX and TensorFlow: their training step or their forward pass."""

from collections.abc import Callable
from typing import Any

import keras

from tpuctl.compile.models import Dtype, LoweredProgram
from tpuctl.errors import InvalidInputError

POLICIES = {"bf16": "mixed_bfloat16", "f32": "float32"}
_USERS_POLICY = keras.config.dtype_policy()


def is_model(value: Any) -> bool:
    """Whether a function gave a Keras model."""
    return isinstance(value, keras.Model)


def build(make: Callable[[], Any], *, dtype: Dtype | None, remat: bool) -> Any:
    """Call the user's function under a policy of element types, and of recomputing.

    Layers are named as in a new program, and a policy of the question before is forgotten.
    """
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(POLICIES[dtype] if dtype else _USERS_POLICY)
    if not remat:
        return make()
    with keras.RematScope(mode="full"):
        return make()


def lower(
    model: Any, data: Any, devices: list[Any], *, training: bool, batch_size: int, name: str
) -> LoweredProgram:
    """Lower a model for a batch; `data` is an example (x, y), or None to take it from the model.

    Raises InvalidInputError for a model that is not compiled, not built, or of unknown shapes.
    """
    backend = keras.backend.backend()
    if backend not in ("jax", "tensorflow"):
        raise InvalidInputError(
            f"{name} is a Keras model on {backend}, which cannot be compiled for a TPU here.",
            hint="KERAS_BACKEND=jax tpuctl fit ...",
        )
    if training and not getattr(model, "compiled", False):
        raise InvalidInputError(
            f"{name} gives a Keras model without loss and optimizer: it was not compiled.",
            hint="Call model.compile(...) in the function, or ask for --inference.",
        )
    inputs = _map(
        lambda leaf: _spec(leaf.shape, leaf.dtype, batch_size, name), _inputs(model, name)
    )
    if data is not None:
        data = _map(lambda leaf: _struct(leaf.shape, leaf.dtype), data)
    elif training:
        data = (inputs, _targets(model, batch_size, name))
    about = {
        "framework": f"keras on {backend}",
        "examples": batch_size,
        "layers": _names_of_layers(model),
    }
    if training:
        _build_for_training(model, data)
        return (_jax_training if backend == "jax" else _tf_step)(model, data, devices, True, about)
    x = data[0] if isinstance(data, tuple) else inputs
    return (_jax_inference if backend == "jax" else _tf_step)(model, x, devices, False, about)


def _jax_training(
    model: Any, data: Any, devices: Any, _: bool, about: dict[str, Any]
) -> LoweredProgram:
    from tpuctl.compile._jax import lower_keras, struct

    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([struct(v.shape, v.dtype) for v in group] for group in groups)
    return lower_keras(model.train_step, state, data, devices, **about)


def _jax_inference(
    model: Any, x: Any, devices: Any, _: bool, about: dict[str, Any]
) -> LoweredProgram:
    from tpuctl.compile._jax import lower_keras, struct

    groups = (model.trainable_variables, model.non_trainable_variables)
    state = tuple([struct(v.shape, v.dtype) for v in group] for group in groups)

    def forward(state: Any, x: Any) -> Any:
        outputs, changed = model.stateless_call(*state, x, training=False)
        return outputs, (state[0], changed)

    return lower_keras(forward, state, x, devices, **about)


def _tf_step(
    model: Any, data: Any, devices: Any, training: bool, about: dict[str, Any]
) -> LoweredProgram:
    from tpuctl.compile._tf import lower

    def step(data: Any) -> Any:
        return model.train_step(data) if training else model(data, training=False)

    count = len(keras.tree.flatten(data))
    return lower(step, (data,), devices, batched=[0] * count, dtype=None, **about)


def _build_for_training(model: Any, data: Any) -> None:
    """Make the variables of the optimizer and of the metrics, which a first batch would make."""
    model._symbolic_build(data_batch=data)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _names_of_layers(model: Any) -> tuple[str, ...]:
    return tuple(layer.name for layer in model._flatten_layers(include_self=False))


def _inputs(model: Any, name: str) -> Any:
    try:
        inputs = model.inputs
    except (AttributeError, ValueError):
        inputs = None
    if not inputs:
        raise InvalidInputError(
            f"{name} gives a Keras model that does not say what its inputs are.",
            hint="Begin it with keras.Input, or return (model, (x, y)) with an example batch.",
        )
    return _single(getattr(model, "_inputs_struct", inputs))


def _targets(model: Any, batch_size: int, name: str) -> Any:
    """What a loss compares the outputs with: class numbers for a sparse one, else their like."""

    def target(output: Any, loss: Any) -> Any:
        if isinstance(output, dict):
            return {key: target(below, _part(loss, key)) for key, below in output.items()}
        if isinstance(output, (list, tuple)):
            return [target(below, _part(loss, i)) for i, below in enumerate(output)]
        if "sparse" in _loss_name(loss):
            return _spec(output.shape[:-1], "int32", batch_size, name)
        return _spec(output.shape, "float32", batch_size, name)

    structure = getattr(model, "_outputs_struct", model.outputs)
    return target(_single(structure), model.loss)


def _part(loss: Any, key: Any) -> Any:
    return loss[key] if isinstance(loss, (dict, list, tuple)) else loss


def _single(structure: Any) -> Any:
    """A structure without the list around its only member."""
    return (
        structure[0] if isinstance(structure, (list, tuple)) and len(structure) == 1 else structure
    )


def _loss_name(loss: Any) -> str:
    if isinstance(loss, str):
        return loss.lower()
    return str(getattr(loss, "__name__", type(loss).__name__)).lower()


def _spec(shape: Any, dtype: Any, batch_size: int, name: str) -> Any:
    unknown = [axis for axis, size in enumerate(shape) if size is None and axis > 0]
    if unknown:
        raise InvalidInputError(
            f"{name}: dimension {unknown[0]} of an input of shape {tuple(shape)} is not known; a "
            "TPU program has fixed shapes.",
            hint="Give keras.Input the sizes, or return (model, (x, y)) with an example batch.",
        )
    return _struct((batch_size, *shape[1:]), keras.backend.standardize_dtype(dtype))


def _struct(shape: Any, dtype: Any) -> Any:
    if keras.backend.backend() == "jax":
        from tpuctl.compile._jax import struct
    else:
        from tpuctl.compile._tf import spec as struct
    return struct(shape, str(keras.backend.standardize_dtype(dtype)))


def _map(function: Callable[[Any], Any], structure: Any) -> Any:
    return keras.tree.map_structure(function, structure)
