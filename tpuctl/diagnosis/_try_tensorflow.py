"""The trials, done with TensorFlow. Run as a program in a child process."""

import sys
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tpuctl.diagnosis.numerics import answer, matrices

# xla.PrecisionConfig{operand_precision: HIGHEST, HIGHEST}, xla.DotDimensionNumbers{1 x 0}.
_HIGHEST, _DOT = b"\x0a\x02\x02\x02", b"\x0a\x01\x01\x12\x01\x00"


def devices() -> dict[str, Any]:
    """Multiply once on each device."""
    names = _devices()
    sums = []
    for name in names:
        with tf.device(name):
            ones = tf.ones((128, 128), tf.float32)
            sums.append(float(tf.reduce_sum(ones @ ones)))
    return {"devices": names, "sums": sums}


def numerics() -> dict[str, Any]:
    """The matrix test in default and in highest precision."""
    name = _devices()[0]
    results = {}
    with tf.device(name):
        for precision, product in (("default", tf.matmul), ("highest", _highest)):
            results[precision] = _matrices(product)
    return {"device": name, "results": results}


def _matrices(product: Any) -> dict[str, Any]:
    pv, q = (tf.constant(rows, tf.float32) for rows in matrices())

    def run(pv: Any, q: Any) -> Any:
        inverse = tf.linalg.inv(pv)
        qep = product(product(tf.transpose(inverse), q), inverse)
        return qep, product(product(tf.transpose(pv), qep), pv)

    qep, back = tf.function(run, jit_compile=True)(pv, q)
    return {"QEP": qep.numpy().tolist(), "Q": back.numpy().tolist()}


def _highest(left: Any, right: Any) -> Any:
    return gen_xla_ops.xla_dot_v2(
        lhs=left,
        rhs=right,
        dimension_numbers=_DOT,
        precision_config=_HIGHEST,
        preferred_element_type=tf.float32,
    )


def _devices() -> list[str]:
    if "local" in sys.argv[2:]:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    for kind in ("TPU", "GPU", "CPU"):
        if found := tf.config.list_logical_devices(kind):
            return [device.name for device in found]
    return []


if __name__ == "__main__":
    answer({"devices": devices, "numerics": numerics}[sys.argv[1]]())
