"""Scripts without any strategy code, on real replicas, and the proof of who worked."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training_runs import environment, warm, warm_launch
from tpuctl.start_python import python_command
from tpuctl.training.choose import Choice
from tpuctl.training.devices import Executed, idle_devices, read_counts
from tpuctl.training.plan import LaunchPlan, find_script, plan_launch
from tpuctl.training.run import Training, Watched, run_training

SCRIPT = """
import json, sys
import numpy as np
import beside
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = beside.build()
if __name__ == "__main__":
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    print(json.dumps([beside.keras.backend.backend(), beside.NAME, sys.argv[1:]]))
"""

# The script imports Keras through it only.
BESIDE = """
import keras
NAME = "beside"
def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text(BESIDE)
    path = tmp_path / "plain.py"
    path.write_text(SCRIPT)
    return path


def counted(*examples: int | None) -> list[Executed]:
    return [Executed(f"CPU:{n}", 0 if count == 0 else 8, count) for n, count in enumerate(examples)]


def test_devices_that_did_nothing_are_named() -> None:
    assert idle_devices(counted(64, 64), 2) is None
    assert idle_devices(counted(None, None), 2) is None
    assert idle_devices([], 2) is None
    assert idle_devices(counted(64, 0), 2) == "Only 1 of 2 devices executed steps: CPU:0."
    assert idle_devices(counted(64), 4) == "Only 1 of 4 devices executed steps: CPU:0."
    assert idle_devices(counted(0, 0), 2) == "Only 0 of 2 devices executed steps: none."


@pytest.mark.parametrize("result", [None, {}, {"executed": 5}, {"executed": [1, {"steps": "x"}]}])
def test_counts_that_are_nonsense_prove_nothing(tmp_path: Path, result: Any) -> None:
    assert [count.steps for count in read_counts(tmp_path / "none", result)] in ([], [0])


