"""JAX programs: a step and its example arguments, spread over the devices by their batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuctl.compile.models import Dtype, LoweredProgram, refuse_uneven

NARROW = {"bf16": jnp.bfloat16, "f32": jnp.float32}


def lower(
    step: Callable[..., Any],
    arguments: Sequence[Any],
    devices: list[Any],
    *,
    batched: Sequence[int | None],
    dtype: Dtype | None,
    examples: int | None,
    notes: tuple[str, ...] = (),
    framework: str = "jax",
    layers: tuple[str, ...] = (),
) -> LoweredProgram:
    """Trace a step for the devices. `batched` has, for every leaf, the dimension of its batch."""
    mesh = Mesh(np.array(devices), ("batch",))
    leaves, tree = jax.tree.flatten(tuple(arguments))
    placed = [
        _place(leaf, mesh, dimension, dtype)
        for leaf, dimension in zip(leaves, batched, strict=True)
    ]
    traced = step if hasattr(step, "lower") else jax.jit(step)
    lowered = traced.lower(*jax.tree.unflatten(tree, placed))
    return LoweredProgram(
        framework=framework,
        compile=lambda options: lowered.compile(
            compiler_options=options or None
        ).runtime_executable(),
        text=lowered.as_text(),
        examples=examples,
        fixed_bytes=sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize
            for leaf, dimension in zip(placed, batched, strict=True)
            if dimension is None and hasattr(leaf, "shape")
        ),
        notes=notes,
        layers=layers,
    )


def lower_keras(
    step: Callable[..., Any], state: Any, data: Any, devices: list[Any], **about: Any
) -> LoweredProgram:
    """Trace a Keras step: the state on every device, the data cut along the batch."""
    batched = [None] * len(jax.tree.leaves(state)) + [0] * len(jax.tree.leaves(data))
    jitted = jax.jit(step, donate_argnums=0)
    return lower(jitted, (state, data), devices, batched=batched, dtype=None, **about)


def struct(shape: Sequence[int], dtype: str) -> Any:
    """A shape and an element type."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def shapes_of(arguments: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shape of every leaf; empty for a number."""
    return [tuple(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tuple(arguments))]


def _place(leaf: Any, mesh: Mesh, dimension: int | None, dtype: Dtype | None) -> Any:
    if not hasattr(leaf, "shape"):
        return leaf
    kind = leaf.dtype
    if dtype and jnp.issubdtype(kind, jnp.floating):
        kind = NARROW[dtype]
    axes = [] if dimension is None else [*[None] * dimension, "batch"]
    if dimension is not None:
        refuse_uneven(leaf.shape[dimension], mesh.size)
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(leaf.shape, kind, sharding=sharding)
