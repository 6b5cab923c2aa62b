"""JAX programs: a step and its example arguments, sharded over the devices by their batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpuctl.compile.models import Dtype, LoweredProgram, require_even_batch

DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


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
    """Trace a step for the devices; `batched` has the batch dimension of every leaf."""
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
    """Trace a Keras step: the state is replicated, the data is split along the batch."""
    batched = [None] * len(jax.tree.leaves(state)) + [0] * len(jax.tree.leaves(data))
    jitted = jax.jit(step, donate_argnums=0)
    return lower(jitted, (state, data), devices, batched=batched, dtype=None, **about)


def spec(shape: Sequence[int], dtype: str) -> Any:
    """Describe an array by shape and element type."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def shapes_of(arguments: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shape of every leaf; empty for a number."""
    return [tuple(getattr(leaf, "shape", ())) for leaf in jax.tree.leaves(tuple(arguments))]


def _place(leaf: Any, mesh: Mesh, dimension: int | None, dtype: Dtype | None) -> Any:
    if not hasattr(leaf, "shape"):
        return leaf
    kind = leaf.dtype
    if dtype and jnp.issubdtype(kind, jnp.floating):
        kind = DTYPES[dtype]
    axes = [] if dimension is None else [*[None] * dimension, "batch"]
    if dimension is not None:
        require_even_batch(leaf.shape[dimension], mesh.size)
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(leaf.shape, kind, sharding=sharding)
