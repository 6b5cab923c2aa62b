"""Dependencies run one way (DESIGN, section 3), and only adapters touch a vendor."""

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tpuctl"
VENDORS = {
    "tensorflow", "keras", "jax", "torch", "numpy", "cv2", "simplejpeg", "PIL", "google",
    "google_crc32c", "grpc", "asyncssh", "apache_beam", "skimage", "sklearn", "IPython", "grain",
    "array_record", "pathspec", "matplotlib", "urllib3", "requests", "libcst", "nbformat", "yaml",
}  # fmt: skip
FOUNDATION = {
    "errors",
    "lazy",
    "outcome",
    "progress",
    "units",
    "settings",
    "clock",
    "codec",
    "printable",
    "protobuf_wire",
    "start_python",
}
# What a part may import besides the foundation and itself; a new arrow is a decision.
SERVICES = {
    "storage", "hardware", "runtime", "diagnosis", "profiling", "datasets",
    "training", "cloud", "emulator", "compile", "demo", "remote", "supervise", "linting",
    "providers",
}  # fmt: skip
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "outcome": set(),
    "progress": set(),
    "clock": set(),
    "codec": set(),
    "protobuf_wire": set(),
    "printable": set(),
    "start_python": set(),
    "units": set(),
    "settings": set(),
    "storage": set(),
    "hardware": set(),
    "usercode": set(),
    "compile": {"diagnosis", "hardware", "training", "storage", "usercode"},
    "runtime": {"hardware", "storage"},
    "diagnosis": {"runtime", "hardware", "training", "storage"},
    "profiling": {"compile", "datasets", "hardware", "training", "storage", "usercode"},
    "datasets": {"remote", "storage", "usercode"},
    "training": {
        "cloud",
        "diagnosis",
        "hardware",
        "profiling",
        "remote",
        "runtime",
        "storage",
    },
    "emulator": {"hardware", "storage"},
    "cloud": {"hardware", "runtime", "storage"},
    "remote": {"cloud", "hardware", "runtime", "storage"},
    "supervise": {"cloud", "hardware", "providers", "remote", "storage"},
    "providers": {"cloud", "compile", "hardware", "remote", "runtime", "storage"},
    "linting": {"diagnosis", "hardware", "runtime", "storage", "training"},
    "demo": {"data"}
    | SERVICES
    - {"demo", "hardware", "cloud", "emulator", "compile", "supervise", "linting", "providers"},
    "api": SERVICES | {"reporters", "usercode"},
    "data": {"api", "datasets"},
    "reporters": SERVICES,
    "cli": SERVICES | {"api", "data", "reporters"},
    "notebook": {"api", "cli", "datasets", "linting", "profiling", "reporters"},
}

# They only name what others have: the commands of the API, loaded when they are used.
FRONT_DOORS = {"__init__.py", "__main__.py", "demo/__init__.py", "emulator/__init__.py"}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of(source: str) -> Iterator[tuple[str, bool]]:
    """Every imported module and whether the import stands at module level."""
    tree = ast.parse(source)
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "tpuctl":
                yield from ((f"tpuctl.{alias.name}", id(node) in top) for alias in node.names)
            else:
                yield node.module, id(node) in top


def forbidden(part: str, source: str, *, adapter: bool) -> list[str]:
    found = []
    for module, _ in imports_of(source):
        head, *rest = module.split(".")
        if head == "tpuctl" and rest:
            if rest[0] not in {part} | FOUNDATION | ARROWS[part]:
                found.append(module)
        elif head in VENDORS and not adapter:
            found.append(module)
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.slow
def test_a_module_imports_only_what_lies_below_it() -> None:
    found = {}
    for path in MODULES:
        part = part_of(path)
        adapter = path.name.startswith("_") and path.name != "__init__.py"
        if str(path.relative_to(PACKAGE)) not in FRONT_DOORS:
            found[path] = forbidden(part, path.read_text(encoding="utf-8"), adapter=adapter)
    assert {path: modules for path, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    ("part", "source", "adapter"),
    [
        ("storage", "from tpuctl.cli import output", False),
        ("storage", "def f():\n    import tpuctl.reporters.html", False),
        ("training", "from tpuctl import cli", False),
        ("training", "import numpy as np", False),
        ("training", "def f():\n    from google.cloud import storage", False),
    ],
)
def test_the_rules_can_fail(part: str, source: str, adapter: bool) -> None:
    assert forbidden(part, source, adapter=adapter)


def test_an_adapter_may_touch_its_vendor() -> None:
    assert forbidden("training", "import numpy", adapter=True) == []


@pytest.mark.parametrize("path", sorted((ROOT / "templates").glob("*.py")), ids=lambda p: p.name)
def test_a_template_runs_without_tpuctl(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Except for a look for the learning rate.
    tree.body = [node for node in tree.body if getattr(node, "name", "") != "find_rate"]
    modules = {module.split(".")[0] for module, _ in imports_of(ast.unparse(tree))}
    assert "tpuctl" not in modules


def test_every_part_is_named_in_the_rules() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert parts == set(ARROWS)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_that_run(node: ast.AST) -> Iterator[str]:
    """Every imported name at any level, `if TYPE_CHECKING` left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, "a relative import"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from imports_that_run(child)


def circle_in(sources: Mapping[str, str]) -> list[str]:
    """The modules of one circle of imports, the first one repeated at the end, or none."""
    graph = {
        name: {
            wanted if wanted in sources else wanted.rpartition(".")[0]
            for wanted in imports_that_run(ast.parse(source))
        }
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in({name_of(path): path.read_text(encoding="utf-8") for path in MODULES}) == []


@pytest.mark.parametrize(
    ("back", "found"),
    [
        ("from pack.a import f", True),
        ("def g():\n    from pack import a", True),
        ("class C:\n    def g(self):\n        with d:\n            import pack.a", True),
        ("if TYPE_CHECKING:\n    from pack.a import f", False),
        ("import json", False),
    ],
)  # fmt: skip
def test_a_circle_would_be_found(back: str, found: bool) -> None:
    sources = {
        "pack": "",
        "pack.a": "from pack.b import g",
        "pack.b": "import pack.c",
        "pack.c": back,
    }
    circle = circle_in(sources)
    assert set(circle) == ({"pack.a", "pack.b", "pack.c"} if found else set())


def test_no_package_has_too_many_modules_on_one_level() -> None:
    sizes = Counter(path.parent for path in MODULES)
    assert {folder: size for folder, size in sizes.items() if size > 35} == {}


def compilers_called(module: str, folder: Path) -> list[str]:
    """Which compilers and linkers are asked for something while a module is imported."""
    folder.mkdir()
    for name in ("gcc", "cc", "ld"):
        script = folder / name
        script.write_text(f"#!/bin/sh\ntouch {folder}/$(basename $0).called\nexit 1\n")
        script.chmod(0o755)
    before = f"{folder}{os.pathsep}{os.environ['PATH']}"
    probe = f"import os, {module}; print(os.environ['PATH'])"
    done = subprocess.run(
        [sys.executable, "-c", probe], env={**os.environ, "PATH": before}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == before
    return sorted(path.stem for path in folder.glob("*.called"))


@pytest.mark.slow
def test_no_compiler_is_asked_for_anything_before_a_worker_is_reached(tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    assert compilers_called("tpuctl.remote._asyncssh", tmp_path / "ours") == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux asks a compiler")
def test_the_compilers_would_be_noticed(tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    if find_library("oqs"):
        pytest.skip("liboqs is installed, so asyncssh looks no further")
    assert compilers_called("asyncssh", tmp_path / "theirs") != []
