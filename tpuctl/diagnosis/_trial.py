"""Test the accelerator; the arguments are `FRAMEWORK devices|numerics [local]`.

Runs in a child process of `trials`, and prints its result as JSON on one marked line.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MARK = "tpuctl-trial:"
PRECISIONS = ("default", "highest")
# The computation of the notebook "GPU against TPU": QEP = PV^-T Q PV^-1, and Q back from it.
PV = (
    (0.839099, 0.0, -0.000604, -0.000091),
    (-0.000238, 0.771070, -0.330967, -0.126752),
    (-0.000688, -0.410530, -0.956432, 1.249704),
    (-0.000661, -0.394431, -0.918925, 1.592853),
)
Q = (
    (12.755102, 0.0, 0.0, 0.0),
    (0.0, 12.755102, 0.0, 0.0),
    (0.0, 0.0, 12.755102, 0.0),
    (0.0, 0.0, 0.0, -1.0),
)


class Jax:
    """The trials with JAX."""

    def __init__(self, *, local: bool) -> None:
        import jax

        self._jax = jax

    def devices(self) -> list[Any]:
        """List the devices of this host."""
        return list(self._jax.local_devices())

    def name(self, device: Any) -> str:
        """Name a device for the report."""
        return f"{device.platform}:{device.id} {device.device_kind}"

    def sum_of_product(self, device: Any) -> float:
        """Multiply two matrices of ones and add up the result."""
        numpy = self._jax.numpy
        ones = self._jax.device_put(numpy.ones((128, 128), numpy.float32), device)
        return float((ones @ ones).sum())

    def matrix_test(self, device: Any, precision: str) -> tuple[Any, Any]:
        """Compute QEP and Q."""
        with self._jax.default_matmul_precision(precision):
            pv, q = (self._jax.device_put(self._jax.numpy.array(m), device) for m in (PV, Q))
            inverse = self._jax.numpy.linalg.inv(pv)
            qep = inverse.T @ q @ inverse
            return qep, pv.T @ qep @ pv


class TensorFlow:
    """The trials with TensorFlow; `local` starts the TPU system of this host first."""

    # xla.PrecisionConfig{operand_precision: HIGHEST, HIGHEST}, xla.DotDimensionNumbers{1 x 0}.
    _HIGHEST, _DOT = b"\x0a\x02\x02\x02", b"\x0a\x01\x01\x12\x01\x00"

    def __init__(self, *, local: bool) -> None:
        import tensorflow as tf

        self._tf = tf
        if local:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)

    def devices(self) -> list[Any]:
        """List the TPUs, or else the GPUs, or else the CPU."""
        found = map(self._tf.config.list_logical_devices, ("TPU", "GPU", "CPU"))
        return [device.name for device in next(filter(None, found), [])]

    def name(self, device: Any) -> str:
        """Name a device for the report."""
        return str(device)

    def sum_of_product(self, device: Any) -> float:
        """Multiply two matrices of ones and add up the result."""
        with self._tf.device(device):
            ones = self._tf.ones((128, 128), self._tf.float32)
            return float(self._tf.reduce_sum(ones @ ones))

    def matrix_test(self, device: Any, precision: str) -> tuple[Any, Any]:
        """Compute QEP and Q, compiled by XLA."""
        tf = self._tf
        multiply = self._highest if precision == "highest" else tf.matmul

        def run(pv: Any, q: Any) -> Any:
            inverse = tf.linalg.inv(pv)
            qep = multiply(multiply(tf.transpose(inverse), q), inverse)
            return qep, multiply(multiply(tf.transpose(pv), qep), pv)

        with tf.device(device):
            qep, back = tf.function(run, jit_compile=True)(tf.constant(PV), tf.constant(Q))
        return qep.numpy(), back.numpy()

    def _highest(self, left: Any, right: Any) -> Any:
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        return gen_xla_ops.xla_dot_v2(
            lhs=left,
            rhs=right,
            dimension_numbers=self._DOT,
            precision_config=self._HIGHEST,
            preferred_element_type=self._tf.float32,
        )


class Torch:
    """The trials with PyTorch, through TorchTPU or torch_xla where it is installed."""

    def __init__(self, *, local: bool) -> None:
        # Kaggle sets one address, with which torch_xla would wait for more processes.
        os.environ.pop("TPU_PROCESS_ADDRESSES", None)
        import torch

        self._torch = torch

    def devices(self) -> list[Any]:
        """List the XLA devices, or else the GPUs, or else the CPU."""
        device = self._torch.device
        if hasattr(self._torch, "tpu"):  # TorchTPU registers itself when torch is imported
            return [device("tpu", n) for n in range(self._torch.tpu.device_count())]
        if importlib.util.find_spec("torch_xla"):
            import torch_xla.core.xla_model as xm

            return [device(name) for name in xm.get_xla_supported_devices()]
        count = self._torch.cuda.device_count()
        return [device("cuda", n) for n in range(count)] or [device("cpu")]

    def name(self, device: Any) -> str:
        """Name a device for the report."""
        return str(device)

    def sum_of_product(self, device: Any) -> float:
        """Multiply two matrices of ones and add up the result."""
        ones = self._torch.ones(128, 128, device=device)
        return float((ones @ ones).sum())

    def matrix_test(self, device: Any, precision: str) -> tuple[Any, Any]:
        """Compute QEP and Q; once set, a precision cannot be changed."""
        if precision == "highest":
            self._torch.set_float32_matmul_precision("highest")
            if str(device).startswith("xla"):
                import torch_xla

                torch_xla.backends.set_mat_mul_precision("highest")
        pv, q = (self._torch.tensor(m, device=device) for m in (PV, Q))
        inverse = self._torch.linalg.inv(pv)
        qep = inverse.T @ q @ inverse
        return qep.cpu(), (pv.T @ qep @ pv).cpu()


Framework = Jax | TensorFlow | Torch
FRAMEWORKS: dict[str, Callable[..., Framework]] = {
    "jax": Jax,
    "tensorflow": TensorFlow,
    "torch": Torch,
}


def devices(framework: Framework) -> dict[str, Any]:
    """Multiply once on each device."""
    found = framework.devices()
    return {
        "devices": [framework.name(device) for device in found],
        "sums": [framework.sum_of_product(device) for device in found],
    }


def numerics(framework: Framework) -> dict[str, Any]:
    """Run the matrix test on one device, in the default and in the highest precision."""
    device = framework.devices()[0]
    results = {}
    for precision in PRECISIONS:
        qep, back = framework.matrix_test(device, precision)
        results[precision] = {"QEP": qep.tolist(), "Q": back.tolist()}
    return {"device": framework.name(device), "results": results}


def main() -> None:
    """Run one trial and print its result."""
    framework, trial, *options = sys.argv[1:]
    run = {"devices": devices, "numerics": numerics}[trial]
    answer = run(FRAMEWORKS[framework](local="local" in options))
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
