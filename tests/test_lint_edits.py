"""--fix removes a statement or a `with` line, and nothing that stands beside it."""

from pathlib import Path

import pytest

from tpuctl.linting.run import lint_paths

pytest.importorskip("libcst")
pytest.importorskip("nbformat")

ABOVE = """import os
import tensorflow as tf
tpu = tf.distribute.cluster_resolver.TPUClusterResolver(
    'grpc://' + os.environ['COLAB_TPU_ADDR'])
strategy = tf.distribute.experimental.TPUStrategy(tpu)
"""
INIT = "tf.tpu.experimental.initialize_tpu_system(tpu)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{INIT}; print(1)\n", "print(1)\n"),
        (f"print(1); {INIT}\n", "print(1)\n"),
        (f"print(1); {INIT}; print(2);  # why\n", "print(1); print(2);  # why\n"),
        (f"if x: {INIT}\n", "if x: pass\n"),
        (f"if x: {INIT}; print(1)\n", "if x: print(1)\n"),
        (f"if x:\n    {INIT}  # why\nelse:\n    y()\n", "if x:\n    pass\nelse:\n    y()\n"),
        (f"# one\n{INIT}  # two\n# three\nprint(1)\n", "# one\n# three\nprint(1)\n"),
        ("with strategy.scope(): m = f()\n", "m = f()\n"),
        (
            "if x:\n  with strategy.scope():  # one\n    m = f()  # two\n    # three\n  # four\n",
            "if x:\n  # one\n  m = f()  # two\n  # three\n  # four\n",
        ),
    ],
)
def test_what_stands_beside_an_edit_stays(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(ABOVE + before)
    assert lint_paths([path], fixes=True).fixed
    assert path.read_text().partition("DataParallel())\n")[2] == after


def test_a_scope_with_a_name_is_not_ported(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"{ABOVE}with strategy.scope() as s:\n    print(s)\n")
    lint_paths([path], fixes=True)
    assert "with strategy.scope() as s:\n    print(s)\n" in path.read_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(f)", "(f, K)"),
        ("( f )", "( f, K )"),
        ("(f,)", "(f, K,)"),
        ("(\n        f,\n    )", "(\n        f,\n        K,\n    )"),
        ("(\n        f,  # one\n    )", "(\n        f,  # one\n        K,\n    )"),
        ("(\n        f  # one\n    )", "(\n        f,  # one\n        K\n    )"),
        ("(f,  # one\n    )", "(f, K,  # one\n    )"),
        ("(\n        f)", "(\n        f, K)"),
    ],
)
def test_a_new_argument_is_written_as_the_others_are(
    tmp_path: Path, before: str, after: str
) -> None:
    path = tmp_path / "a.py"
    text = "import torch_xla\nimport torch\nif x:\n    torch.load{}\ntorch_xla.launch(f)\n"
    path.write_text(text.format(before))
    assert lint_paths([path], fixes=True).fixed == 1
    assert path.read_text() == text.format(after.replace("K", 'map_location="cpu"'))
