"""`tpuctl lint` as a program: formats, exit codes, explain, the magic, doctor in a notebook."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import jsonschema
import pytest

import tpuctl as library
from tests import contract, pages
from tests.conftest import Tpuctl
from tests.lint_cases import notebook
from tpuctl.errors import UsageError
from tpuctl.linting.models import rules
from tpuctl.linting.own_notebook import lint_cell, look_at_own_notebook
from tpuctl.reporters.lint import render_lint

ROOT = Path(__file__).parents[1]
OLD = "import tensorflow as tf\ntf.set_random_seed(1)\n"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "old, 50%.py"
    path.write_text(OLD)
    (tmp_path / "old.ipynb").write_text(notebook("import os", "os.environ['COLAB_TPU_ADDR']"))
    return Path(path.name)


def test_an_error_exits_1_and_a_maybe_does_not(tpuctl: Tpuctl, old: Path) -> None:
    done = tpuctl("lint", old)
    assert done.exit_code == 1
    assert f"{old}:2:1  T103 error  tf.set_random_seed is gone" in done.stdout
    assert "1 error in 1 file. 1 can be fixed with --fix." in done.stdout
    assert tpuctl("lint", old, "--ignore", "T103").exit_code == 0
    Path("new.py").write_text("import torch_xla\n")
    assert tpuctl("lint", "new.py").exit_code == 0
    assert "1 maybe in 1 file" in tpuctl("lint", "new.py").stdout


@pytest.mark.parametrize("words", [["--runtime", "moon"], ["--select", "X"], ["--fix", "--diff"]])
def test_wrong_usage_exits_2_and_a_missing_file_1(
    tpuctl: Tpuctl, old: Path, words: list[str]
) -> None:
    assert tpuctl("lint", old, *words).exit_code == 2
    assert tpuctl("lint", "missing.py").exit_code == 1


def test_the_document_keeps_the_contract(tpuctl: Tpuctl, old: Path) -> None:
    document = tpuctl("lint", ".", "--runtime", "kaggle", "--json").document
    assert contract.problems(document, "lint", contract.LINT) == []
    found = [(f["path"], f["cell"], f["line"], f["column"], f["code"], f["fixable"])
             for f in document["data"]["findings"]]  # fmt: skip
    assert found == [
        (str(old), None, 2, 1, "T103", True),
        ("old.ipynb", 2, 1, 12, "T105", False),
    ]
    assert "DataParallel" in document["data"]["findings"][1]["fix"]


def test_a_diff_and_a_fix_on_the_command_line(tpuctl: Tpuctl, old: Path) -> None:
    pytest.importorskip("libcst")
    assert "+tf.random.set_seed(1)" in tpuctl("lint", old, "--diff").stdout
    assert old.read_text() == OLD
    done = tpuctl("lint", old, "--fix")
    assert done.exit_code == 0
    assert "1 fixed; left: no findings in 1 file." in done.stdout
    assert "tf.random.set_seed(1)" in old.read_text()


def test_annotations_of_github_are_escaped(tpuctl: Tpuctl, old: Path) -> None:
    lines = tpuctl("lint", ".", "--format", "github").stdout.splitlines()
    assert lines[0].startswith("::error file=old%2C 50%25.py,line=2,col=1,title=tpuctl T103::tf.")
    assert lines[1].startswith("::error file=old.ipynb,line=1,col=1,title=tpuctl T105::cell 2, ")


def test_names_in_files_do_not_reach_the_terminal_as_they_are(
    tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = "\x1b[31m\u202etoken"
    secret = "a1b2c3d4e5f6g7h8i9j0k1l2"
    Path("red\x1b[31m.py").write_text(f"import os\nos.environ[{evil!r}] = {secret!r}\n")
    os.rename(os.fsencode("red\x1b[31m.py"), b"red\x1b[31m\xff.py")
    for words in ((), ("--format", "github"), ("--format", "sarif"), ("--json",), ("--diff",)):
        done = tpuctl("lint", ".", *words)
        assert "\x1b" not in done.stdout
        assert secret not in done.stdout
    assert "T316 maybe" in tpuctl("lint", ".").stdout


# The parts of the SARIF 2.1.0 schema that readers depend on.
SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "minItems": 1,
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {"required": ["driver"]},
                    "results": {
                        "items": {
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {"level": {"enum": ["error", "warning", "note"]}},
                        }
                    },
                },
            },
        },
    },
}


def test_sarif_is_valid_and_names_its_rules(tpuctl: Tpuctl, old: Path) -> None:
    document = json.loads(tpuctl("lint", ".", "--format", "sarif").stdout)
    jsonschema.validate(document, SARIF)
    (run,) = document["runs"]
    known = run["tool"]["driver"]["rules"]
    assert [known[r["ruleIndex"]]["id"] for r in run["results"]] == ["T103", "T105"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "old%2C%2050%25.py"
    assert place["region"] == {"startLine": 2, "startColumn": 1}


@pytest.mark.parametrize("code", ["T105", "t105", " T408 "])
def test_explain_knows_a_rule(tpuctl: Tpuctl, code: str) -> None:
    done = tpuctl("explain", code)
    rule = rules()[code.strip().upper()]
    assert done.exit_code == 0
    assert rule.title in done.words
    assert rule.bad.splitlines()[-1].strip() in done.words
    assert rule.sources[0].split()[-1] in done.words


def test_explain_lists_a_family_and_rejects_an_unknown_code(tpuctl: Tpuctl) -> None:
    codes = [m["code"] for m in tpuctl("explain", "T2", "--json").data["matches"]]
    assert codes == ["T201"]
    assert tpuctl("explain", "T999").exit_code == 1


def test_a_cell_knows_what_the_notebook_imported() -> None:
    import json as tf

    names: dict[str, object] = {"tf": tf, "_hidden": 1, "x": 3}
    assert lint_cell("tf.Session()", names).findings == ()
    cell = "%time y = 1\nimport jax\njax.tree_map(f, y)\n"
    (found,) = lint_cell(cell, names).findings
    assert (found.code, found.line, found.cell) == ("T107", 3, None)
    with pytest.raises(UsageError, match=r"line 2"):
        lint_cell("x = 1\nfor y in", names)


def test_doctor_finds_its_notebook_where_jupyter_names_it(tmp_path: Path) -> None:
    path = tmp_path / "day.ipynb"
    path.write_text(notebook("import os", "x = 300", "os.environ['COLAB_TPU_ADDR']"))
    found = look_at_own_notebook("workstation", {"JPY_SESSION_NAME": str(path)})
    assert found is not None
    assert (found.code, found.cell, found.line, found.findings) == ("T105", 3, 1, 1)
    diagnosis = dataclasses.replace(library.doctor(), own_notebook=found)
    assert "This notebook, cell 3, line 1: T105 Reading COLAB_TPU_ADDR" in diagnosis._repr_html_()
    assert look_at_own_notebook("workstation", {}) is None
    gone = {"JPY_SESSION_NAME": str(tmp_path / "gone.ipynb")}
    assert look_at_own_notebook("kaggle-tpu-vm", gone) is None
    colab = look_at_own_notebook("colab-tpu-vm", {})
    assert colab is not None
    assert colab.path is None
    assert "does not see the file" in (colab.why_null or "")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_in_a_kernel_the_magic_lints_and_doctor_names_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.test_doctor_notebook import executed

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    load, checked = pages.executed("lint", "python")
    outputs = executed(
        tmp_path,
        f"{load}\nimport json as jax",
        checked.replace("import os\n", "import os\nprint('ran')", 1),
        "__vsc_ipynb_file__ = 'day.ipynb'\nimport tpuctl\nprint(tpuctl.doctor())",
        "import sys\n!JPY_SESSION_NAME=day.ipynb {sys.executable} -m tpuctl doctor",
    )
    lint, doctor, child = ("".join(o.get("text", "") for o in each) for each in outputs[1:])
    assert "T105 error" in lint
    assert "ran\n" not in lint
    assert "This notebook, cell 2, line 3" not in lint
    # The cell that lints has no finding of its own in the file: its magic is Python.
    assert "This notebook, cell 2, line 5: T105" in " ".join(doctor.split())
    assert "This notebook, cell 2, line 5: T105" in " ".join(child.split())


def test_the_hook_of_pre_commit_runs_the_command_on_scripts_and_notebooks(
    tpuctl: Tpuctl, old: Path
) -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    assert "entry: tpuctl lint" in text
    assert "types_or: [python, jupyter]" in text
    assert tpuctl("lint", old, "old.ipynb").exit_code == 1


def test_a_lint_of_our_own_code_finds_no_error() -> None:
    found = library.lint(ROOT / "tpuctl" / "api", ROOT / "templates")
    assert [f for f in found.findings if f.severity == "error"] == []
    assert found.files > 10


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "many.py"
    path.write_text("import tensorflow as tf\n" + "tf.log(1)\n" * 5000)
    done = subprocess.run(
        f"tpuctl lint {path} | head -1", shell=True, capture_output=True, text=True, check=False,
        env=os.environ,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_the_text_shows_each_code_block_once() -> None:
    old = lint_cell("import os\nos.environ['COLAB_TPU_ADDR']\nimport tensorflow.contrib", {})
    text = render_lint(old)
    assert text.count('os.environ["KERAS_BACKEND"]') == 1
    assert "(the code that is shown for" in text
