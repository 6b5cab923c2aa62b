"""docs/training.md: its commands and its code run."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tests.sharing import made_once
from tests.training_runs import train
from tpuctl.training.catalog import find_template, list_templates
from tpuctl.training.plan import find_script

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")


COMMANDS = [line for block in pages.executed("training", "sh") for line in block.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_runs(line: str, tpuctl) -> None:
    program, *arguments = shlex.split(line)
    assert program == "tpuctl"
    assert tpuctl(*arguments).exit_code == 0


def test_the_page_names_every_template() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == [template.name for template in list_templates().templates]


# Template, the flags beside its figure, and the figure in per cent.
FIGURES = re.findall(r"^\| `([\w-]+)` \|.*\| `(--data [^`]+)`: (\d+) % ", PAGE, re.MULTILINE)


CODE = pages.executed("training", "python")
[WRITES_FILES] = [code for code in CODE if "load_digits" in code]


@pytest.fixture(scope="module")
def measured_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the code of the page writes."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    return made_once(tmp_path_factory, "measured", lambda folder: run(WRITES_FILES, folder))


def run(code: str, folder: Path) -> None:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Others see that these learn: fashion-mnist is mnist-cnn, and test_templates_*.py train the rest.
SEEN_TO_LEARN = ("fashion-mnist", "images", "imdb-lstm", "jax-images")


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "figure"),
    [
        pytest.param(*each, marks=[pytest.mark.soak] * (each[0] in SEEN_TO_LEARN))
        for each in FIGURES
    ],
)
def test_the_command_beside_a_figure_gives_it(
    name: str, flags: str, figure: str, measured_on: Path, tmp_path: Path
) -> None:
    backend = find_script(name).frameworks[0]
    if backend == "torch":
        pytest.importorskip("torch_xla", reason="make test-xla")
    places = [measured_on / word for word in flags.split()]
    words = [place if place.exists() else place.name for place in places]
    result = train(name, backend, tmp_path, *words)
    # Processors round in different ways, and two of 24 images are 8 %.
    about = 0.09 if "shards" in flags else 0.04
    assert result["test_accuracy"] == pytest.approx(int(figure) / 100, abs=about)


def test_every_template_has_a_figure_and_says_the_same_one_itself() -> None:
    assert [name for name, _, _ in FIGURES] == re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    for name, flags, figure in FIGURES:
        about = ast.get_docstring(ast.parse(find_template(name).read_text(encoding="utf-8")))
        assert about
        assert re.search(rf"\b{figure} %", about), name
        assert all(word in about for word in flags.split()[2:]), name


@pytest.mark.tf
@pytest.mark.slow
def test_the_code_of_the_page_runs(measured_on: Path, tmp_path: Path) -> None:
    made = {path.name for path in measured_on.iterdir()}
    assert made >= {"digits.npz", "digits", "iris.csv", "photos", "shards"}
    for code in CODE:
        if code != WRITES_FILES:
            run(code, tmp_path)


@pytest.mark.tf
@pytest.mark.slow
def test_the_code_of_the_page_about_notebooks_runs(tmp_path: Path) -> None:
    for code in pages.executed("notebooks", "python"):
        run(code, tmp_path)
