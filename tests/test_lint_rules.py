"""Every rule: its examples, the seeds' old code line by line, and what must stay silent."""

import dataclasses
import json
import pkgutil
import re
import warnings

import pytest

from tests import lint_cases as cases
from tpuctl.linting.checks.gone import equivalents, gone_names, gone_options, lookup
from tpuctl.linting.documents import read_notebook
from tpuctl.linting.lint import CHECKS, Selection, check
from tpuctl.linting.models import DATA, FAMILIES, SEVERITIES, rules
from tpuctl.linting.targets import target

WITH_EXAMPLES = [code for code in rules() if not code.startswith("T0") and code != "T114"]


@pytest.mark.parametrize("code", WITH_EXAMPLES)
def test_a_rule_finds_its_bad_example_and_not_its_good_one(code: str) -> None:
    rule = rules()[code]
    assert code in cases.codes(rule.bad)
    assert code not in cases.codes(rule.good)


@pytest.mark.parametrize("code", rules())
def test_a_rule_says_what_why_how_and_from_where(code: str) -> None:
    rule = rules()[code]
    assert code.startswith(f"T{FAMILIES.index(rule.family)}")
    assert rule.severity in SEVERITIES
    assert rule.title
    assert rule.why.endswith(".")
    assert rule.fix
    assert rule.sources
    for source in rule.sources:
        assert re.fullmatch(r"\S.* \(\d{4}-\d\d-\d\d\)", source)


def test_every_check_is_used() -> None:
    found = set()
    for rule in rules().values():
        found |= cases.codes(rule.bad)
    assert found >= set(WITH_EXAMPLES)
    assert len(CHECKS) == len(set(CHECKS))


SEEDS = {
    "B": cases.SURVIVAL_GUIDE,
    "C": cases.KAGGLE_UTILITY,
    "E": cases.WITHOUT_ESTIMATOR,
}


@pytest.mark.parametrize("runtime", ["colab", "kaggle:v5e-8", "tpu-vm", None])
@pytest.mark.parametrize("seed", "BCE")
def test_each_line_of_a_seed_that_no_longer_works_is_named(seed: str, runtime: str | None) -> None:
    text, wanted = cases.marked(SEEDS[seed])
    placed = cases.placed(text, runtime)
    found: dict[int, set[str]] = {}
    for each in placed:
        found.setdefault(each.finding.line, set()).add(each.finding.code)
    assert {line: sorted(codes - found.get(line, set())) for line, codes in wanted.items()} == {
        line: [] for line in wanted
    }
    errors = {each.finding.line for each in placed if each.finding.severity == "error"}
    assert errors <= set(wanted)


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (
            cases.GPU_AGAINST_TPU,
            {(2, 1): "T112", (5, 14): "T103", (6, 3): "T105", (6, 4): "T103", (6, 5): "T101",
             (6, 7): "T101", (6, 8): "T101"},
        ),
        (
            cases.FASHION,
            {(1, 6): "T105", (1, 9): "T105", (1, 12): "T102", (2, 1): "T113", (2, 2): "T105",
             (2, 5): "T109"},
        ),
    ],
    ids=["A", "D"],
)  # fmt: skip
def test_each_line_of_a_notebook_is_named_by_its_cell(cells, wanted, tmp_path) -> None:
    (document,) = read_notebook(tmp_path / "old.ipynb", cases.colab(cells))
    placed = check(document, target(None), Selection())
    found = {(p.finding.cell, p.finding.line, p.finding.code) for p in placed}
    assert {(*at, code) for at, code in wanted.items()} <= found
    assert all("KERAS_BACKEND" in (p.finding.fix or "") for p in placed if p.hit.code == "T105")


@pytest.mark.parametrize(
    ("runtime", "code", "text"),
    [
        ("colab", "keras", 'os.environ["KERAS_BACKEND"] = "jax"'),
        ("kaggle", "keras", "keras.distribution.DataParallel()"),
        ("pod", "keras", "keras.distribution.initialize()"),
        ("tpu-vm", "tensorflow", 'TPUClusterResolver(tpu="local")'),
        ("colab", "tensorflow", 'os.environ["KERAS_BACKEND"] = "jax"'),
        ("kaggle", "torch", 'os.environ.pop("TPU_PROCESS_ADDRESSES", None)'),
        ("colab:v6e-1", "torch", "torch_xla.device()"),
        ("pod", "jax", "jax.distributed.initialize()"),
    ],
)
def test_the_code_is_that_of_the_runtime(runtime: str, code: str, text: str) -> None:
    assert text in target(runtime).code(code)


