"""--fix and --diff: what is mechanical is ported, the rest stays as it is, to the byte."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import lint_cases as cases
from tests.lint_cases import notebook
from tests.sharing import needs
from tpuctl.errors import MissingExtraError, WriteError
from tpuctl.linting.fix import fix
from tpuctl.linting.run import lint_paths
from tpuctl.storage.local import write_atomically

pytest.importorskip("libcst")
pytest.importorskip("nbformat")

# Each change alone: a program, and the same after --fix for a runtime.
CHANGES = [
    ("import tensorflow as tf\ntf.set_random_seed( 1 )  # why\n",
     "import tensorflow as tf\ntf.random.set_seed( 1 )  # why\n"),
    ("import tensorflow as T\nx = T.log(T.random_normal([2]))\n",
     "import tensorflow as T\nx = T.math.log(T.random.normal([2]))\n"),
    ("import tensorflow as tf\nx = tf.spectral.rfft(y)\n",
     "import tensorflow as tf\nx = tf.signal.rfft(y)\n"),
    ("from tensorflow import keras\nl = keras.layers.core.Dense(1)\n",
     "from tensorflow import keras\nl = keras.layers.Dense(1)\n"),
    ("import jax\nn = jax.host_count()\ny = jax.tree_map(f,\n             x)\n",
     "import jax\nn = jax.process_count()\ny = jax.tree.map(f,\n             x)\n"),
    ("import torch_xla.core.xla_model as xm\nw = xm.xrt_world_size()\n",
     "import torch_xla.runtime as xr\nimport torch_xla.core.xla_model as xm\n"
     "w = xr.world_size()\n"),
    ("import torch_xla.runtime as r\nimport torch_xla.core.xla_model as xm\nxm.get_ordinal()\n",
     "import torch_xla.runtime as r\nimport torch_xla.core.xla_model as xm\nr.global_ordinal()\n"),
    ("import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=(a,), nprocs=8)\n",
     "import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=(a,))\n"),
    ("import torch_xla\nimport torch\ns = torch.load('é.pt')\ntorch_xla.launch(f)\n",
     "import torch_xla\nimport torch\ns = torch.load('é.pt', map_location=\"cpu\")\n"
     "torch_xla.launch(f)\n"),
    ("import keras\no = keras.optimizers.Adam(\n    lr=0.1,  # slow\n    decay=0,\n)\n",
     "import keras\no = keras.optimizers.Adam(\n    learning_rate=0.1,  # slow\n)\n"),
    ("import keras\nm.fit_generator(g); m.save_weights('a.h5')\nm.load_weights('a.h5')\n",
     "import keras\nm.fit(g); m.save_weights('a.weights.h5')\nm.load_weights('a.weights.h5')\n"),
    ("import keras\nx = 'tpu'\nkeras.mixed_precision.set_global_policy('mixed_float16')\n",
     "import keras\nx = 'tpu'\nkeras.mixed_precision.set_global_policy(\"mixed_bfloat16\")\n"),
    ("import jax\nimport tensorflow as tf\ndef d(p):\n    return tf.io.decode_jpeg(p)\n"
     "ds = tf.data.Dataset.range(9).map(d).batch(2)\nfor x in ds:\n    step(x)\n",
     "import jax\nimport tensorflow as tf\ndef d(p):\n    return tf.io.decode_jpeg(p)\n"
     "ds = tf.data.Dataset.range(9).map(d, num_parallel_calls=tf.data.AUTOTUNE).batch(2)"
     ".prefetch(tf.data.AUTOTUNE)\nfor x in ds:\n    step(x)\n"),
]  # fmt: skip


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_change_is_made_and_nothing_else(
    tmp_path: Path, before: str, after: str, newline: str
) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(before.replace("\n", newline).encode())
    result = lint_paths([path], fixes=True)
    assert path.read_bytes().decode() == after.replace("\n", newline)
    assert result.fixed > 0
    assert lint_paths([path], fixes=True).fixed == 0


UNSURE = [
    "import keras\nkeras.mixed_precision.set_global_policy('mixed_float16')\n",
    "import torch\ndef f(x):\n    import torch_xla\n    return x.to(torch.float16)\n",
    "import jax\ntry:\n    m = jax.tree_map\nexcept AttributeError:\n    m = jax.tree.map\n",
    "import torch_xla, os\nos.environ['XLA_USE_BF16'] = '1'\n",
]


@pytest.mark.parametrize("text", UNSURE)
def test_what_is_not_sure_or_changes_the_numbers_is_not_changed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    result = lint_paths([path], fixes=True)
    assert path.read_text() == text
    assert result.findings
    assert not any(finding.fixable for finding in result.findings)


def test_a_diff_writes_nothing_and_can_be_applied(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(CHANGES[0][0])
    result = lint_paths([path], diff=True)
    assert path.read_text() == CHANGES[0][0]
    (change,) = result.changes
    assert "-tf.set_random_seed( 1 )  # why\n+tf.random.set_seed( 1 )  # why\n" in change.diff
    assert [finding.code for finding in result.findings] == ["T103"]
    words = ["patch", "--quiet", str(path)]
    subprocess.run(words, input=change.diff, text=True, check=True)
    assert path.read_text() == CHANGES[0][1]


def test_mode_link_encoding_and_byte_order_mark_survive(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    text = "# coding: latin-1\nimport tensorflow as tf\nx = 'é'; tf.log(x)\n"
    real.write_bytes(text.encode("latin-1"))
    real.chmod(0o750)
    owner = 4711 if os.getuid() == 0 else os.getuid()
    os.chown(real, owner, -1)
    link.symlink_to("real.py")
    assert lint_paths([link], fixes=True).fixed == 1
    assert link.is_symlink()
    assert (real.stat().st_mode & 0o777, real.stat().st_uid) == (0o750, owner)
    assert real.read_bytes().decode("latin-1") == text.replace("tf.log", "tf.math.log")
    real.write_bytes(b"\xef\xbb\xbfimport tensorflow as tf\ntf.log(x)\n")
    assert lint_paths([real], fixes=True).fixed == 1
    assert real.read_bytes() == b"\xef\xbb\xbfimport tensorflow as tf\ntf.math.log(x)\n"


def test_a_file_that_changes_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(CHANGES[0][0])
    made = fix

    def slow(*arguments: object) -> object:
        path.write_text("x = 1\n")
        return made(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tpuctl.linting.run.fix", slow)
    result = lint_paths([path], fixes=True)
    assert path.read_text() == "x = 1\n"
    assert "modified while" in result.warnings[0]


def test_a_file_that_cannot_be_written_is_not_counted_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(CHANGES[0][0])

    def refuse(path: Path, *content: object, **options: object) -> None:
        if path.name == "a.py":
            raise WriteError(f"Could not write {path}: Read-only file system.")
        write_atomically(path, *content, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("tpuctl.linting.run.write_atomically", refuse)
    result = lint_paths([tmp_path], fixes=True)
    assert (tmp_path / "b.py").read_text() == CHANGES[0][1]
    assert (result.fixed, len(result.changes), result.exit_code) == (1, 1, 1)
    assert "a.py was not changed: Could not write" in result.warnings[0]


@pytest.mark.parametrize("form", [{"nbformat": 4, "nbformat_minor": 4}, {"nbformat_minor": {}}, {}])
def test_a_notebook_that_jupyter_cannot_read_is_not_changed(
    tmp_path: Path, form: dict[str, object]
) -> None:
    path = tmp_path / "a.ipynb"
    cells = [{"cell_type": "code", "source": CHANGES[0][0]}]
    path.write_text(json.dumps({"cells": cells, **form}))
    result = lint_paths([path], fixes=True)
    assert "Jupyter cannot read this notebook" in result.warnings[0]
    assert result.fixed == 0


ODD = "import tensorflow as tf\x0c\nx = '\u2028\x1c'\ntf.log(x)"


def test_a_diff_of_odd_lines_can_be_applied(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(ODD, encoding="utf-8")
    (change,) = lint_paths([path], diff=True).changes
    words = ["patch", "--quiet", str(path)]
    subprocess.run(words, input=change.diff.encode(), check=True)
    assert path.read_text(encoding="utf-8") == ODD.replace("tf.log", "tf.math.log")


LINES = st.sampled_from([
    "import tensorflow as tf", "import torch_xla.core.xla_model as xm", "import keras", "",
    "x = tf.log(1)  # é", "n = xm.xrt_world_size()", "%time x = 1", "!ls \\\n  -l", "y = !ls",
    "if x:\n    tf.set_random_seed(1)\n    !pwd", 'text = """\n%not\n"""', "pip install jax",
    "o = keras.optimizers.Adam(lr=1, decay=0)", "%tensorflow_version 2.x", "for x in", "x?",
    "os.environ['COLAB_TPU_ADDR']", "s = tf.distribute.TPUStrategy(r)", "日本 = tf.to_int32(x)",
    "with s.scope():\n  m = tf.keras.Sequential()",
])  # fmt: skip
HEADS = st.sampled_from(["", "%%time\n", "%%bash\n", "%%writefile a.py\n"])


@st.composite
def cells(draw: st.DrawFn) -> str:
    margin, end = draw(st.sampled_from(["", "  "])), draw(st.sampled_from(["\n", "\r\n"]))
    lines = draw(st.lists(LINES, max_size=6))
    return (draw(HEADS) + "\n".join(margin + line for line in lines)).replace("\n", end)


KEPT = re.compile(r"(?m)^\s*!.*$|^%%.*$|^%time.*$|^%not$")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(cells(), min_size=1, max_size=5), st.sampled_from([None, 1, 2]), st.booleans())
def test_any_notebook_is_fixed_once_and_only_in_its_code(
    tmp_path: Path, texts: list[str], indent: int | None, whole: bool
) -> None:
    path = tmp_path / "a.ipynb"
    before = json.loads(notebook(*("x" for _ in texts)))
    for cell, text in zip(before["cells"], texts, strict=True):
        cell["source"] = text if whole else text.splitlines(keepends=True)
    path.write_text(json.dumps(before, indent=indent, ensure_ascii=whole), encoding="utf-8")
    found = lint_paths([path], runtime="kaggle").findings
    for finding in found:
        lines = texts[(finding.cell or 1) - 1].split("\n")
        assert 1 <= finding.line <= len(lines)
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 2
    lint_paths([path], fixes=True, runtime="kaggle")
    once = path.read_bytes()
    after = json.loads(once)
    for cell, old, text in zip(after["cells"], before["cells"], texts, strict=True):
        assert KEPT.findall("".join(cell["source"])) == KEPT.findall(text)
        cell["source"] = old["source"]
    assert after == before
    broken = {f.cell for f in found if f.code in ("T001", "T002")}
    again = lint_paths([path], fixes=True, runtime="kaggle")
    assert {f.cell for f in again.findings if f.code in ("T001", "T002")} == broken
    assert (again.fixed, path.read_bytes()) == (0, once)


def test_without_the_extra_the_error_names_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text(CHANGES[0][0])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(lint_paths([path]).findings) == 1
    with pytest.raises(MissingExtraError) as caught:
        lint_paths([path], fixes=True)
    assert caught.value.hint == "pip install 'tpuctl[lint]'"
    assert path.read_text() == CHANGES[0][0]


def fixed(tmp_path: Path, raw: str, runtime: str | None = None) -> dict[str, object]:
    path = tmp_path / "old.ipynb"
    path.write_text(raw, encoding="utf-8")
    lint_paths([path], fixes=True, runtime=runtime)
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("indent", [1, 2, None])
@pytest.mark.parametrize("cells", [cases.GPU_AGAINST_TPU, cases.FASHION], ids=["A", "D"])
def test_a_notebook_keeps_its_form_outputs_and_other_cells(
    tmp_path: Path, cells: tuple[str, ...], indent: int | None
) -> None:
    raw = cases.colab(cells, indent=indent)  # type: ignore[arg-type]
    fixed(tmp_path, raw)
    after = (tmp_path / "old.ipynb").read_text(encoding="utf-8")
    before = json.loads(raw)
    assert after != raw
    same = [c["source"] for c in before["cells"]] == [
        c["source"] for c in json.loads(after)["cells"]
    ]
    assert not same
    for cell, changed in zip(before["cells"], json.loads(after)["cells"], strict=True):
        cell["source"] = changed["source"]
    # Written by the same rules, the whole file is the same but for the sources.
    assert after == json.dumps(before, indent=indent, ensure_ascii=False) + "\n"
    assert "errors" not in after
    left = lint_paths([tmp_path / "old.ipynb"]).findings
    assert [f for f in left if f.severity == "error"] == []


def test_magics_and_indented_cells_survive_a_fix(tmp_path: Path) -> None:
    cell = "%time x = 1\nif x:\n    !pip install a \\\n        b\n    y = tf.log(x)\nfiles = !ls"
    found = fixed(tmp_path, notebook("import tensorflow as tf", cell, "  z = tf.log(y)\n  !ls"))
    sources = ["".join(each["source"]) for each in found["cells"]]  # type: ignore[attr-defined]
    assert sources[1] == cell.replace("tf.log", "tf.math.log")
    assert sources[2] == "  z = tf.math.log(y)\n  !ls"


def test_a_setup_that_is_used_in_another_way_is_not_ported(tmp_path: Path) -> None:
    cells = [*cases.FASHION[:2], "mine.train(strategy, tpu)"]
    found = fixed(tmp_path, cases.colab(tuple(cells)))
    sources = ["".join(each["source"]) for each in found["cells"]]  # type: ignore[attr-defined]
    assert "strategy = tf.distribute.TPUStrategy(tpu)" in sources[1]
    assert "keras" not in sources[0]


RUNNER = """
import json, sys
for path in sys.argv[1:]:
    names = {"__name__": "__main__"}
    for cell in json.load(open(path))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path, "exec"), names)
