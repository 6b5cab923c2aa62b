"""--fix adds imports where they run before their first use, or changes nothing."""

import json
from pathlib import Path

import pytest

from tests.lint_cases import notebook
from tpuctl.linting.run import lint_paths

pytest.importorskip("libcst")
pytest.importorskip("nbformat")

_XM = "import torch_xla.core.xla_model as xm\n"


@pytest.mark.parametrize(
    "text",
    [
        "import xarray as xr\n" + _XM + "print(xm.xrt_world_size())\n",
        _XM + "def f(xr):\n    return xm.xrt_world_size()\n",
        "#!/usr/bin/env python\ndef f():\n    " + _XM + "    xm.xrt_world_size()\nimport os\n",
        "import os; X = '''\na'''\nif X:\n    " + _XM + "    xm.xrt_world_size()\n",
        "from __future__ import annotations; " + _XM + "xm.xrt_world_size()\n",
        '"""Text."""; ' + _XM + "xm.xrt_world_size()\n",
    ],
)
def test_without_a_name_or_place_for_an_import_nothing_changes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    lint_paths([path], fixes=True)
    assert path.read_text() == text


def test_an_alias_of_another_function_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    text = _XM + "def f():\n    import torch_xla.runtime as r\n\n"
    path.write_text(text + "xm.xrt_world_size()\n")
    lint_paths([path], fixes=True)
    assert path.read_text() == "import torch_xla.runtime as xr\n" + text + "xr.world_size()\n"


_ASKS = "import os\nassert os.environ['COLAB_TPU_ADDR'], 'No TPU'\n"
_SETS_UP = """import tensorflow as tf
tpu = tf.distribute.cluster_resolver.TPUClusterResolver(
    'grpc://' + os.environ['COLAB_TPU_ADDR'])
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.experimental.TPUStrategy(tpu)
with strategy.scope():
    model = tf.keras.Sequential([])
import numpy as np
"""


@pytest.mark.parametrize("parts", [[_ASKS, _SETS_UP], ["import os\n" + _SETS_UP]])
@pytest.mark.parametrize("is_notebook", [False, True])
def test_new_imports_come_before_their_first_use(
    tmp_path: Path, parts: list[str], is_notebook: bool
) -> None:
    path = tmp_path / ("a.ipynb" if is_notebook else "a.py")
    path.write_text(notebook(*parts) if is_notebook else "".join(parts))
    assert lint_paths([path], fixes=True).fixed
    cells = json.loads(path.read_text())["cells"] if is_notebook else []
    text = "".join(line for cell in cells for line in [*cell["source"], "\n"]) or path.read_text()
    assert 0 < text.index("import keras\n") < text.index("keras.")