VARIANTS = [
    ("T104", "import tensorflow as tf\ntf.contrib.tpu.TPUEstimator()\n"),
    ("T105", "from os import environ\nenviron['COLAB_TPU_ADDR']\n"),
    ("T106", "from jax.tools.colab_tpu import setup_tpu\nsetup_tpu()\n"),
    ("T107", "from jax.experimental.maps import xmap\nxmap(f)\n"),
    ("T108", "import jax\njax.pmap(jax.pmap(f))\n"),
    ("T111", "from torch_xla.distributed import xla_multiprocessing as x\nN = 8\n"
     "x.spawn(f, (), N)\n"),
    ("T112", "try:\n  %tensorflow_version 2.x\nexcept Exception:\n  pass\n"),
    ("T113", "!gcloud compute tpus create t1 --zone a\n"),
    ("T116", "from keras.layers.convolutional import Conv2D\n"),
    ("T302", "import torch_xla\nm.half()\n"),
    ("T303", "%env XLA_USE_BF16=1\n"),
    ("T305", "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\ndef make():\n"
     "    return tf.keras.Sequential([])\nm = make()\n"),
    ("T309", "import jax, jax.numpy as jnp\nf = jax.jit(lambda x: jnp.unique(x))\n"),
    ("T309", "from functools import partial\nimport jax\n@partial(jax.jit, static_argnums=0)\n"
     "def f(n, x):\n    return x[x > 0]\n"),
    ("T310", "import jax.numpy as jnp\nx = jnp.array([1.0], dtype='float64')\n"),
    ("T316", "!export KAGGLE_KEY=0123456789abcdef0123456789abcdef\n"),
    ("T316", "import wandb\nwandb.login(key='0123456789abcdef0123456789abcdef01234567')\n"),
    ("T401", "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\nd = d.map(f).batch(8)\n"),
    ("T402", "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\ndef make():\n"
     "    d = tf.data.TFRecordDataset(f)\n    d = d.batch(128)\n    return d\nm.fit(make())\n"),
    ("T409", "import torch_xla\nfor x in d:\n    loss = f(x)\n    loss.backward()\n"
     "    total += loss.item()\n"),
    ("T414", "import jax\nfrom functools import partial\n@partial(jax.jit, static_argnums=(1,))\n"
     "def f(x, n):\n    return x\nfor i in range(9):\n    f(x, i)\n"),
    ("T415", "import torch_xla.core.xla_model as xm\nfor x in d:\n    xm.mark_step()\n    f()\n"
     "    xm.mark_step()\n"),
    ("T103", "import tensorflow as tf\nd.make_one_shot_iterator()\n"),
    ("T113", "from googleapiclient import discovery\ndiscovery.build('tpu', 'v1')\n"),
    ("T305", "import tensorflow as tf\ndef make():\n    return tf.keras.Sequential([])\n"
     "def main():\n    s = tf.distribute.TPUStrategy(r)\n    m = make()\nmain()\n"),
    ("T401", "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\n"
     "d = d.map(f, num_parallel_calls=1).batch(8)\n"),
    ("T404", "import tensorflow as tf\ndecode = lambda x: tf.io.decode_jpeg(x)\n"
     "d = tf.data.Dataset.range(3).cache().map(decode)\n"),
    ("T409", "import torch_xla\nfor x in d:\n    loss = f(x)\n    loss.backward()\n"
     "    print(loss.detach().cpu().item())\n"),
    ("T409", "import torch_xla.core.xla_model as xm\nfor x in d:\n    loss = f(x)\n"
     "    loss.backward()\n    print(xm.all_reduce('sum', loss).item() / 8)\n"),
    ("T417", "import tensorflow as tf\nm = tf.train.CheckpointManager(c, 'gs://b/c', 3)\n"
     "for x in d:\n    train_step(x)\n    m.save()\n"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text"), VARIANTS)
def test_a_variant_of_a_bad_example_is_found(code: str, text: str) -> None:
    assert code in cases.codes(text)


# Names that stand for something else, and code that is right.
SILENT = [
    "def f(tf):\n    return tf.Session()\n",
    "tf = object()\ntf.contrib\n",
    "from mine import jax\njax.tree_map(f, x)\n",
    "class tf:\n    pass\ntf.placeholder\n",
    "import tensorflow as tf\ndef f():\n    tf = other()\n    tf.set_random_seed(1)\n",
    "import torch_tpu\ndevice = 'tpu'\n",
    "print('os.environ[\\'COLAB_TPU_ADDR\\'] was an address')\n",
    "import pandas as pd\npd.read_csv('a').map(f).filter(g)\n",
    "import jax\n@jax.jit\ndef f(x):\n    return x\nfor b in data:\n    f(b)\n",
    "import jax.numpy as jnp\ndef f(x):\n    return jnp.nonzero(x)\n",
    "import jax\njax.distributed.initialize()\n",
    "import jax\nfor b in data:\n    s, loss = train_step(s, b)\nprint(float(loss))\n",
    "import tf_keras\nmodel.fit_generator(x)\n",
    "import keras\noptimizer = keras.optimizers.Adam(learning_rate=0.1)\n",
    "import tensorflow as tf\nd = tf.data.Dataset.range(9).batch(2)\n",
    "import keras\nkeras.layers.Dense(300)\n",
    "VARIABLES = ('COLAB_TPU_ADDR', 'XLA_USE_BF16')\nif 'COLAB_TPU_ADDR' in text:\n    f()\n",
    "import tensorflow as tf\nservice = f'grpc://{host}:5000'\nname.startswith('grpc://')\n",
    "'''tf.contrib is gone'''\n# %tensorflow_version 1.x\n",
    "import keras\nkind = 'mixed_bfloat16' if tpu == 'tpu' else None\nif not kind:\n"
    "    keras.mixed_precision.set_global_policy('mixed_float16')\n",
    "import jax\nimport tensorflow as tf\ndef f(x):\n    return tf.io.decode_jpeg(x)\n"
    "def f(x):\n    return x\nd = tf.data.Dataset.range(3).cache().map(f, 8).prefetch(1)\n",
    "match value:\n    case tf:\n        tf.Session()\n",
    "key = 'params-decoder-scanned_blocks-mlp-wi_0-kernel'\n",
]


@pytest.mark.parametrize("text", SILENT)
def test_what_is_not_sure_is_silent(text: str) -> None:
    assert cases.codes(text) == set()


@pytest.mark.parametrize(("size", "found"), [(16, set()), (2, {"T407"})])
def test_the_batch_of_a_loader_is_that_of_one_core(size: int, found: set[str]) -> None:
    text = f"from torch.utils.data import DataLoader\nDataLoader(data, batch_size={size})\n"
    assert cases.codes(text, "tpu-vm") == found


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("import tensorflow as tf", "tf.contrib.tpu.x"),
        ("import tensorflow", "tensorflow.contrib.tpu.x"),
        ("from tensorflow import contrib as c", "c.tpu.x"),
        ("import tensorflow.compat.v2 as tf", "tf.contrib.tpu.x"),
        ("import tensorflow as tf\nc = tf.contrib", "c.tpu.x"),
        ("import tensorflow as tf\ndef f():\n    t = tf\n    return", "t.contrib.tpu.x"),
        ("try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None", "tf.contrib.x"),
    ],
)
def test_names_are_followed_through_imports_and_aliases(before: str, name: str) -> None:
    text = f"{before} {name}\n" if before.endswith("return") else f"{before}\n{name}\n"
    last = text.count("\n")
    assert last in cases.lines(text, "T101")


