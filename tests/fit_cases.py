"""What the tests of `tpuctl fit` compile."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tpuctl.compile.cache import Cache
from tpuctl.compile.fit import Session
from tpuctl.compile.models import Compilation, CompilerVersions, Matmul, Program
from tpuctl.compile.slices import is_tested
from tpuctl.progress import silent

Test = TypeVar("Test", bound=Callable[..., Any])

PROGRAMS = '''
def dense(batch=64):
    import jax, jax.numpy as jnp

    def step(weights, x):
        with jax.named_scope("first"):
            h = jax.nn.relu(x @ weights[0])
        with jax.named_scope("second"):
            return h @ weights[1]

    S = jax.ShapeDtypeStruct
    weights = [S((256, 512), jnp.float32), S((512, 384), jnp.float32)]
    return step, (weights, S((batch, 256), jnp.float32))

def training(batch=64):
    import jax, jax.numpy as jnp

    def step(weights, x, y):
        loss = lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    S = jax.ShapeDtypeStruct
    weights = [S((256, 512), jnp.float32), S((512, 384), jnp.float32)]
    x, y = S((batch, 256), jnp.float32), S((batch, 384), jnp.float32)
    return jax.jit(step, donate_argnums=0), (weights, x, y)

def conv(batch=8):
    import jax, jax.numpy as jnp

    def step(kernel, x):
        return jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    S = jax.ShapeDtypeStruct
    return step, (S((3, 3, 64, 128), jnp.float32), S((batch, 33, 33, 64), jnp.float32))

def kernel(batch, rows, **parameters):
    """Adds one, in blocks of rows of 4 KiB: an input and an output block, each held twice."""
    import jax, jax.numpy as jnp
    from jax.experimental import pallas as pl

    def add_one(x, out):
        out[...] = x[...] + 1.0

    def on_a_device(x):
        block = pl.BlockSpec((rows, 1024), lambda i: (i, 0))
        add = pl.pallas_call(
            add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="add_one",
            grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block, **parameters
        )
        return add(x)

    def step(x):
        specs = jax.sharding.PartitionSpec("batch")
        mesh = jax.typeof(x).sharding.mesh
        return jax.shard_map(
            on_a_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False
        )(x)

    return step, (jax.ShapeDtypeStruct((batch, 1024), jnp.float32),)

def small_kernel(batch=65536):
    return kernel(batch, 256)

def large_kernel(batch=65536):
    return kernel(batch, 2048)

def huge_kernel(batch=65536):
    return kernel(batch, 8192)

def kernel_with_a_limit(batch=65536):
    from jax.experimental.pallas import tpu as pltpu

    parameters = pltpu.CompilerParams(vmem_limit_bytes=33 << 20)
    return kernel(batch, 2048, compiler_params=parameters)

def odd_sizes():
    import jax, jax.numpy as jnp

    S = jax.ShapeDtypeStruct
    return (lambda a, b: a @ b), (S((200, 300), jnp.bfloat16), S((300, 200), jnp.bfloat16))

def scan(batch=64):
    import jax, jax.numpy as jnp

    def step(weights, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]

    S = jax.ShapeDtypeStruct
    return step, (S((10, 256, 256), jnp.float32), S((batch, 256), jnp.float32))

def greedy(batch=8):
    """1 MiB in and 1 MiB out for each example: on 15.75 GiB 8,064 and no more, less the program."""
    import jax, jax.numpy as jnp

    return (lambda x: x + 1.0), (jax.ShapeDtypeStruct((batch, 256, 1024), jnp.float32),)

def tensorflow_step(batch=16):
    import tensorflow as tf

    w = tf.Variable(tf.zeros((256, 512)))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return step, (tf.TensorSpec((batch, 256)), tf.TensorSpec((batch, 512)))

def keras_model():
    import keras

    model = keras.Sequential(
        [
            keras.Input((128,)),
            keras.layers.Dense(256, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model

def wide_keras_model(batch):
    import keras

    layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((2048, 256)), *layers])
    model.compile("sgd", "mean_squared_error")
    return model

def uncompiled():
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])

def raises():
    raise OSError("no such bucket")

def exits():
    raise SystemExit(3)

def hangs():
    import os, pathlib, time

    pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(3600)

def dies():
    import os

    os.kill(os.getpid(), 9)

def nothing():
    return None

def needs(path):
    return path

def without_a_kernel():
    import jax, jax.numpy as jnp

    return jnp.linalg.eig, (jax.ShapeDtypeStruct((8, 8), jnp.float32),)

def of_unknown_size():
    import jax, jax.numpy as jnp

    return (lambda x: jnp.nonzero(x)[0]), (jax.ShapeDtypeStruct((8,), jnp.float32),)

def with_python():
    import tensorflow as tf

    step = tf.function(lambda x: tf.py_function(lambda v: v * 2, [x], tf.float32))
    return step, (tf.TensorSpec((8, 8)),)

def with_strings():
    import tensorflow as tf

    step = tf.function(lambda x: tf.strings.to_number(tf.strings.as_string(x)))
    return step, (tf.TensorSpec((8, 8)),)

def with_an_open_size():
    import tensorflow as tf

    return tf.function(lambda x: x * 2), (tf.TensorSpec((None, 8)),)
'''


def _why_not() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    for module in ("jax", "libtpu"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (pip install 'tpuctl[aot]')"
    here = [version(name) for name in ("jax", "jaxlib", "libtpu")]
    return None if is_tested(*here) else f"{here} were not tested together"


_skip = pytest.mark.skipif(_why_not() is not None, reason=_why_not() or "")
compiles = [pytest.mark.aot, _skip]


def with_compiler(test: Test) -> Test:
    """Mark one test as one that compiles, skipped where nothing can."""
    marked: Test = pytest.mark.aot(_skip(test))
    return marked


def write_programs(folder: Path) -> Path:
    place = folder / "programs.py"
    place.write_text(PROGRAMS, encoding="utf-8")
    return place


@contextmanager
def a_session(folder: Path, *, timeout_s: float = 300.0) -> Iterator[Session]:
    """One child for many questions, which starts with nothing in its cache."""
    with Session(empty_cache(folder), timeout_s=timeout_s, on_progress=silent) as session:
        yield session


def empty_cache(folder: Path) -> Cache:
    return Cache(folder / "answers")


def product(rows: int, contracted: int, columns: int, layer: str = "layer") -> Matmul:
    return Matmul(layer, rows, contracted, columns, flops=2 * rows * contracted * columns)


def compilation(flops: float = 0.0, program: Program | None = None) -> Compilation:
    """An answer of the compiler's for something that fits."""
    return Compilation(
        fits=True,
        flops=flops,
        hbm_needed_bytes=1,
        hbm_available_bytes=None,
        fixed_bytes=0,
        program=program or Program((), (), 0, 0, 0, ()),
        tensors=(),
        examples=8,
        framework="jax",
        notes=(),
        compile_s=1.0,
        compiler=CompilerVersions("0", "0", ()),
    )


def too_large(examples: int, needed_bytes: int) -> Compilation:
    return replace(
        compilation(),
        fits=False,
        examples=examples,
        hbm_needed_bytes=needed_bytes,
    )
