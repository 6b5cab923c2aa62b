"""`launch --on`: planned from what the workers have, copied, started on all, followed."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.cloud_world import MORNING
from tests.sharing import needs
from tests.waiting import wait_until
from tests.workers import Slice, alive, running_slice
from tpuctl.cloud.models import Node
from tpuctl.remote.barrier import Probe
from tpuctl.training.choose import Choice, choose_strategy
from tpuctl.training.remote_launch import WorkerSetup, changes_for, situation_of
from tpuctl.training.snippets import install_line

SCRIPT = '''"""Train nothing."""
import argparse, os, sys, time
from pathlib import Path

FRAMEWORKS = ("jax",)
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--strategy", default="auto")
parser.add_argument("--tag")
args = parser.parse_args()
print(Path.cwd().name, Path(__file__).name, args.strategy, os.environ["KERAS_BACKEND"], flush=True)
print("worker", os.environ["TPU_WORKER_ID"], os.environ.get("SEED"), flush=True)
if args.steps > 9:
    time.sleep(600)
sys.exit(int(os.environ["TPU_WORKER_ID"]) and args.steps)
'''
KERAS = '''"""Plain Keras: it knows nothing of strategies."""
import numpy as np
import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, verbose=0)
print("backend", keras.backend.backend(), flush=True)
'''
PACKAGES = {"jax": "0.10.2", "numpy": "2.0"}
PROBE = Probe(0, "h", 0.0, 50 << 30, "3.11.2", PACKAGES, 4, (), "/lib/libtpu.so")
NODE = Node(
    "t1", "us-central1-a", "7", "v5litepod-16", "v2-alpha-tpuv5-lite", "READY", "HEALTHY", MORNING
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    with running_slice(tmp_path_factory.mktemp("slice"), 2) as workers:
        yield workers


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "proj"
    (folder / "src").mkdir(parents=True)
    path = folder / "src" / "train.py"
    path.write_text(SCRIPT)
    return path


def launch(tpuctl, workers: Slice, script: Path, *words: str):
    key = ("--key", str(workers.key))
    return tpuctl("launch", str(script), "--host", workers.option, *key, *words)


@pytest.mark.parametrize(
    ("there", "strategy"),
    [
        pytest.param(WorkerSetup(4, PROBE, NODE), "distributed+mesh", id="a slice"),
        pytest.param(
            WorkerSetup(1, PROBE, replace(NODE, accelerator_type="v5litepod-4")), "mesh", id="one"
        ),
        pytest.param(
            WorkerSetup(1, replace(PROBE, chips=1), replace(NODE, accelerator_type="v6e-1")),
            "single",
            id="one chip",
        ),
        pytest.param(WorkerSetup(2, PROBE), "distributed+mesh", id="machines with chips"),
        pytest.param(WorkerSetup(2, replace(PROBE, chips=0)), "cpu", id="machines without"),
        pytest.param(
            WorkerSetup(4, PROBE, replace(NODE, metadata={"tpuctl-emulator-ssh-port": "7"})),
            "cpu",
            id="emulated",
        ),
    ],
)
def test_the_strategy_of_jax_follows_from_what_the_workers_are(
    there: WorkerSetup, strategy: str
) -> None:
    assert choose_strategy("jax", situation_of(there)).strategy == strategy


@pytest.mark.parametrize(
    ("packages", "image", "build"),
    [
        ({"tensorflow-tpu": "2.19.1"}, "v2-alpha-tpuv5-lite", "tpu"),
        ({"tensorflow": "2.17.1"}, "tpu-vm-tf-2.17.1-pjrt", "tpu"),
        ({"tensorflow": "2.21.0"}, "v2-alpha-tpuv5-lite", "cpu"),
        ({}, "tpu-vm-tf-2.17.1-pjrt", None),
    ],
)
def test_a_tensorflow_sees_a_tpu_only_if_it_was_built_for_one(
    packages: dict[str, str], image: str, build: str | None
) -> None:
    node = replace(NODE, runtime_version=image)
    there = WorkerSetup(4, replace(PROBE, packages=packages), node)
    assert situation_of(there).tensorflow_build == build


def test_tensorflow_is_told_of_pjrt_and_of_the_tpus_name() -> None:
    node = replace(NODE, runtime_version="tpu-vm-tf-2.17.1-pod-pjrt")
    there = WorkerSetup(4, replace(PROBE, packages={"tensorflow": "2.17.1"}), node)
    choice = choose_strategy("tensorflow", situation_of(there))
    assert choice.strategy == "tpu-name"
    assert {c.variable: c.value for c in changes_for(choice, there)}["TPU_NAME"] == "t1"
    one = replace(there, workers=1, node=replace(node, accelerator_type="v5litepod-8"))
    local = Choice("tensorflow", "tpu-local", "", "")
    told = {change.variable: change.value for change in changes_for(local, one)}
    assert told["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] == "/lib/libtpu.so"
    assert told["NEXT_PLUGGABLE_DEVICE_USE_C_API"] == "true"


@pytest.mark.slow
def test_a_script_runs_on_every_worker_and_its_exit_code_comes_back(
    tpuctl, two: Slice, script: Path
) -> None:
    result = launch(tpuctl, two, script, "--set", "steps=7", "--env", "SEED=3")
    assert result.exit_code == 7
    lines = result.stdout.splitlines()
    assert "[1] worker 1 3" in lines
    assert "all 2 workers: tpuctl-launch train.py cpu jax" in lines or "[0] tpuctl-launch" in str(
        lines
    )
    assert "exit code 7 on worker 1" in result.stderr


@pytest.mark.slow
def test_a_folder_goes_along_and_a_job_goes_on_alone(tpuctl, two: Slice, script: Path) -> None:
    words = ("--code", str(script.parents[1]), "--detach", "--job", "alone", "--json")
    started = launch(tpuctl, two, script, *words)
    assert (started.exit_code, started.data["job"]) == (0, "alone")
    assert (two.folder(1) / "proj" / "src" / "train.py").is_file()
    key = ("--key", str(two.key))
    followed = tpuctl("logs", "--host", two.option, *key, "--job", "alone", "-f")
    assert "proj train.py cpu jax" in followed.stdout
    assert followed.exit_code == 1


@pytest.mark.slow
def test_the_plan_is_shown_and_nothing_is_copied(tpuctl, two: Slice, tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text(KERAS)
    result = launch(tpuctl, two, plain, "--framework", "jax", "--dry-run", "--json")
    plan: dict[str, Any] = result.data
    assert plan["argv"][:3] == ["python3", "-m", "tpuctl.training.runner"]
    assert plan["env"] == {"KERAS_BACKEND": "jax", "PYTHONPATH": "../.tpuctl-library"}
    assert [target for _, target in plan["copies"]] == [
        "tpuctl-launch/",
        ".tpuctl-library/tpuctl",
    ]
    assert (plan["workers"], plan["folder"]) == (2, "tpuctl-launch")
    assert not (two.folder(0) / "tpuctl-launch" / "plain.py").exists()
    text = launch(tpuctl, two, plain, "--framework", "jax", "--dry-run").stdout
    assert f"# copies {plain} to tpuctl-launch/" in text


@pytest.mark.parametrize(
    ("frameworks", "accelerator", "packages"),
    [
        (["jax"], "tpu", ["jax[tpu]"]),
        (["tensorflow", "jax"], "tpu", ["jax[tpu]"]),
        (["torch"], "tpu", ["torch~=2.9.0", "torch_xla[tpu]~=2.9.0"]),
        (["torch"], "gpu", ["torch"]),
        (["tensorflow", "jax"], "gpu", ["tensorflow[and-cuda]"]),
    ],
)
def test_the_line_that_installs_a_framework_is_of_that_framework(
    frameworks: list[str], accelerator: str, packages: list[str]
) -> None:
    words = shlex.split(install_line(accelerator, frameworks))
    assert words == ["pip", "install", "-U", *packages]


@pytest.mark.parametrize(
    ("with_xla", "packages"),
    [
        (False, ["torch"]),
        (True, ["torch~=2.9.0", "torch_xla~=2.9.0"]),
    ],
)
def test_pytorch_for_a_machine_without_accelerators_is_the_small_one(
    with_xla: bool, packages: list[str]
) -> None:
    words = shlex.split(install_line("none", ["torch"], with_xla=with_xla))
    assert words == ["uv", "pip", "install", "-U", "--torch-backend=cpu", *packages]


def test_what_makes_no_sense_is_refused(tpuctl, two: Slice, script: Path, tmp_path: Path) -> None:
    assert tpuctl("launch", str(script), "--detach").exit_code == 2
    assert launch(tpuctl, two, script, "--cpu-devices", "2").exit_code == 2
    outside = launch(tpuctl, two, script, "--code", str(tmp_path / "proj" / "nowhere"))
    assert "does not exist" in outside.stderr
    other = tmp_path / "other"
    other.mkdir()
    assert "is not in the folder" in launch(tpuctl, two, script, "--code", str(other)).stderr


@pytest.mark.slow
def test_a_framework_that_the_workers_lack_comes_with_the_line_that_installs_it(
    tpuctl, two: Slice, tmp_path: Path
) -> None:
    if importlib.util.find_spec("torch"):
        pytest.skip("PyTorch is installed here")
    path = tmp_path / "needs.py"
    path.write_text('FRAMEWORKS = ("torch",)\n')
    result = launch(tpuctl, two, path)
    assert result.exit_code == 1
    assert "needs.py needs torch, which is not installed on worker 0" in result.stderr
    assert "-- uv pip install -U --torch-backend=cpu 'torch'" in result.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it_on_every_worker(two: Slice, script: Path) -> None:
    words = ["launch", str(script), "--host", two.option, "--key", str(two.key)]
    tag = f"launch-on-{os.getpid()}"
    command = [sys.executable, "-m", "tpuctl", *words, "--set", "steps=10", "--set", f"tag={tag}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        assert process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(120) == 130
    wait_until(lambda: not alive(tag))


@pytest.mark.tf
def test_a_script_of_plain_keras_runs_inside_of_our_runner_over_there(
    tpuctl, two: Slice, tmp_path: Path
) -> None:
    needs("keras", "jax")
    plain = tmp_path / "plain.py"
    plain.write_text(KERAS)
    one = ("--host", two.option.split(",")[0], "--key", str(two.key), "--framework", "jax")
    result = tpuctl("launch", str(plain), *one)
    assert result.exit_code == 0, result.stderr
    assert "backend jax" in result.stdout
    assert "steps executed by: " in result.stdout