def test_a_name_that_the_program_expects_to_be_missing_is_a_maybe() -> None:
    text = "import jax\ntry:\n    f = jax.tree_map\nexcept AttributeError:\n    f = jax.tree.map\n"
    (found,) = cases.placed(text)
    assert found.finding.severity == "maybe"
    assert not found.finding.fixable


def test_a_finding_in_a_chain_is_where_the_call_is() -> None:
    text = (
        "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\nd = (\n"
        "    tf.data.Dataset.range(9)\n    .map(f, 'é').batch(3)\n    .cache()\n)\n"
    )
    (found,) = (p.finding for p in cases.placed(text) if p.finding.code == "T307")
    assert (found.line, found.column) == (5, 18)


def test_columns_count_characters() -> None:
    (found,) = cases.placed("import tensorflow as tf\nx = '日本é', tf.log(1)\n")
    assert found.finding.column == 12


def test_arrays_for_the_host_may_have_any_shape() -> None:
    text = "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\nd = d.batch(9)"
    assert "T307" in cases.codes(text + ".repeat(2)")
    assert "T307" not in cases.codes(text + ".as_numpy_iterator()")


def test_the_generation_decides_the_width_of_the_matrix_unit() -> None:
    text = "import keras\nlayer = keras.layers.Dense(384, activation='relu')\n"
    assert "T408" in cases.codes(text, "colab:v6e-1")
    assert "T408" not in cases.codes(text, "colab:v5e-1")


