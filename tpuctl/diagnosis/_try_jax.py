"""The trials, done with JAX. Run as a program in a child process."""

import sys
from typing import Any

import jax
import jax.numpy as jnp

from tpuctl.diagnosis.numerics import answer, matrices


def devices() -> dict[str, Any]:
    """Multiply once on each device of this host."""
    found = jax.local_devices()
    sums = []
    for device in found:
        ones = jax.device_put(jnp.ones((128, 128), jnp.float32), device)
        sums.append(float((ones @ ones).sum()))
    return {"devices": [f"{d.platform}:{d.id} {d.device_kind}" for d in found], "sums": sums}


def numerics() -> dict[str, Any]:
    """The matrix test in default and in highest precision."""
    results = {}
    for precision in ("default", "highest"):
        with jax.default_matmul_precision(precision):
            results[precision] = _matrices()
    device = jax.local_devices()[0]
    return {"device": f"{device.platform}:{device.id} {device.device_kind}", "results": results}


def _matrices() -> dict[str, Any]:
    pv, q = (jnp.array(rows, jnp.float32) for rows in matrices())
    inverse = jnp.linalg.inv(pv)
    qep = inverse.T @ q @ inverse
    return {"QEP": qep.tolist(), "Q": (pv.T @ qep @ pv).tolist()}


if __name__ == "__main__":
    answer({"devices": devices, "numerics": numerics}[sys.argv[1]]())
