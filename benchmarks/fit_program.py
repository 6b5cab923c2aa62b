"""What fit_overhead compiles, with and without tpuctl: three convolutions and their gradients."""

from typing import Any


def make() -> Any:
    """A step and its arguments."""
    import jax
    import jax.numpy as jnp

    def loss(kernels: Any, x: Any) -> Any:
        for kernel in kernels:
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(
                jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=dimensions
                )
            )
        return jnp.mean(x**2)

    def step(kernels: Any, x: Any) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, x))

    kernels = [jax.ShapeDtypeStruct((3, 3, 128, 128), jnp.bfloat16)] * 3
    return jax.jit(step, donate_argnums=0), (
        kernels,
        jax.ShapeDtypeStruct((32, 28, 28, 128), jnp.bfloat16),
    )
