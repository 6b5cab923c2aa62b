"""Scripts without any strategy code, on real replicas, and the proof of who worked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpuctl.launch.executed import Executed, idle_devices, read_counts
from tpuctl.launch.plan import find_script, plan_launch
from tpuctl.launch.run import run_training
from tpuctl.launch.strategy import Choice

SCRIPT = """
import json, sys
import keras, numpy as np
import beside
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
if __name__ == "__main__":
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    print(json.dumps([keras.backend.backend(), beside.NAME, sys.argv[1:]]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
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


def test_a_run_with_an_idle_device_asks_for_attention(tmp_path: Path, choice: Choice) -> None:
    path = tmp_path / "half.py"
    path.write_text(
        "import json, os, pathlib\n"
        "counts = [{'device': 'CPU:0', 'steps': 4, 'examples': 8}]\n"
        "pathlib.Path(os.environ['TPUCTL_COUNTS_FILE']).write_text(json.dumps(counts))\n"
    )
    training = run_training(plan_launch(find_script(str(path)), choice, devices=2))
    assert training.warnings == ("Only 1 of 2 devices executed steps: CPU:0.",)
    assert (training.status, training.exit_code) == ("attention", 0)
    alone = run_training(plan_launch(find_script(str(path)), choice, devices=1))
    assert alone.status == "ok"


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "examples"), [("tensorflow", 64), ("jax", None)], ids=["tensorflow", "jax"]
)
def test_a_script_of_plain_keras_trains_on_every_device_and_that_is_proven(
    script: Path, framework: str, examples: int | None, tpuctl, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--framework", framework, "--cpu-devices", "2", "--json"]
    data = tpuctl("launch", script, *options, "--", "a", "--b").data
    assert [(count["steps"], count["examples"]) for count in data["executed"]] == [
        (8, examples)
    ] * 2
    assert len({count["device"] for count in data["executed"]}) == 2
    assert f'["{framework}", "beside", ["a", "--b"]]' in capfd.readouterr().err


@pytest.mark.tf
@pytest.mark.slow
def test_the_runner_passes_on_how_the_script_ended(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import keras\nraise SystemExit(7)")
    command = [sys.executable, "-m", "tpuctl.training.runner", "--framework", "jax"]
    done = subprocess.run(
        [*command, "--strategy", "single", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 7
    assert "(0 steps)" in done.stderr
