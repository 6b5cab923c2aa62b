"""`tpuctl.strategy`: the choice, the repairs, the order of a TPU's calls, and real replicas."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.machines import diagnosed, environment
from tests.training_runs import printed
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.training._tensorflow import connected_tpu
from tpuctl.training.choose import Choice
from tpuctl.training.environment import Change, apply_changes, plan_environment
from tpuctl.training.strategies import choose_for, strategy

BARE: dict[str, Any] = {"env": {}, "packages": {"tensorflow": "2.21.0", "jax": "0.10.2"}}


class Recorder:
    """Stands where the module tensorflow would: notes which of its functions are called."""

    def __init__(self, calls: list[str], name: str = "tf") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> "Recorder":
        return Recorder(self._calls, f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> "Recorder":
        given = [*(arg._name for arg in args), *(f"{k}={v!r}" for k, v in kwargs.items())]
        self._calls.append(f"{self._name.split('.')[-1]}({', '.join(given)})")
        return Recorder(self._calls, self._name.split(".")[-1])


ORDER = [
    "TPUClusterResolver(tpu='local')",
    "experimental_connect_to_cluster(TPUClusterResolver)",
    "initialize_tpu_system(TPUClusterResolver)",
    "TPUStrategy(TPUClusterResolver)",
    "train()",
    "shutdown_tpu_system(TPUClusterResolver)",
]


def test_a_tpu_is_connected_initialised_used_and_shut_down_in_that_order() -> None:
    calls: list[str] = []
    with connected_tpu(Recorder(calls), "local"):
        calls.append("train()")
    assert calls == ORDER


def test_a_tpu_is_shut_down_after_a_training_that_failed_too() -> None:
    calls: list[str] = []

    def train() -> None:
        with connected_tpu(Recorder(calls), "local"):
            calls.append("train()")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert calls == ORDER


@pytest.mark.tf
def test_every_function_of_that_order_exists_in_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    assert tf.distribute.cluster_resolver.TPUClusterResolver
    assert tf.config.experimental_connect_to_cluster
    assert tf.tpu.experimental.initialize_tpu_system
    assert tf.tpu.experimental.shutdown_tpu_system
    assert tf.distribute.TPUStrategy


@pytest.mark.parametrize(
    ("choice", "problems", "env", "changes"),
    [
        (("jax", "mesh"), set(), {}, {"KERAS_BACKEND": "jax"}),
        (("jax", "mesh"), set(), {"KERAS_BACKEND": "jax"}, {}),
        (
            ("torch", "xla-launch-pop-addresses"),
            {"F53"},
            {"TPU_PROCESS_ADDRESSES": "local", "KERAS_BACKEND": "torch"},
            {"TPU_PROCESS_ADDRESSES": None},
        ),
        (
            ("jax", "mesh"),
            {"F53"},
            {"TPU_PROCESS_ADDRESSES": "a:1", "KERAS_BACKEND": "jax"},
            {},
        ),
        (
            ("jax", "mesh"),
            {"F47"},
            {"TPU_WORKER_HOSTNAMES": "WARNING: could not ask", "TPU_WORKER_ADDRS": "a,b"},
            {"KERAS_BACKEND": "jax", "TPU_WORKER_HOSTNAMES": None},
        ),
        (
            ("tensorflow", "tpu-local"),
            {"F30"},
            {"KERAS_BACKEND": "tensorflow"},
            {
                "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
                "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "/lib/libtpu.so",
            },
        ),
        (("tensorflow", "mirrored"), {"F30"}, {"KERAS_BACKEND": "tensorflow"}, {}),
        (
            ("torch", "xla-single"),
            {"F61"},
            {"PJRT_DEVICE": "CPU", "KERAS_BACKEND": "torch"},
            {"PJRT_DEVICE": "TPU"},
        ),
        (
            ("jax", "cpu"),
            {"F16"},
            {"JAX_PLATFORMS": "tpu,cpu", "KERAS_BACKEND": "jax"},
            {"JAX_PLATFORMS": None},
        ),
        (("jax", "mesh"), {"F16"}, {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}, {}),
    ],
)
def test_only_what_would_break_the_choice_is_changed(
    choice: tuple[str, str],
    problems: set[str],
    env: dict[str, str],
    changes: dict[str, str | None],
) -> None:
    planned = plan_environment(Choice(*choice, "", ""), problems, env, libtpu="/lib/libtpu.so")
    assert {change.variable: change.value for change in planned} == changes
    assert all(change.because for change in planned)


def test_changes_set_and_remove() -> None:
    env = {"A": "1", "B": "2"}
    apply_changes([Change("A", None, "x"), Change("C", "3", "x"), Change("D", None, "x")], env)
    assert env == {"B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("machine", "name", "framework", "chosen"),
    [
        ("kaggle_tpu_v5e_8", "auto", "auto", ("jax", "mesh")),
        ("kaggle_tpu_v5e_8", "tpu", "jax", ("jax", "mesh")),
        ("kaggle_gpu_t4x2", "auto", "tensorflow", ("tensorflow", "mirrored")),
    ],
)
def test_the_strategy_of_a_recorded_machine(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    name: str,
    framework: str,
    chosen: tuple[str, str],
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    choice = choose_for(diagnosed(environment(machine)), name, framework)
    assert (choice.framework, choice.strategy) == chosen


@pytest.mark.parametrize(
    ("name", "framework", "says"),
    [
        ("tpu", "tensorflow", "tensorflow has no TPU to use here"),
        ("mirored", "tensorflow", "'mirored' is not a strategy for tensorflow"),
        ("mesh", "tensorflow", "'mesh' is not a strategy for tensorflow"),
        ("auto", "theano", "Unknown framework 'theano'"),
        ("auto", "torch", "PyTorch has no strategy scope"),
    ],
)
def test_a_strategy_that_cannot_be_is_one_error(name: str, framework: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        choose_for(diagnosed(BARE), name, framework)
    assert caught.value.hint


@pytest.mark.parametrize(("runs_on", "asked"), [("tensorflow", "jax"), ("jax", "tensorflow")])
def test_keras_that_runs_on_another_framework_is_an_error(
    monkeypatch: pytest.MonkeyPatch, runs_on: str, asked: str
) -> None:
    keras = SimpleNamespace(backend=SimpleNamespace(backend=lambda: runs_on))
    monkeypatch.setitem(sys.modules, "keras", keras)
    before = dict(os.environ)
    with (
        pytest.raises(InvalidInputError, match=f"runs on {runs_on}, so it cannot run on {asked}"),
        strategy(framework=asked, here=diagnosed(BARE)),
    ):
        pass
    assert dict(os.environ) == before


def test_no_framework_at_all_names_the_line_to_install_one() -> None:
    with pytest.raises(NotFoundError, match="jax is not installed") as caught:
        choose_for(diagnosed({"env": {}, "packages": {}}), "auto", "jax")
    assert caught.value.hint == "pip install -U 'jax'"


REPLICAS = """
import json, os, sys
framework, asked = sys.argv[1], json.loads(sys.argv[2])
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=4"
import tpuctl
if framework == "tensorflow":
    import tensorflow as tf
    parts = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)

