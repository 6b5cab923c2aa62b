"""The choice of framework and strategy, and the code that comes with it."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machines import chips, diagnosed
from tests.sharing import needs
from tests.training_runs import printed
from tpuctl.training import snippets
from tpuctl.training.choose import (
    FRAMEWORKS,
    Choice,
    Situation,
    choose,
    choose_keras,
    choose_strategy,
)

TPU = Situation(accelerator="tpu", devices=8)


def words(**facts: Any) -> tuple[str, str]:
    choice = choose(Situation(**facts))
    return choice.framework, choice.strategy


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"tensorflow_build": "tpu", "jax_build": "tpu"}, ("tensorflow", "tpu-local")),
        ({"tensorflow_build": "gpu", "jax_build": "tpu"}, ("jax", "mesh")),
        ({"tensorflow_build": "cpu", "jax_build": "tpu", "devices": 1}, ("jax", "single")),
        ({"jax_build": "tpu", "hosts": 4}, ("jax", "distributed+mesh")),
        ({"jax_build": "tpu", "slices": 2}, ("jax", "distributed+mesh")),
        ({"torch_build": "cpu", "has_torch_xla": True}, ("torch", "xla-launch")),
        ({"torch_build": "cpu", "has_torch_xla": True, "devices": 1}, ("torch", "xla-single")),
        (
            {"torch_build": "cpu", "has_torch_xla": True, "hosts": 2},
            ("torch", "xla-launch-all-hosts"),
        ),
        (
            {"torch_build": "cpu", "has_torch_xla": True, "stray_process_addresses": True},
            ("torch", "xla-launch-pop-addresses"),
        ),
        ({"torch_build": "cpu", "has_torch_tpu": True}, ("torch", "tpu-torchrun")),
        ({"torch_build": "cpu", "has_torch_tpu": True, "devices": 1}, ("torch", "tpu-single")),
        (
            {"torch_build": "gpu", "has_torch_tpu": True, "has_torch_xla": True, "slices": 2},
            ("torch", "tpu-torchrun-all-hosts"),
        ),
        ({"tensorflow_build": "tpu", "hosts": 2}, ("tensorflow", "tpu-name")),
        ({}, ("jax", "not-installed")),
        ({"torch_build": "gpu"}, ("torch", "cpu")),
    ],
)
def test_on_a_tpu_the_framework_is_one_that_sees_it(
    facts: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert words(**{"accelerator": "tpu", "devices": 8, **facts}) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"gpus": 2, "tensorflow_build": "gpu"}, ("tensorflow", "mirrored")),
        ({"gpus": 1, "tensorflow_build": "gpu"}, ("tensorflow", "default")),
        ({"gpus": 2, "tensorflow_build": "cpu", "jax_build": "gpu"}, ("jax", "mesh")),
        ({"gpus": 1, "jax_build": "gpu"}, ("jax", "single")),
        ({"gpus": 1, "jax_build": "gpu", "hosts": 2}, ("jax", "distributed+mesh")),
        ({"gpus": 2, "jax_build": "gpu", "hosts": 2, "tensorflow_workers": 2}, ("jax", "mesh")),
        ({"gpus": 2, "jax_build": "cpu", "torch_build": "gpu"}, ("torch", "cuda-ddp")),
        ({"gpus": 1, "torch_build": "gpu"}, ("torch", "cuda-single")),
        ({"gpus": 1, "torch_build": "cpu"}, ("torch", "cpu")),
        ({"gpus": 8, "tensorflow_build": "gpu", "tensorflow_workers": 2},
         ("tensorflow", "multiworker-mirrored")),
    ],
)  # fmt: skip
def test_on_gpus_the_framework_is_one_that_sees_them(
    facts: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert words(accelerator="gpu", **facts) == expected


def test_keras_3_runs_on_jax_where_tensorflow_cannot_see_the_tpu() -> None:
    several = Situation(
        accelerator="tpu", devices=8, tensorflow_build="cpu", jax_build="tpu", has_keras_3=True
    )
    assert choose_keras(several).strategy == "jax-data-parallel"
    assert 'KERAS_BACKEND"] = "jax"' in choose(several).snippet
    assert "DataParallel" in choose(several).snippet
    one = Situation(accelerator="tpu", devices=1, jax_build="tpu", has_keras_3=True)
    assert choose_keras(one).strategy == "jax-single"
    tensorflow = Situation(
        accelerator="tpu", devices=8, tensorflow_build="tpu", jax_build="tpu", has_keras_3=True
    )
    assert choose_keras(tensorflow).strategy == "tensorflow-tpu-local"
    assert choose_keras(TPU).strategy == "not-installed"


def test_the_pjrt_variables_come_before_tensorflow_where_they_are_needed() -> None:
    situation = Situation(
        accelerator="tpu", devices=8, tensorflow_build="tpu", needs_pjrt_variables=True
    )
    code = choose(situation).snippet
    assert code.index("NEXT_PLUGGABLE_DEVICE_USE_C_API") < code.index("import tensorflow")


@pytest.mark.parametrize("more", [{}, {"tensorflow": "2.20.0"}, {"keras": "3.12.0"}])
def test_the_tpus_of_pathways_are_for_jax(more: dict[str, str]) -> None:
    env = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": "grpc://127.0.0.1:29000"}
    packages = {"jax": "0.8.1", "jaxlib": "0.8.1", "pathwaysutils": "0.1.13", **more}
    found = diagnosed({"env": env, "packages": packages})
    assert found.strategy_keras == ("jax-data-parallel" if "keras" in more else "not-installed")
    choice = found.recommended
    assert (choice.framework, choice.strategy) == ("jax", "mesh")
    assert choice.snippet.startswith("import pathwaysutils\n\npathwaysutils.initialize()\n")


def test_a_hostile_tpu_name_stays_a_string_in_the_snippet() -> None:
    name = '"); import os; os.system("rm -rf ~"); ("'
    document = {"env": {"TPU_NAME": name}, "packages": {"tensorflow": "2.9.2"}, "metadata": {}}
    diagnosis = diagnosed(document)
    tree = ast.parse(diagnosis.recommended.snippet)
    calls = [node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Attribute)]  # fmt: skip
    assert "system" not in calls
    assert name in ast.unparse(tree) or repr(name) in diagnosis.recommended.snippet


def test_the_grpc_address_gets_its_scheme() -> None:
    env = {"TBE_RUNTIME_ADDR": "x", "COLAB_TPU_ADDR": "10.0.0.2:8470"}
    found = diagnosed({"env": env, "packages": {"tensorflow": "2.9.2"}})
    assert "'grpc://10.0.0.2:8470'" in found.recommended.snippet


def every_snippet() -> list[Any]:
    return [
        pytest.param(snippets.snippet(framework, name, None), id=f"{framework}-{name}")
        for framework in (*FRAMEWORKS, "keras")
        for name in snippets.known(framework)
    ]


@pytest.mark.parametrize("code", every_snippet())
def test_every_snippet_is_python_and_not_indented(code: str) -> None:
    assert ast.parse(code).body
    assert code[0] not in " \t"
    assert "{" not in code.replace("{}", "")


def test_every_strategy_word_that_can_be_chosen_has_code_or_needs_none() -> None:
    for framework in FRAMEWORKS:
        for accelerator in ("tpu", "tpu-remote", "gpu", "none"):
            for devices, gpus in ((1, 1), (8, 2)):
                choice = choose_strategy(
                    framework,
                    Situation(
                        accelerator=accelerator,
                        devices=devices,
                        gpus=gpus,
                        tensorflow_build="tpu",
                        jax_build="gpu",
                        torch_build="gpu",
                        has_torch_xla=True,
                        remote="x",
                    ),
                )
                assert isinstance(choice, Choice)
                assert choice.snippet
                assert choice.because


def runs(code: str, **env: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TF_CPP_MIN_LOG_LEVEL": "3", **env},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.tf
@pytest.mark.slow
def test_the_snippets_of_tensorflow_run_as_pasted(tmp_path: Path) -> None:
    one, several = (
        printed("tensorflow", snippets.snippet("tensorflow", name, None), tmp_path)
        for name in ("default", "mirrored")
    )
    assert "1 replica on" in one
    assert "replicas" in several


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mesh", "single"])
def test_the_snippets_of_jax_run_as_pasted(strategy: str) -> None:
    needs("jax")
    flags = "--xla_force_host_platform_device_count=4"
    out = runs(snippets.snippet("jax", strategy, None), XLA_FLAGS=flags)
    assert out.startswith("4 devices" if strategy == "mesh" else "[CpuDevice")


@pytest.mark.parametrize("count", [1, 4, 8])
def test_a_tpu_on_kaggle_wants_its_addresses_popped_only_if_several_chips(count: int) -> None:
    env = {
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "KAGGLE_DATA_PROXY_URL": "x",
        "TPU_PROCESS_ADDRESSES": "local",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}[count],
    }
    packages = {"torch": "2.9.0", "torch-xla": "2.9.0", "libtpu": "0.0.21"}
    found = diagnosed({"env": env, "pci": chips(count, "0x0063"), "packages": packages})
    assert found.strategy_torch == ("xla-single" if count == 1 else "xla-launch-pop-addresses")


def test_tf_config_that_is_nonsense_is_one_worker() -> None:
    for text in ("{", "[]", '{"cluster": []}', '{"cluster": {"worker": 5}}', "null"):
        found = diagnosed({"env": {"TF_CONFIG": text}, "packages": {"tensorflow": "2.20.0"}})
        assert found.strategy_tf == "default"
    cluster = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'
    found = diagnosed({"env": {"TF_CONFIG": cluster}, "packages": {"tensorflow": "2.20.0"}})
    assert found.strategy_tf == "multiworker-mirrored"
