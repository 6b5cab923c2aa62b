"""The time of a lint grows with the length of a program, whatever the program looks like."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from tpuctl.linting.documents import read_notebook, read_script
from tpuctl.linting.lint import Selection, check
from tpuctl.linting.targets import target

pytestmark = pytest.mark.slow

TF = "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r)\n"
XLA = "import torch_xla\nimport torch\n"
ADDRESS = "import os\nimport tensorflow as tf\nt = os.environ['COLAB_TPU_ADDR']\n"
MAKE = "tf.keras.Sequential()\n"
DECODE = "  tf.io.decode_jpeg(x)\n"


def numbered(n: int, text: str) -> str:
    return "".join(text.replace("@", str(i)).replace("#", str(i + 1)) for i in range(n))


# Programs that grow: each was a square or a cube of its length, or looks as if it could be.
PROGRAMS: dict[str, Callable[[int], str]] = {
    "rebound": lambda n: TF + "x = tf\n" * n + "x.log(1)\n" * n,
    "imported": lambda n: "import tensorflow as tf\n" * n + "tf.log(1)\n" * n,
    "defined": lambda n: "import jax\n" + "def f(x):\n  return x\n" * n + "jax.jit(f)\n" * n,
    "in scope": lambda n: TF + numbered(n, f"def f#():\n  f@()\n  f@()\n  {MAKE}  f#()\n"),
    "elif": lambda n: TF + "if version == 0:\n  tf.log(0)\n" + "elif x:\n  tf.log(1)\n" * n,
    "condition": lambda n: TF + f"if {'version or ' * n} x:\n" + "  tf.log(1)\n" * n,
    "fetched": lambda n: "import jax\nfor x in d:\n" + "  y = train_step(x)\n  float(y)\n" * n,
    "saved": lambda n: "import jax\nfor x in d:\n" + "  f.save('gs://b/c')\n" * n,
    "targets": lambda n: f"import jax\ng = jax.jit(f)\nfor {numbered(n, 'a@, ')} in d:\n"
    + "  g(x[:a1])\n" * n,
    "maps": lambda n: TF + f"def f(x):\n{DECODE * n}\n"
    + "d = tf.data.Dataset.range(3).map(f)\n" * n + "d.batch(2)\n" * n,
    "makers": lambda n: TF + f"def f(x):\n{DECODE * n}  return tf.data.Dataset.range(3)\n"
    + "d = f(x).batch(2)\n" * n,
    "pipeline": lambda n: TF + "d = tf.data.Dataset.range(3)\n" + "d = d.map(f).batch(3)\n" * n,
    "chain": lambda n: TF + "d = tf.data.Dataset.range(3)" + ".map(f)" * n + "\n",
    "sums": lambda n: TF + "x = 'a'\n" + "x = x + 'b'\n" * n + "d.batch(x)\n" * n,
    "markers": lambda n: XLA + "for x in d:\n  torch_xla.sync()\n  o.optimizer_step()\n" * n,
    "half": lambda n: numbered(n, "import torch_xla.a@\n") + "m.half()\n" * n,
    "on replicas": lambda n: TF + "def f(x):\n  tf.py_function(x)\n  tf.unique(x)\n" * n
    + "s.run(f)\n" * n,
    "sessions": lambda n: ADDRESS + "with tf.Session(t) as s:\n  s.list_devices()\n" * n,
    "strategies": lambda n: ADDRESS + "s = tf.distribute.TPUStrategy(t)\n"
    + "with s.scope():\n  m = 1\nimport tensorflow as tf\n" * n,
    "mask": lambda n: f"import jax\n@jax.jit\ndef f(x):\n  return x[{'x + ' * n} x > 0]\n",
    "addresses": lambda n: "tpus = [" + "'grpc://a:8470', " * n + "]\n",
    "one line": lambda n: TF + f"é = [{'tf.log(1), ' * n}]\n",
    "tried": lambda n: "try:\n  import jax\n  jax.tree_map\nexcept ImportError:\n  pass\n" * n,
}  # fmt: skip


DEEP = (PROGRAMS["elif"], PROGRAMS["chain"])


def lint(text: str, name: str = "a.py") -> None:
    notebook = name.endswith("ipynb")
    read = read_notebook(Path(name), text) if notebook else [read_script(Path(name), text)]
    for document in read:
        check(document, target("kaggle"), Selection())


def calls_made(work: Callable[[], object]) -> int:
    """How many functions are called: a measure that does not depend on the machine."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def growth(make: Callable[[int], str], work: Callable[[str], object] = lint) -> float:
    """How many times as many calls four times the length takes."""
    size = 250 if make in DEEP else 30
    short, long = make(size), make(4 * size)
    return calls_made(lambda: work(long)) / calls_made(lambda: work(short))


@pytest.mark.parametrize("name", PROGRAMS)
def test_four_times_the_program_takes_four_times_the_calls(name: str) -> None:
    assert growth(PROGRAMS[name]) < 5


def test_the_measure_would_notice_a_square() -> None:
    def pairs(text: str) -> None:
        lint(text)
        lines = text.splitlines()
        sum(len(one) + len(other) for one in lines for other in lines)

    assert growth(PROGRAMS["rebound"], pairs) > 6


# What regular expressions read; their steps are not calls, so that this is the time of the process.
TEXTS: dict[str, Callable[[int], str]] = {
    "blank lines": lambda n: "\n" * n + "x = (\n",
    "spaces": lambda n: " " * n + "\nx = (\n",
    "print": lambda n: "print \t" * n + "\nx = (\n",
    "keys": lambda n: f"x = '{'sk-' * n}!'\ny = '{'hf_' * n}'\nz = '{'AKIA' * n}'\n",
    "comment": lambda n: "# tpuctl: ignore[" * n + "\nx = (\n",
}
CELLS: dict[str, Callable[[int], str]] = {
    "spaces": lambda n: f"!ls\n{' ' * n}\n",
    "words": lambda n: f"!ls\n{'a, ' * n}\n",
    "automagic": lambda n: f"!ls\n{'ls ' * n}=\n",
    "install": lambda n: f"!pip install {'a ' * n}",
    "versions": lambda n: f"!pip install {'VERSION = 20200101 ' * n}",
    "shell": lambda n: f"!{'A' * n}_KEY=x",
    "addresses": lambda n: f"!{'gcloud compute tpus ' * n}",
    "brackets": lambda n: f"!ls\n{'x = [ ' * n}",
}


def seconds(text: str, name: str) -> float:
    began = time.process_time()
    lint(text, name)
    return time.process_time() - began


@pytest.mark.parametrize("name", [*TEXTS, *(f"cell of {name}" for name in CELLS)])
def test_a_long_text_is_read_once(name: str) -> None:
    def made(n: int) -> tuple[str, str]:
        if name in TEXTS:
            return TEXTS[name](n), "a.py"
        cell = {"cell_type": "code", "source": CELLS[name.removeprefix("cell of ")](n)}
        return json.dumps({"cells": [cell]}), "a.ipynb"

    ratios = (seconds(*made(24_000)) / max(seconds(*made(3_000)), 1e-3) for _ in range(3))
    assert any(ratio < 24 for ratio in ratios)