def test_the_message_about_a_secret_does_not_repeat_it() -> None:
    secret = "hf_" + "aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3x"
    (found,) = cases.placed(f"login(token={secret!r})\n")
    assert found.finding.code == "T316"
    assert secret[3:] not in json.dumps(dataclasses.asdict(found.finding))
    assert cases.codes("login(token='hf_" + "x" * 34 + "')\n") == set()


def test_a_notebook_says_which_accelerator_it_asks_for() -> None:
    assert cases.codes("x = 1", accelerator="TPU", colab={"gpuType": "V28"}) == {"T114"}
    assert cases.codes("x = 1", kaggle={"accelerator": "tpu1vmV38"}) == {"T114"}
    assert cases.codes("x = 1", accelerator="TPU", colab={"gpuType": "V5E1"}) == set()


def test_a_notebook_for_a_gpu_may_use_float16_and_install_what_it_needs() -> None:
    text = (
        "!pip install -U tensorflow\nimport keras\nkeras.config.set_dtype_policy('mixed_float16')"
    )
    assert cases.codes(text, accelerator="GPU") == set()
    assert cases.codes(text, accelerator="NONE") == {"T302", "T315"}


@pytest.mark.parametrize(
    "line",
    ["!pip install torch_xla", "!pip install -q -U 'jax[tpu]' -f x", "%pip install tensorflow",
     "!python3 -m pip install --upgrade libtpu", "if True:\n    !pip install torch==2.1"],
)  # fmt: skip
def test_an_install_that_replaces_the_image_is_named(line: str) -> None:
    assert "T315" in cases.codes(line + "\nx = 1", "kaggle")
    assert "T315" not in cases.codes(line + "\nx = 1", "tpu-vm")


def test_the_tables_of_names_are_dated_and_complete() -> None:
    document = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
    assert document["as_of"] == "2026-11-22"
    assert {gone.code for gone in gone_names().values()} <= set(rules())
    assert len(gone_names()) > 700
    for name in ("tf.logging.info", "tf.distributions.Normal", "keras.applications.RegNetX002"):
        found = lookup(name)
        assert found is not None
        assert found[1].new is None
    assert lookup("tf.logs.info") is lookup("keras.applications.ResNet50") is None
    assert None in equivalents().values()


@pytest.mark.slow
def test_the_names_that_jax_dropped_are_gone_and_the_new_ones_are_there() -> None:
    pytest.importorskip("jax")

    def is_there(path: str) -> bool:
        try:
            return pkgutil.resolve_name(path) is not None
        except (ImportError, AttributeError):
            return False

    known = {old: gone for old, gone in gone_names().items() if gone.code == "T107"}
    assert len(known) > 190
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gone = [old for old, found in known.items() if not found.still_works]
        assert [old for old in gone if is_there(old)] == []
        assert [
            found.new for found in known.values() if found.new and not is_there(found.new)
        ] == []
        assert is_there("jax.numpy.sort")


