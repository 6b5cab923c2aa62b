"""What is read: scripts and notebooks in every state, never executed; one clear finding each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lint_cases import codes, notebook
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.linting import documents
from tpuctl.linting.cells import code_cells, is_python, read_cell, with_sources
from tpuctl.linting.run import lint_paths

PYTHON_2 = "import os\nprint 'loss', 3\ntry:\n    pass\nexcept IOError, error:\n    pass\n"
CUT = notebook("import os", "x = 1")[:200]
NO_PYTHON = json.dumps(
    {
        "cells": [{"cell_type": "code", "source": ["plot(x)"]}],
        "metadata": {"kernelspec": {"language": "R"}},
    }
)
FILES: dict[str, tuple[str, bytes, str]] = {
    "python 2": ("a.py", PYTHON_2.encode(), "T001"),
    "python 2 notebook": ("a.ipynb", notebook(PYTHON_2, "print 3").encode(), "T001"),
    "syntax error": ("a.py", b"import os\nmodel.fit(x,\n", "T002"),
    "indentation": ("a.py", b"if 1:\n\tx = 1\n        y = 2\n", "T002"),
    "deep": ("a.py", b"x = " + b"(" * 5000 + b")" * 5000, "T002"),
    "empty": ("a.py", b"", "T003"),
    "blank": ("a.py", b" \n\n\t\n", "T003"),
    "empty notebook": ("a.ipynb", b"", "T003"),
    "no code": ("a.ipynb", notebook("# % words").encode(), "T003"),
    "no cells": ("a.ipynb", notebook().encode(), "T003"),
    "binary": ("a.py", b"\x00\x01import os", "T004"),
    "latin": ("a.py", "x = 'é'".encode("latin-1"), "T004"),
    "utf-16": ("a.py", "import os".encode("utf-16"), "T004"),
    "unknown encoding": ("a.py", b"# coding: nonsense\nx = 1\n", "T004"),
    "binary notebook": ("a.ipynb", b"\x89PNG\r\n\x1a\n\x00", "T004"),
    "cut": ("a.ipynb", CUT.encode(), "T006"),
    "not a notebook": ("a.ipynb", b'{"a": 1}', "T006"),
    "a list": ("a.ipynb", b"[1, 2]", "T006"),
    "a number": ("a.ipynb", b"3", "T006"),
    "deep JSON": ("a.ipynb", b"[" * 100_000, "T006"),
    "another language": ("a.ipynb", NO_PYTHON.encode(), "T006"),
    "odd cells": ("a.ipynb", b'{"cells": [1, {"cell_type": "code", "source": 3}]}', "T003"),
}


@pytest.mark.parametrize(("name", "content", "code"), FILES.values(), ids=FILES)
def test_a_file_in_a_bad_state_is_one_clear_finding(
    tmp_path: Path, name: str, content: bytes, code: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = lint_paths([path])
    assert [(f.code, f.path) for f in result.findings] == [(code, str(path))]
    assert result.exit_code == (0 if code == "T003" else 1)
    assert lint_paths([path], fixes=True).fixed == 0
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["a.py", "a.ipynb"])
def test_a_huge_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(documents, "_LARGEST", {".ipynb": 400})
    monkeypatch.setattr(documents, "_LARGEST_SCRIPT", 400)
    path = tmp_path / name
    path.write_text("#" * 399)
    assert {f.code for f in lint_paths([path]).findings} == ({"T006"} if "ip" in name else set())
    path.write_text("#" * 401)
    assert [f.code for f in lint_paths([path]).findings] == ["T005"]


def test_what_is_not_a_file_is_one_finding(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "gone.py").symlink_to("nowhere")
    codes = [f.code for f in lint_paths([tmp_path / "pipe.py", tmp_path / "gone.py"]).findings]
    assert codes == ["T004", "T004"]
    with pytest.raises(NotFoundError, match="does not exist"):
        lint_paths([tmp_path / "missing.py"])
    with pytest.raises(UsageError):
        lint_paths([])


def test_a_folder_is_searched_without_what_others_have_written(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.ipynb", ".git/d.py", "venv/e.py", "b/__pycache__/f.py", "g.txt",
                 ".ipynb_checkpoints/h.ipynb", "b/__init__.py"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name.endswith("__.py") else "x = 1")
    (tmp_path / "b" / "c.ipynb").write_text(notebook("x = 1"))
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    assert lint_paths([tmp_path]).files == 3
    assert lint_paths([tmp_path]).findings == ()


TRAP = "open('executed', 'w').write('x')\nimport nowhere\n"


def test_nothing_that_is_read_is_executed_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sitecustomize", "tensorflow", "conftest", "libcst", "json", "setup"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    (tmp_path / "trap.ipynb").write_text(notebook(TRAP, "!touch executed", "%run trap.py"))
    words = [sys.executable, "-m", "tpuctl", "lint", ".", "--fix"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert "7 files" in done.stdout, done.stderr
    assert not (tmp_path / "executed").exists()


CELL_MAGICS = [
    ("%time x = 1\ny = 2", 1),
    ("!pip install a \\\n    b\nx = 1", 1),
    ("files = !ls -l\nprint(files)", 1),
    ("%%time\nx = 1", 1),
    ("%%bash\necho $HOME\nif [ x ]; then y; fi", 3),
    ("model.fit?\n?model\nmodel??", 0),
    ("%%writefile train.py\nimport os", 1),
    ("    x = 1\n    !ls\n    y = 2", 1),
    ('text = """\n%not a magic\n!nor this\n"""\nx = 5 \\\n  % 3', 0),
    ("x = (5\n% 3)\ny = [\n!bad]", 0),
    ("%%html\n<b>{{ x }}</b>", 1),
    ("await f()\n%matplotlib inline", 1),
    ("pip install -q jax\nls ./data\nx = 1", 2),
    ("time = 3\nls = [time]\nrm (1)", 0),
]


@pytest.mark.parametrize(("text", "count"), CELL_MAGICS)
def test_magics_are_told_from_python_and_come_back(text: str, count: int) -> None:
    cell = read_cell(1, text)
    assert cell.python.count("\n") == text.count("\n")
    assert is_python(cell.python) or "!bad" in text
    assert len(cell.commands) >= count
    if cell.magics:
        assert cell.restored(cell.python) == text


@settings(max_examples=60)
@given(st.text(alphabet="ab%!?'\"\\()[]#\n =x", max_size=60))
def test_any_cell_can_be_read_and_restored(text: str) -> None:
    cell = read_cell(1, text)
    assert cell.python.count("\n") == text.count("\n")
    if cell.magics or cell.python == text:
        assert cell.restored(cell.python) == text


LINES = st.lists(st.text(max_size=8), max_size=4).map("\n".join)


@settings(max_examples=25)
@given(st.lists(LINES, min_size=1, max_size=4), st.sampled_from([None, 0, 1, 2, 4]), st.booleans())
def test_a_cell_can_be_replaced_in_any_notebook(
    texts: list[str], indent: int | None, ascii_only: bool
) -> None:
    cells = [{"cell_type": "code", "source": t.splitlines(keepends=True)} for t in texts]
    document = {"metadata": {"cells": [{"source": "no"}]}, "cells": cells, "nbformat": 4}
    raw = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    assert with_sources(raw, {}) == raw
    changed = json.loads(with_sources(raw, {1: "new = 'é'\nx"}))
    end = "\r\n" if "\r\n" in texts[0] else "\n"
    cells[0]["source"] = [f"new = 'é'{end}", "x"]
    assert changed == document


def test_lines_that_stay_keep_their_escapes_and_line_ends() -> None:
    raw = '{"a": "é", "cells": [{"source": ["x = \'\\u00e9\'\\r\\n",  "y"]}, {"source": "a"}]}'
    new = with_sources(raw, {1: "x = 'é'\nz"})
    assert new == raw.replace(',  "y"', ', "z"')
    assert with_sources(raw, {2: "b\n'é'"}) == raw.replace('"source": "a"', '"source": "b\\n\'é\'"')


def test_an_install_without_a_sign_is_seen() -> None:
    assert "T315" in codes("pip install jax\nx = !ls\n!ls", "kaggle")


def test_the_old_notebook_format_is_read_too() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1\n", "y"]}]}]}
    assert list(code_cells(old)) == [(1, "x = 1\ny")]


def test_a_broken_cell_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(notebook("import tensorflow as tf", "for x in", "tf.Session()", "a b"))
    found = [(f.cell, f.line, f.code) for f in lint_paths([path]).findings]
    assert found == [(2, 1, "T002"), (3, 1, "T102")]
    assert "Cells 4 do not parse" in lint_paths([path]).findings[0].message


IGNORED = "import tensorflow as tf\ntf.Session(){}\ntf.log(\n    x){}\n"


@pytest.mark.parametrize(
    ("one", "two", "left"),
    [
        ("", "", ["T102", "T103"]),
        ("  # tpuctl: ignore[T102]", "", ["T103"]),
        ("  # tpuctl: ignore[T1, T102]", "  # TPUCTL: ignore", []),
        ("  # tpuctl: ignore[T103]", "  #tpuctl:ignore[t103]", ["T102"]),
        ("  # ignore[T102]", "", ["T102", "T103"]),
        ("  # tpuctl: ignore[]", "  # tpuctl: ignored", ["T102", "T103"]),
        ("  # tpuctl: ignore[T102", "  # tpuctl: ignore: why", ["T102"]),
    ],
)
def test_a_comment_silences_a_line(tmp_path: Path, one: str, two: str, left: list[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text(IGNORED.format(one, two).replace("tf.log(\n    x)", "tf.log(x)"))
    assert [f.code for f in lint_paths([path]).findings] == left


@pytest.mark.parametrize(
    ("select", "ignore", "left"),
    [
        ([], [], ["T102", "T103"]),
        (["T1"], ["T102"], ["T103"]),
        (["t103"], ["T1"], ["T103"]),
        (["T102,T103"], [], ["T102", "T103"]),
        (["T4"], [], []),
        ([], ["T"], []),
    ],
)
def test_rules_are_selected_and_ignored(
    tmp_path: Path, select: list[str], ignore: list[str], left: list[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text(IGNORED.format("", ""))
    found = lint_paths([path], select=select, ignore=ignore).findings
    assert [f.code for f in found] == left


@pytest.mark.parametrize(
    "options",
    [{"select": ["X1"]}, {"ignore": ["T999"]}, {"runtime": "moon"}, {"runtime": "colab:v9"},
     {"fixes": True, "diff": True}],
)  # fmt: skip
def test_a_wrong_option_is_an_error(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        lint_paths([tmp_path], **options)  # type: ignore[arg-type]


HARD = {
    "circle": "import tensorflow as tf\nb = 2\nb = b * b\nx = x + 'a'\nn = n * d.device_count()\n"
    "ds.batch(b)\nopen(x)\nds.batch(n)\ntf = tf\ntf.Session()\n",
    "doubling": "import tensorflow as tf\nb = 2\n" + "b = b * b\n" * 300 + "ds.batch(b)\n",
    "long": "x = " + " + ".join(["'a'"] * 4000) + "\nmodel.save(x)\n",
    "aliases": "import jax\n" + "".join(f"a{n} = a{n - 1}\n" for n in range(1, 400)) + "a399.b()\n",
    "reassigned": "import tensorflow as tf\nds = tf.data.Dataset.range(3)\n"
    + "ds = ds.map(f)\n" * 300,
    "deep calls": "import jax\n" + "f(" * 80 + "x" + ")" * 80 + "\n",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_a_hard_program_is_checked_without_an_exception(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    for runtime in ("kaggle", None):
        assert lint_paths([path], runtime=runtime).files == 1
