"""What a script says of frameworks and strategies, and the command that follows from it."""

import ast
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machines import diagnosed, environment
from tpuctl.errors import UsageError
from tpuctl.training.catalog import find_template, list_templates
from tpuctl.training.devices import Executed
from tpuctl.training.plan import LaunchPlan, find_script, plan_training
from tpuctl.training.run import Training
from tpuctl.training.source import Source, read_source

KERAS = ("tensorflow", "jax")
PLAIN = "import argparse, keras\nargparse.ArgumentParser().add_argument('--epochs', type=int)\n"
HERE = {"env": {}, "packages": {"tensorflow": "2.21.0", "jax": "0.10.2", "keras": "3.15.1"}}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN)
    return path


@pytest.mark.parametrize(
    ("code", "frameworks", "is_plain_keras"),
    [
        ("import keras", ("tensorflow", "jax"), True),
        ("import keras, jax", ("jax", "tensorflow"), True),
        ("import tensorflow as tf\nfrom tensorflow import keras", ("tensorflow",), True),
        ("import tensorflow as tf\ntf.keras.Model()", ("tensorflow",), True),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", ("jax",), True),
        ("import tensorflow as tf\ntf.keras\ntf.distribute.get_strategy()", ("tensorflow",), False),
        ("from keras import distribution", ("tensorflow", "jax"), False),
        ("import keras\nkeras.distribution.DataParallel()", ("tensorflow", "jax"), False),
        ("import tensorflow", ("tensorflow",), False),
        ("import jax.numpy as jnp", ("jax",), False),
        ("import torch\nimport torch_xla.core", ("torch",), False),
        ("import json", (), False),
        ("FRAMEWORKS = ('jax',)\nimport keras", ("jax",), True),
        ("FRAMEWORKS = names()\nimport torch", ("torch",), False),
        ("from . import keras", (), False),
        ("import keras_hub", (), False),
    ],
)
def test_a_script_says_what_it_runs_on_and_whether_it_spreads_itself(
    code: str, frameworks: tuple[str, ...], is_plain_keras: bool
) -> None:
    assert read_source(ast.parse(code)) == Source(
        frameworks,
        uses_keras="keras" in code and "from . import" not in code,
        is_plain_keras=is_plain_keras,
        needs_xla="torch_xla" in code,
    )


MODEL = "import keras\ndef build():\n    return keras.Sequential()\n"
TF_KERAS = "import tensorflow as tf\ndef build():\n    return tf.keras.Sequential()\n"
ON_JAX = "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n"


