"""The three notebooks of the documentation, each run whole by a real kernel."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tpuctl
from tests.sharing import HEAVY

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SEEDS = {"colab": "ABD", "kaggle": "C", "workstation": "E"}
# The programs that a notebook trains with or profiles start with TensorFlow's import done.
WARM = """
def warm():
    import pytest
    from tests.sharing import HEAVY
    from tests.training_runs import warm_launch
    from tests.warm_child import start_warm_child

    HEAVY.update({})
    patch = pytest.MonkeyPatch()
    warm_launch(patch, "tensorflow")
    patch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)

warm()
del warm
"""
MODULES = ("matplotlib", "PIL", "keras", "jax", "grpc")
# What a user must see: texts in the outputs, and the commands that show a card.
SHOWN = {
    "colab": (
        {"doctor", "bench", "bench compare", "strategy", "profile", "types", "launch"},
        ("101 predictions", "largest relative error", "GPU H100"),
    ),
    "kaggle": (
        {"doctor", "profile", "data presize", "data show", "profile diff", "data cache", "launch"},
        ("variant", "learning rate up to", "against"),
    ),
    "workstation": (
        {"doctor", "lint", "emulator start", "create", "list", "delete", "gc", "launch", "top"},
        ("(300 steps, 1,200 examples)", "test accuracy"),
    ),
}


def cells(name: str) -> list[Any]:
    nbformat = pytest.importorskip("nbformat", reason="needs the dev group's nbclient")
    return list(nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells)


def test_every_seed_has_its_table_and_the_documents_lead_there() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SEEDS)
    for name, seeds in SEEDS.items():
        text = "\n\n".join(cell.source for cell in cells(name) if cell.cell_type == "markdown")
        parts = re.split(r"^## Seed (\w)", text, flags=re.MULTILINE)
        assert "".join(parts[1::2]) == seeds
        for part in parts[2::2]:
            assert "| the seed did | you get |" in part
            assert part.count("\n| ") >= 6
        assert all(not cell.get("outputs") for cell in cells(name))
    page = FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert all(f"(notebooks/{name}.ipynb)" in page for name in SEEDS)


def test_lint_has_nothing_to_say_of_them() -> None:
    assert tpuctl.lint(*FOLDER.glob("*.ipynb"), runtime="colab").findings == ()


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")  # Jupyter's own event loop and sockets complain
@pytest.mark.parametrize("name", SEEDS)
def test_a_notebook_runs_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the dev group's nbclient")
    nbformat = pytest.importorskip("nbformat", reason="needs the dev group's nbclient")
    # Looked for, not imported: the notebooks import them in a process of their own.
    if lacking := [each for each in MODULES if find_spec(each) is None]:
        pytest.skip(f"{lacking} not installed")
    monkeypatch.setenv("PYTHONPATH", str(Path(tpuctl.__file__).parents[1]), prepend=os.pathsep)
    for variable in ("HOME", "KERAS_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    start = nbformat.v4.new_code_cell(WARM.replace("{}", repr(HEAVY)))
    notebook.cells.insert(0, start)
    options = {"resources": {"metadata": {"path": str(tmp_path)}}, "kernel_name": "python3"}
    nbclient.NotebookClient(notebook, timeout=600, **options).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pages = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    commands, words = SHOWN[name]
    assert commands <= set(re.findall(r'opacity:.65">tpuctl ([a-z ]+)</div>', pages))
    text = pages + "".join(output.get("text", "") for output in outputs)
    assert [word for word in words if word not in text] == []
    sys.stdout.write(text)