@pytest.mark.parametrize(
    ("line", "runtime", "found"),
    [
        ("m = m.to('cuda:1')", "tpu-vm", True),
        ("m = m.to(device='cuda')", "colab", True),
        ("d = torch.device('cuda')", "kaggle", True),
        ("torch.distributed.init_process_group('nccl')", "pod", True),
        ("torch.cuda.set_device(0)", "tpu-vm", True),
        ("d = jax.devices('gpu')[0]", "tpu-vm", True),
        ("if __name__ == '__main__':\n    m.cuda()", "tpu-vm", True),
        ("if resume:\n    m.cuda()", "tpu-vm", True),
        ("if use_tpu:\n    x = 1\nelse:\n    m.cuda()", "tpu-vm", False),
        ("m.cuda()", None, False),
        ("import torch_xla\nm.cuda()", None, True),
        ("try:\n    import torch_xla\nexcept ImportError:\n    pass\nm.cuda()", None, False),
        ("m.cuda()", "cpu", False),
        ("if torch.cuda.is_available():\n    m.cuda()", "tpu-vm", False),
        ("m = m.to('cuda' if gpu else 'cpu')", "tpu-vm", False),
        ("names = ['cuda', 'xla']", "tpu-vm", False),
        ("d = jax.devices('tpu')", "tpu-vm", False),
        ("torch.distributed.init_process_group('xla')", "tpu-vm", False),
    ],
)
def test_cuda_is_found_where_a_tpu_is(line: str, runtime: str | None, found: bool) -> None:
    assert ("T317" in cases.codes(f"import jax\nimport torch\n{line}\n", runtime)) == found


def test_options_that_jax_dropped_are_found() -> None:
    text = "import jax\njax.config.update('jax_array', True)\n"
    assert cases.codes(text) == {"T107"}
    assert cases.codes(text.replace("jax_array", "jax_debug_nans")) == set()
    old = "from jax.config import config\nconfig.update('jax_spmd_mode', 'allow_all')\n"
    assert [each.finding.line for each in cases.placed(old)] == [1, 2]


@pytest.mark.slow
def test_jax_knows_none_of_the_options_that_it_dropped() -> None:
    jax = pytest.importorskip("jax")
    assert not gone_options() & set(jax.config.values)
    for name in gone_options():
        with pytest.raises(AttributeError, match="Unrecognized config option"):
            jax.config.update(name, True)


def test_layers_of_tensorflow_1_are_gone_unless_keras_2_is_kept() -> None:
    text = "import tensorflow.compat.v1 as tf\nx = tf.layers.conv2d(x, 8, 3)\n"
    assert cases.codes(text) == {"T116"}
    assert cases.codes(text.replace(".compat.v1", "")) == {"T103"}
    assert cases.codes(f"import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n{text}") == set()


def test_a_name_that_moved_is_named_once_where_it_is_imported() -> None:
    text = "from jax.experimental import PartitionSpec as P\na = P('x')\nb = P('y')\n"
    assert [each.finding.line for each in cases.placed(text)] == [1]
    text = "from jax.core import get_aval\nget_aval(1)\n"
    assert [each.finding.line for each in cases.placed(text)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "runtime", "severity"),
    [
        ("m = M.from_pretrained('x', dtype=jnp.float16)", "tpu-vm", "warning"),
        ("m = M(param_dtype=jnp.float16, device='tpu')", None, "maybe"),
        ("m = x.astype(jnp.float16)", "kaggle", "warning"),
        ("m = M(dtype=jnp.float16)", None, None),
        ("m = M(dtype=jnp.bfloat16)", "tpu-vm", None),
        ("m = x.dtype == jnp.float16, jnp.finfo(jnp.float16)", "tpu-vm", None),
    ],
)
def test_float16_in_jax_is_found_where_a_tpu_runs_it(
    line: str, runtime: str | None, severity: str | None
) -> None:
    found = cases.placed(f"import jax.numpy as jnp\n{line}\n", runtime)
    assert [each.finding.severity for each in found if each.finding.code == "T302"] == (
        [severity] if severity else []
    )


@pytest.mark.tf
def test_the_names_that_are_gone_are_gone_and_the_new_ones_are_there() -> None:
    import keras
    import tensorflow as tf

    def is_there(path: str) -> bool:
        found = {"tf": tf, "keras": keras}[path.partition(".")[0]]
        for part in path.split(".")[1:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True

    known = {old: gone for old, gone in gone_names().items() if old.startswith(("tf.", "keras."))}
    news = {gone.new for gone in known.values() if gone.new}
    assert [new for new in news if not is_there(new)] == []
    gone = [old for old, found in known.items() if not found.still_works]
    assert [old for old in gone if is_there(old)] == []
    assert is_there("keras.Model")