@pytest.mark.parametrize(
    ("script", "files", "frameworks", "is_plain_keras"),
    [
        ("from model import build", {"model.py": MODEL}, KERAS, True),
        ("import lib.model", {"lib/__init__.py": "", "lib/model.py": MODEL}, KERAS, True),
        # A folder without __init__.py is a package, too.
        ("from lib import model", {"lib/model.py": MODEL}, KERAS, True),
        (
            "from lib import build",
            {
                "lib/__init__.py": "from .deep import build",
                "lib/deep/__init__.py": "from ..model import build",
                "lib/model.py": MODEL,
            },
            KERAS, True,
        ),
        ("from .model import build", {"model.py": MODEL}, KERAS, True),
        ("import model", {"model.py": TF_KERAS}, ("tensorflow",), True),
        ("import model", {"model.py": ON_JAX + MODEL}, ("jax",), True),
        ("import jax, model", {"model.py": MODEL}, ("jax", "tensorflow"), True),
        # Strategy code anywhere means that the script spreads itself.
        ("import keras, spread", {"spread.py": "import tensorflow.distribute"}, KERAS, False),
        # A function that imports it may never be called: only if nothing else is known.
        ("import torch, tools", {"tools.py": "def f():\n    import keras"}, ("torch",), False),
        ("import tools", {"tools.py": "def f():\n    import keras"}, KERAS, True),
        ("import json, tools", {"tools.py": "import csv, script"}, (), False),
        ("import broken, gone.away", {"broken.py": "def"}, (), False),
        # Only what is imported counts.
        ("import json", {"model.py": MODEL}, (), False),
        ("FRAMEWORKS = ('jax',)\nimport model", {"model.py": MODEL}, ("jax",), True),
    ],
)  # fmt: skip
def test_the_users_modules_that_a_script_imports_count_as_the_script(
    tmp_path: Path,
    script: str,
    files: dict[str, str],
    frameworks: tuple[str, ...],
    is_plain_keras: bool,
) -> None:
    for name, code in {"script.py": script, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    found = find_script(str(tmp_path / "script.py"))
    assert (found.frameworks, found.is_plain_keras) == (frameworks, is_plain_keras)


def test_modules_on_pythons_path_count_and_installed_libraries_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for `PYTHONPATH=. tpuctl launch project/train.py`, and `python -m project.train`."""
    project, libraries = tmp_path / "project", tmp_path / "site-packages"
    for folder, name in ((project, "model"), (libraries, "library")):
        folder.mkdir()
        (folder / f"{name}.py").write_text(MODEL)
    script = project / "train.py"
    script.write_text("from project.model import build")
    assert not find_script(str(script)).is_plain_keras
    monkeypatch.syspath_prepend(tmp_path)
    assert find_script(str(script)).is_plain_keras
    script.write_text("import library")
    monkeypatch.syspath_prepend(libraries)
    assert find_script(str(script)).frameworks == ()


def test_every_template_takes_its_strategy_by_a_flag() -> None:
    templates = list_templates().templates
    assert templates
    assert not [template.name for template in templates if template.is_plain_keras]


def test_plain_keras_runs_inside_of_the_strategy_with_its_arguments_untouched(plain: Path) -> None:
    plan = plan_training(
        str(plain), diagnosed(HERE), settings=["epochs=2"], arguments=["--x", "1"], cpu_devices=2
    )
    assert plan.argv[1:] == (
        "-m", "tpuctl.training.runner", "--framework", "tensorflow", "--strategy", "mirrored",
        "--cpu-devices", "2", str(plain), "--epochs", "2", "--x", "1",
    )  # fmt: skip
    assert plan.devices == 2


def test_on_a_machine_of_two_gpus_plain_keras_is_mirrored(plain: Path) -> None:
    here = diagnosed(environment("kaggle_gpu_t4x2"))
    plan = plan_training(str(plain), here, framework="tensorflow", env={})
    assert (plan.strategy, plan.devices) == ("mirrored", 2)


def test_a_strategy_flag_of_the_users_own_is_used_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    flag = "argparse.ArgumentParser().add_argument('--strategy', choices=['ddp', 'mirrored'])"
    path.write_text(f"import argparse, tensorflow\n{flag}\n")
    here = diagnosed(HERE)
    plan = plan_training(str(path), here)
    assert plan.argv == (sys.executable, str(path))
    assert any("own --strategy flag" in reason for reason in plan.because)
    asked = plan_training(str(path), here, strategy="mirrored")
    assert asked.argv[2:] == ("--strategy", "mirrored")


def test_the_backend_that_the_user_has_set_for_keras_is_kept(plain: Path, tmp_path: Path) -> None:
    here = diagnosed({**HERE, "packages": {**HERE["packages"], "torch": "2.9.0"}})

    def chosen(**env: str) -> str:
        home = {"KERAS_HOME": str(tmp_path / "keras"), **env}
        plan = plan_training(str(plain), here, env=home)
        assert plan.env["KERAS_BACKEND"] == plan.framework
        return plan.framework

    assert chosen() == "tensorflow"
    assert chosen(KERAS_BACKEND="jax") == "jax"
    assert chosen(KERAS_BACKEND="torch") == "torch"
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert chosen(KERAS_HOME=str(tmp_path)) == "jax"
    assert chosen(KERAS_HOME=str(tmp_path), KERAS_BACKEND="tensorflow") == "tensorflow"
    (tmp_path / "keras.json").write_text("[")
    assert chosen(KERAS_HOME=str(tmp_path)) == "tensorflow"
    plain.write_text("import keras, tensorflow.distribute")
    assert chosen(KERAS_BACKEND="torch") == "tensorflow"


def test_a_script_without_keras_gets_no_backend_for_it(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text("import jax\n")
    plan = plan_training(str(path), diagnosed(HERE), framework="jax", env={})
    assert plan.env == {}
    assert "KERAS_BACKEND" not in " ".join(plan.because)


def test_pretended_devices_of_jax_are_told_by_the_environment(plain: Path) -> None:
    here = diagnosed(HERE)
    plan = plan_training(
        str(plain), here, framework="jax", cpu_devices=4, env={"XLA_FLAGS": "--xla_dump_to=x"}
    )
    assert plan.strategy == "mesh"
    flags = "--xla_dump_to=x --xla_force_host_platform_device_count=4"
    assert plan.env == {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def test_a_script_whose_tensorflow_cannot_be_split_says_so(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text("import tensorflow as tf\ntf.distribute.get_strategy()")
    with pytest.raises(UsageError, match=r"loop\.py has no --cpu-devices"):
        plan_training(str(path), diagnosed(HERE), cpu_devices=2)


def test_commands_to_copy_run_what_ran(plain: Path) -> None:
    plan = plan_training(
        str(plain), diagnosed(HERE), framework="jax", arguments=["--x", "1"], cpu_devices=2
    )
    fields = {name: getattr(plan, name) for name in LaunchPlan.__dataclass_fields__}
    waited = {"template": "mnist-cnn", "input_wait_fraction": 0.4}
    trained = Training(**fields, returncode=0, result=waited, executed=(), seconds=1.0)
    words = shlex.split(trained.warnings[0].partition("To find the fix: ")[2])
    assert "KERAS_BACKEND=jax" in words
    assert "JAX_PLATFORMS=cpu" in words
    assert words[words.index("tpuctl") :][:5] == ["tpuctl", "profile", "run", "--", "python"]
    # Without tpuctl means without its runner.
    failed = replace(trained, returncode=1).failures[0]
    assert (failed.hint or "").endswith(shlex.join([sys.executable, str(plain), "--x", "1"]))


@pytest.mark.parametrize(
    ("few", "executed", "words"),
    [
        (0, (), "No training steps were seen"),
        (2, (), "2 training steps: too few to measure."),
        (0, (Executed("CPU:0", 21, 609),), "21 training steps, whose input was not seen: tf.data"),
    ],
)
def test_only_where_there_were_no_steps_none_were_seen(
    plain: Path, few: int, executed: tuple[Executed, ...], words: str
) -> None:
    plan = plan_training(str(plain), diagnosed(HERE))
    fields = {name: getattr(plan, name) for name in LaunchPlan.__dataclass_fields__}
    done = Training(**fields, returncode=0, result=None, executed=executed, seconds=1.0, few=few)
    assert words in str(done)
    # A template that had no steps left says so itself.
    assert "No training" not in str(replace(done, script=str(find_template("custom-loop"))))


def test_a_variable_that_would_break_the_framework_is_removed_and_shown(plain: Path) -> None:
    document = environment("kaggle_tpu_v5e_8")
    document["env"]["TPU_WORKER_HOSTNAMES"] = "WARNING: could not ask"
    here = diagnosed(document)
    assert "F47" in {problem.code for problem in here.problems}
    plan = plan_training(str(plain), here, env=document["env"])
    assert "TPU_WORKER_HOSTNAMES" in plan.unset
    assert plan.in_shell().startswith("env -u ")
    assert any("unset TPU_WORKER_HOSTNAMES (" in reason for reason in plan.because)
    assert "TPU_WORKER_HOSTNAMES" not in plan.env