def train(name, batch):
    with tpuctl.strategy(name, framework=framework, learning_rate=1e-3, **batch) as strategy:
        text = str(strategy)
        import keras, numpy as np
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        x = np.ones((strategy.batch_size, 4), "float32")
        model.fit(x, x[:, :2], batch_size=strategy.batch_size, verbose=0)
        seen = [strategy.replicas, strategy.batch_size, strategy.per_replica_batch_size]
        rate = strategy.learning_rate
    left = keras.distribution.distribution() is None
    return [seen, rate, keras.backend.backend(), left, text]

def answer(name, batch):
    try:
        return train(name, batch)
    except tpuctl.errors.InvalidInputError as error:
        return [str(error), error.hint]

sys.stdout.write(json.dumps([answer(name, batch) for name, batch in asked]))
"""


def on_replicas(framework: str, folder: Path, *asked: tuple[str, dict[str, int]]) -> Any:
    """What each strategy gives, one after the other in a process of their own."""
    text = printed(framework, REPLICAS, folder, framework, json.dumps(asked))
    return json.loads(text.splitlines()[-1])


def check_replicas(found: Any, framework: str, replicas: int) -> None:
    seen, rate, backend, left, text = found
    assert seen == [replicas, 16 * replicas, 16]
    assert rate == 1e-3
    assert "learning rate: 0.001 (as given)" in text
    assert (backend, left) == (framework, True)
    assert f"batch: {16 * replicas} global, 16 per replica" in text


@pytest.mark.tf
@pytest.mark.slow
def test_strategies_of_tensorflow_open_real_replicas_and_scale_the_batch_alone(
    tmp_path: Path,
) -> None:
    share = {"per_replica_batch_size": 16}
    auto, mirrored = on_replicas("tensorflow", tmp_path, ("auto", share), ("mirrored", share))
    check_replicas(auto, "tensorflow", 1)
    check_replicas(mirrored, "tensorflow", 3)


@pytest.mark.tf
@pytest.mark.slow
def test_a_mesh_of_jax_opens_real_replicas_and_scales_what_it_is_asked_to(tmp_path: Path) -> None:
    share = {"per_replica_batch_size": 16}
    scaled = {**share, "base_batch_size": 32}
    asked = (("mesh", share), ("mesh", scaled), ("mesh", {"batch_size": 30}))
    alone, (_, rate, _, _, text), refusal = on_replicas("jax", tmp_path, *asked)
    check_replicas(alone, "jax", 4)
    # The rate is scaled only when asked, and its derivation is shown.
    assert rate == pytest.approx(2e-3)
    assert "learning rate: 0.002 (0.001 x 64 / 32: scaled linearly with the batch)" in text
    # A batch that does not divide names the nearest that does.
    assert refusal == ["A batch of 30 is not divisible by 4 replicas.", "batch_size=32"]
