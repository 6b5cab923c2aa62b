"""Run in a process of its own: the backend and the devices must be chosen before Keras loads.

python training_on_replicas.py BACKEND REPLICAS OUT -> one JSON document on stdout
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

backend, replicas, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
os.environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={replicas}"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tpuctl.errors import InvalidInputError  # noqa: E402
from tpuctl.training import LearningRateFinder, OneCycle, predict  # noqa: E402
from tpuctl.training.schedules import read_range_test  # noqa: E402

ROWS = 401
rng = np.random.default_rng(0)
x = rng.normal(size=(ROWS, 20)).astype("float32")
y = (x @ rng.normal(size=(20, 3))).argmax(axis=1)
traces = 0


class CountsTraces(keras.layers.Layer):
    def call(self, inputs: object) -> object:
        global traces
        traces += 1
        return inputs


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((20,)),
            CountsTraces(),
            layers.Dense(32, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def make_replicated(make: Callable[[], keras.Model] = make_model) -> keras.Model:
    if backend == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        return make()
    cpus = [f"CPU:{index}" for index in range(replicas)]
    with tf.distribute.MirroredStrategy(cpus).scope():
        return make()


def sevens() -> Iterator[np.ndarray]:
    return (x[start : start + 7] for start in range(0, ROWS, 7))


if backend == "tensorflow":
    parts = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
model = make_model()
weights = model.get_weights()
finder = LearningRateFinder(steps=60)
model.fit(x, y, batch_size=32, epochs=10, callbacks=[finder], verbose=0)
assert finder.result
restored = all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))
steps = 5 * -(-ROWS // 32)
cycle = OneCycle(0.05, steps)
history = model.fit(x, y, batch_size=32, epochs=5, callbacks=[cycle], verbose=0)
last_rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
plots = [out / "lr.png", cycle.write_plot(out / "cycle.png")]
said = [finder.write(out)]
steepest, found = finder.result.steepest, json.loads((out / "lr.json").read_text())
finder.result = read_range_test([1e-6, 1e-5], [float("nan")] * 2)
said.append(finder.write(out))

expected = model.predict(x, batch_size=ROWS, verbose=0)
replicated = make_replicated()
replicated.set_weights(model.get_weights())
traces = 0
predict(replicated, x[:64], batch_size=64)
first_compilations, traces = traces, 0
scale = float(np.abs(expected).max())
errors = {
    name: float(np.abs(predict(replicated, given, batch_size=64) - expected[:rows]).max()) / scale
    for name, given, rows in (
        ("array", x, ROWS),
        ("one row", x[:1], 1),
        ("fewer rows than replicas", x[: replicas - 1], replicas - 1),
        ("uneven batches", iter([x[:100], x[100:]]), ROWS),
        ("generator", sevens(), ROWS),
        ("pairs", ((batch, None) for batch in sevens()), ROWS),
        ("dataset", tf.data.Dataset.from_tensor_slices((x, y)).batch(50), ROWS),
        ("dataset of x", tf.data.Dataset.from_tensor_slices(x).batch(50), ROWS),
    )
}
compilations = traces
refusals = []
for model, given, size in (
    (replicated, 5, None), (replicated, ["a"], None), (replicated, [x, 3], None),
    (replicated, np.float32(1), None), (replicated, x[:, :7], None), (replicated, x, 0),
    ("model.keras", x, None),
):  # fmt: skip
    try:
        predict(model, given, batch_size=size)
    except InvalidInputError as error:
        refusals.append(str(error))


def make_forked() -> keras.Model:
    a, b = keras.Input((12,), name="a"), keras.Input((8,), name="b")
    hidden = keras.layers.Concatenate()([a, b])
    outputs = {"one": keras.layers.Dense(3)(hidden), "two": keras.layers.Dense(1)(hidden)}
    return keras.Model([a, b], outputs)


forked = make_replicated(make_forked)
pair = [x[:, :12], x[:, 12:]]
known = {
    name: keras.ops.convert_to_numpy(output)
    for name, output in forked([keras.ops.convert_to_tensor(part) for part in pair]).items()
}
forks = {
    name: [float(np.abs(found[key] - known[key]).max()) for key in ("one", "two")]
    for name, found in (
        ("list", predict(forked, pair)),
        ("tuple", predict(forked, tuple(pair))),
        ("generator of lists", predict(forked, ([part[n:n + 50] for part in pair]
                                                for n in range(0, ROWS, 50)))),
    )
}  # fmt: skip
no_rows = {name: array.shape for name, array in predict(forked, [a[:0] for a in pair]).items()}
sys.stdout.write(
    json.dumps(
        {
            "steepest": steepest,
            "found": found,
            "said": said,
            "restored": restored,
            "rates": [rate for _, rate in cycle.history],
            "last_rate": last_rate,
            "accuracy": history.history["accuracy"][-1],
            "errors": errors,
            "first_compilations": first_compilations,
            "compilations": compilations,
            "empty": predict(replicated, x[:0]).shape,
            "refusals": refusals,
            "forks": forks,
            "no_rows": no_rows,
            "plots": [str(plot) for plot in plots],
        }
    )
)
sys.stdout.flush()
# TensorFlow 2.21 with several CPU devices has been seen to wait for ever while Python exits, on a
# machine with much else to do; all that is tested has been said by now.
os._exit(0)