def test_a_run_with_an_idle_device_asks_for_attention(
    tmp_path: Path, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "half.py"
    path.write_text(
        "import json, pathlib\n"
        "counts = [{'device': 'CPU:0', 'steps': 4, 'examples': 8}]\n"
        "pathlib.Path('training').mkdir(exist_ok=True)\n"
        "pathlib.Path('training/result.json').write_text(json.dumps({'executed': counts}))\n"
    )
    monkeypatch.chdir(tmp_path)
    training = run_training(plan_launch(find_script(str(path)), choice, devices=2))
    assert training.warnings == ("Only 1 of 2 devices executed steps: CPU:0.",)
    assert (training.status, training.exit_code) == ("attention", 0)
    alone = run_training(plan_launch(find_script(str(path)), choice, devices=1))
    assert alone.status == "ok"


ABOUT_ITSELF = """
import atexit, os, pickle, sys
class Own: pass
atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Own())))))
os.chdir("/")
print(__file__, __name__, __spec__, __package__, sys.argv, sys.path[0])
print(sorted(globals()), __builtins__, __annotations__, __cached__, type(__loader__))
sys.exit(5)
"""


def test_the_runner_runs_a_script_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "about.py").write_text(ABOUT_ITSELF)
    words = ["own/about.py", "a", "--b"]
    start = (
        f"from tpuctl.training.runner import run_as_main; run_as_main({words[0]!r}, {words[1:]!r})"
    )
    alone, inside = (
        subprocess.run([sys.executable, *line], cwd=tmp_path, capture_output=True, text=True)
        for line in (words, ["-c", start])
    )
    assert "about.py" in alone.stdout
    assert (inside.stdout, inside.stderr, inside.returncode) == (alone.stdout, alone.stderr, 5)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "examples"), [("tensorflow", 64), ("jax", None)], ids=["tensorflow", "jax"]
)
def test_a_script_of_plain_keras_trains_on_every_device_and_that_is_proven(
    script: Path,
    framework: str,
    examples: int | None,
    tpuctl,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_launch(monkeypatch, framework)
    options = ["--framework", framework, "--cpu-devices", "2", "--json"]
    data = tpuctl("launch", script, *options, "--", "a", "--b").data
    assert [(count["steps"], count["examples"]) for count in data["executed"]] == [
        (8, examples)
    ] * 2
    assert len({count["device"] for count in data["executed"]}) == 2
    assert f'["{framework}", "beside", ["a", "--b"]]' in capfd.readouterr().err


SLOW_INPUT = """
import time
import keras, numpy as np
class Slow(keras.utils.PyDataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        time.sleep(0.05)
        return np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Slow(), epochs=2, verbose=0)
"""


@pytest.mark.tf
@pytest.mark.slow
def test_a_script_that_says_nothing_is_seen_to_wait_for_its_input(tmp_path: Path, tpuctl) -> None:
    path = tmp_path / "slow.py"
    path.write_text(SLOW_INPUT)
    result = tpuctl("launch", path, "--framework", "jax", "--json")
    watched = result.data["watched"]
    assert watched["input_wait_fraction"] > 0.1
    assert watched["step_ms"] > 50
    assert 0 < watched["examples_per_s"] < 8 / 0.05
    (warning,) = result.document["warnings"]
    assert "The device waited for input" in warning
    assert "tpuctl profile run -- python -m tpuctl.training.runner --framework jax" in warning


def test_a_script_that_says_how_long_it_waited_is_believed(tmp_path: Path, choice: Choice) -> None:
    path = tmp_path / "says.py"
    path.touch()
    plan = plan_launch(find_script(str(path)), choice)
    seen = Watched(10, 5.0, None, 0.9, "parse at input.py:3")
    training = Training(
        **{name: getattr(plan, name) for name in LaunchPlan.__dataclass_fields__},
        returncode=0,
        result={"template": "mnist-cnn", "input_wait_fraction": 0.4},
        executed=(),
        seconds=1.0,
        watched=seen,
    )
    (warning,) = training.warnings
    assert "waited for input 40% of the time; the slowest stage is parse at input.py:3" in warning
    assert replace(training, result=None).input_wait_fraction == 0.9
    assert replace(training, result=None, watched=None).warnings == ()


@pytest.mark.tf
@pytest.mark.slow
def test_the_runner_passes_on_how_the_script_ended(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import keras\nkeras.layers.Dense(1)\nraise SystemExit(7)")
    words = ("--framework", "jax", "--strategy", "single", str(path))
    command = python_command("tpuctl.training.runner", *words)[1:]
    done = warm("jax").run(command, environment("jax"))
    assert done.returncode == 7
    assert "(0 steps)" in done.stderr


FIT = """
import keras, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((32, 4), "float32"), np.ones((32, 1), "float32"), batch_size=8, verbose=0)
"""
CONFIGURED = {
    "tensorflow": """
import tensorflow as tf
import keras
tf.config.threading.set_inter_op_parallelism_threads(2)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
print(len(tf.config.list_logical_devices("CPU")))
""",
    "jax": """
import jax, keras
jax.config.update("jax_num_cpu_devices", 3)
print(jax.device_count())
""",
}


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("framework", CONFIGURED)
def test_a_script_can_configure_its_framework_before_its_first_layer(
    tmp_path: Path,
    framework: str,
    tpuctl,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_launch(monkeypatch, framework)
    path = tmp_path / "configured.py"
    path.write_text(CONFIGURED[framework] + FIT)
    result = tpuctl("launch", path, "--framework", framework, "--json")
    assert (result.exit_code, "3" in capfd.readouterr().err.splitlines()) == (0, True)
    assert [count["steps"] for count in result.data["executed"]] == [4]


UNEVEN = """
import keras, numpy as np
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(70, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(x, x[:, :2], batch_size=32, epochs=2, verbose=0, shuffle=False)
loss = model.evaluate(x, x[:, :2], batch_size=32, verbose=0)
print(f"{loss:.4f}", model.predict(x, batch_size=32, verbose=0).shape)
seen = model.train_on_batch(x[:6], x[:6, :2]), model.test_on_batch(x[:7], x[:7, :2])
print([f"{float(loss):.4f}" for loss in seen])
"""


@pytest.mark.tf
@pytest.mark.slow
def test_a_short_last_batch_is_computed_by_every_device_and_announced(
    tmp_path: Path,
    tpuctl,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_launch(monkeypatch, "jax")
    path = tmp_path / "uneven.py"
    path.write_text(UNEVEN)

    def said(*words: str) -> tuple[str, str]:
        assert tpuctl("launch", path, "--framework", "jax", *words).exit_code == 0
        return capfd.readouterr()

    (one, quiet), (four, told) = said("--strategy", "single"), said("--cpu-devices", "4")
    assert four == one
    assert "(70, 2)" in one
    assert "a batch of 6 examples cannot be divided over 4 devices" in told
    assert "cannot be divided" not in quiet


ANOTHER_THREAD_GETS_IT = """
import signal, subprocess, sys, threading
from functools import partial
from tpuctl.start_python import signals_passed_on, wait_for

PROGRAM = "import signal; print(flush=True); signal.pause()"

def strike():
    # When the main thread waits already: only a thread that gets a signal is woken by it.
    waiting = threading.main_thread().ident
    while sys._current_frames()[waiting].f_code.co_name != "_wait":
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

start = partial(subprocess.Popen, [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
with signals_passed_on(start) as (program, received):
    program.stdout.readline()
    threading.Thread(target=strike).start()
    print(wait_for(program), received)
"""


def test_a_signal_that_does_not_wake_the_waiting_is_passed_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_THREAD_GETS_IT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    number = int(signal.SIGUSR1)
    assert done.stdout.split() == [str(-number), f"[{number}]"], done.stderr
