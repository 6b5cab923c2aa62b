"""Keras 3 models on JAX and TensorFlow: their training step or their forward pass."""

from collections.abc import Callable
from typing import Any

import keras

from tpuctl.compile.models import Dtype, LoweredProgram
from tpuctl.errors import InvalidInputError

POLICIES = {"bf16": "mixed_bfloat16", "f32": "float32"}
_USERS_POLICY = keras.config.dtype_policy()


def is_model(value: Any) -> bool:
    """Whether a value is a Keras model."""
    return isinstance(value, keras.Model)


def build(make: Callable[[], Any], *, dtype: Dtype | None, remat: bool) -> Any:
    """Call the user's function under a dtype policy, and with rematerialization if requested.

    Layer names and the policy start over, so that earlier requests have no effect.
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
    """Lower a model for a batch; `data` is an example (x, y), or None to derive it from the model.

    Raises InvalidInputError for a model that is not compiled or built, or has unknown shapes.
    """
    backend = keras.backend.backend()
    if backend not in ("jax", "tensorflow"):
        raise InvalidInputError(
            f"{name} is a Keras model on {backend}, which cannot be compiled for a TPU here.",
            hint="KERAS_BACKEND=jax tpuctl fit ...",
        )
    if training and not getattr(model, "compiled", False):
        raise InvalidInputError(
            f"{name} returns a Keras model without loss and optimizer: it was not compiled.",
            hint="Call model.compile(...) in the function, or use --inference.",
        )
    inputs = keras.tree.map_structure(
        lambda leaf: _batch_spec(leaf.shape, leaf.dtype, batch_size, name), _inputs(model, name)
    )
    if data is not None:
        data = keras.tree.map_structure(lambda leaf: _spec(leaf.shape, leaf.dtype), data)
    elif training:
        data = (inputs, _targets(model, batch_size, name))
    if training:
        # Create the variables that the first batch would create.
        model._symbolic_build(data_batch=data)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    else:
        data = data[0] if isinstance(data, tuple) else inputs
    return (_lower_jax if backend == "jax" else _lower_tensorflow)(
        model,
        data,
        devices,
        training=training,
        framework=f"keras on {backend}",
        examples=batch_size,
        layers=tuple(layer.name for layer in model._flatten_layers(include_self=False)),
    )


def _lower_jax(
    model: Any, data: Any, devices: Any, *, training: bool, **about: Any
) -> LoweredProgram:
    from tpuctl.compile._jax import lower_keras, spec

    groups = [model.trainable_variables, model.non_trainable_variables]
    if training:
        groups += [model.optimizer.variables, model.metrics_variables]
    state = tuple([spec(v.shape, v.dtype) for v in group] for group in groups)

    def forward(state: Any, x: Any) -> Any:
        outputs, changed = model.stateless_call(*state, x, training=False)
        return outputs, (state[0], changed)

    return lower_keras(model.train_step if training else forward, state, data, devices, **about)


def _lower_tensorflow(
    model: Any, data: Any, devices: Any, *, training: bool, **about: Any
) -> LoweredProgram:
    from tpuctl.compile._tf import lower

    def step(data: Any) -> Any:
        return model.train_step(data) if training else model(data, training=False)

    batched = [0] * len(keras.tree.flatten(data))
    return lower(step, (data,), devices, batched=batched, dtype=None, **about)


def _inputs(model: Any, name: str) -> Any:
    try:
        inputs = model.inputs
    except (AttributeError, ValueError):
        inputs = None
    if not inputs:
        raise InvalidInputError(
            f"{name} returns a Keras model whose inputs are unknown.",
            hint="Start it with keras.Input, or return (model, (x, y)) with an example batch.",
        )
    return _unwrap(getattr(model, "_inputs_struct", inputs))


def _targets(model: Any, batch_size: int, name: str) -> Any:
    """Describe what the loss compares outputs with: class numbers if sparse, else like outputs."""

    def target(output: Any, loss: Any) -> Any:
        if isinstance(output, dict):
            return {key: target(part, _part(loss, key)) for key, part in output.items()}
        if isinstance(output, (list, tuple)):
            return [target(part, _part(loss, i)) for i, part in enumerate(output)]
        kind = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        if "sparse" in str(kind).lower():
            return _batch_spec(output.shape[:-1], "int32", batch_size, name)
        return _batch_spec(output.shape, "float32", batch_size, name)

    structure = getattr(model, "_outputs_struct", model.outputs)
    return target(_unwrap(structure), model.loss)


def _part(loss: Any, key: Any) -> Any:
    return loss[key] if isinstance(loss, (dict, list, tuple)) else loss


def _unwrap(structure: Any) -> Any:
    """Remove the list around a single member."""
    is_single = isinstance(structure, (list, tuple)) and len(structure) == 1
    return structure[0] if is_single else structure


def _batch_spec(shape: Any, dtype: Any, batch_size: int, name: str) -> Any:
    unknown = [axis for axis, size in enumerate(shape) if size is None and axis > 0]
    if unknown:
        raise InvalidInputError(
            f"{name}: dimension {unknown[0]} of an input of shape {tuple(shape)} is unknown, but "
            "a TPU program has fixed shapes.",
            hint="Give keras.Input all sizes, or return (model, (x, y)) with an example batch.",
        )
    return _spec((batch_size, *shape[1:]), dtype)


def _spec(shape: Any, dtype: Any) -> Any:
    if keras.backend.backend() == "jax":
        from tpuctl.compile._jax import spec
    else:
        from tpuctl.compile._tf import spec
    return spec(shape, str(keras.backend.standardize_dtype(dtype)))
