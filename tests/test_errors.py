"""The tree that is drawn in errors.py is the tree of the classes."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from tpuctl import errors
from tpuctl.errors import TpuctlError

PACKAGE = Path(errors.__file__).parent
DRAWN = re.compile(r"^    (?P<indent>[│├└─ ]*)(?P<name>\w+Error) +(?P<code>\d+)  \S")

Node = tuple[str, str | None, int]


def drawn(docstring: str) -> list[Node]:
    """Name, parent and exit code of every class in the drawing."""
    found: list[Node] = []
    above: dict[int, str] = {}
    for line in docstring.splitlines():
        if match := DRAWN.match(line):
            depth = len(match["indent"]) // 4
            above[depth] = match["name"]
            found.append((match["name"], above[depth - 1] if depth else None, int(match["code"])))
    return found


def defined(kind: type[TpuctlError] = TpuctlError, parent: str | None = None) -> list[Node]:
    """The same of the classes."""
    found = [(kind.__name__, parent, kind.exit_code)]
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found += defined(child, kind.__name__)
    return found


def raised_elsewhere(source: str) -> list[str]:
    """The classes in a source whose base is called an error of ours."""
    ours = {name for name, _, _ in defined()}
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and ours & {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    ]


def test_the_drawn_tree_is_the_tree_of_the_classes() -> None:
    tree = drawn(errors.__doc__ or "")
    assert len(tree) > 40
    assert sorted(tree, key=str) == sorted(defined(), key=str)


@pytest.mark.slow
def test_no_error_class_lives_elsewhere() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {
        str(path.relative_to(PACKAGE)): raised_elsewhere(text) for path, text in sources.items()
    }
    assert {name for name, classes in found.items() if classes} == {"errors.py"}


def test_a_class_elsewhere_and_a_wrong_drawing_would_be_seen() -> None:
    assert raised_elsewhere("class MoonError(errors.NotFoundError): ...") == ["MoonError"]
    text = "    TpuctlError     1  x\n    ├── AError   2  y\n    │   └── BError 127  z\n"
    assert drawn(text) == [
        ("TpuctlError", None, 1),
        ("AError", "TpuctlError", 2),
        ("BError", "AError", 127),
    ]


def test_every_error_says_what_it_means_and_has_a_code() -> None:
    for name, _, _ in defined():
        kind = getattr(errors, name)
        assert (inspect.getdoc(kind) or "").splitlines()[0].endswith(".")
        assert re.fullmatch(r"[a-z_]+", kind.code)