import keras
print(keras.backend.backend(), len(keras.distribution.list_devices()), "tensorflow" in sys.modules)
"""
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
SEEDS = {"a.ipynb": cases.GPU_AGAINST_TPU, "d.ipynb": cases.FASHION}


def executed(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the notebooks in a folder, on two virtual CPU devices."""
    (folder / "runner.py").write_text(RUNNER)
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {TWO_DEVICES}"}
    environment = {key: os.environ[key] for key in os.environ.keys() - {"KERAS_BACKEND"}} | flags
    return subprocess.run(
        [sys.executable, "runner.py", *SEEDS], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.tf
def test_fixed_notebooks_run_on_keras_3_over_jax(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    needs("jax")
    random = np.random.default_rng(7)
    images = random.integers(0, 255, (64, 28, 28)).astype("uint8")
    np.savez(tmp_path / "digits.npz", x=images, y=random.integers(0, 10, 64))
    for name, cells in SEEDS.items():
        (tmp_path / name).write_text(cases.colab(cells))
    assert "SyntaxError" in executed(tmp_path).stderr
    assert lint_paths([tmp_path], fixes=True, runtime="kaggle").fixed > 10
    done = executed(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ran 2 epochs" in done.stdout
    assert "ran 4 steps" in done.stdout
    assert "jax 2 False" in done.stdout


ADDRESS = "'grpc://' + os.environ['COLAB_TPU_ADDR']"
RESOLVER = f"tf.distribute.cluster_resolver.TPUClusterResolver({ADDRESS})"
SETUPS = {
    "assertion": (
        "import tensorflow as tf, os\nassert 'COLAB_TPU_ADDR' in os.environ, 'no'\n"
        "address = 'grpc://{}'.format(os.environ['COLAB_TPU_ADDR'])\nprint(f'at {address}')",
        "tpu = tf.distribute.cluster_resolver.TPUClusterResolver(address)\n"
        "strategy = tf.distribute.TPUStrategy(tpu)\nwith strategy.scope():\n  n = 1",
    ),
    "key error": (
        "import tensorflow as tf, os\ntry:\n    name = os.environ['COLAB_TPU_ADDR']\n"
        "    address = 'grpc://' + name\nexcept KeyError:\n    print('none')",
        "tpu_model = tf.contrib.tpu.keras_to_tpu_model(model, strategy=\n"
        "    tf.contrib.tpu.TPUDistributionStrategy(\n"
        "        tf.contrib.cluster_resolver.TPUClusterResolver(address)))\n"
        "tpu_model.save_weights('m.h5')",
    ),
    "flag": (
        "from tensorflow import keras\nimport tensorflow as tf\nimport os\ntpu = True",
        f"if tpu:\n    strategy = tf.contrib.tpu.TPUDistributionStrategy({RESOLVER})\n"
        "    model = tf.contrib.tpu.keras_to_tpu_model(model, strategy=strategy)",
    ),
    "fallback": (
        "import os\nimport tensorflow as tf",
        f"try:\n  tpu = {RESOLVER}\n  tf.config.experimental_connect_to_cluster(tpu)\n"
        "  strategy = tf.distribute.experimental.TPUStrategy(tpu)\nexcept ValueError:\n"
        "  tpu = None\n  strategy = tf.distribute.get_strategy()",
        "with strategy.scope():\n    m = tf.keras.Sequential()",
        "print(strategy.num_replicas_in_sync)",
    ),
    "from imports": (
        "import os\nfrom tensorflow.keras import layers as L, models\nimport tensorflow as tf\n"
        "from tensorflow.contrib.tpu.python.tpu import keras_support",
        f"r = tf.contrib.cluster_resolver.TPUClusterResolver({ADDRESS})\n"
        "s = keras_support.TPUDistributionStrategy(r)\n"
        "model = tf.contrib.tpu.keras_to_tpu_model(models.Sequential([L.Dense(1)]), strategy=s)",
    ),
}


@pytest.mark.parametrize("cells", SETUPS.values(), ids=SETUPS)
def test_other_ways_to_set_up_a_tpu_are_ported_as_a_whole(
    tmp_path: Path, cells: tuple[str, ...]
) -> None:
    found = fixed(tmp_path, cases.colab(cells))
    text = "\n".join("".join(each["source"]) for each in found["cells"])  # type: ignore[attr-defined]
    assert text.count("import keras\n") == 1
    assert text.index("KERAS_BACKEND") < text.index("import keras")
    assert "COLAB_TPU_ADDR" not in text
    assert "tensorflow" not in text
    assert "strategy" not in text
    left = lint_paths([tmp_path]).findings
    assert [f for f in left if f.severity == "error"] == []
