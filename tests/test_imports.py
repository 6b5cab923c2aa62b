"""Dependencies run one way (DESIGN, section 3), and only adapters touch a vendor."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tpuctl"
VENDORS = {
    "tensorflow", "keras", "jax", "torch", "numpy", "cv2", "simplejpeg", "PIL", "google",
    "google_crc32c", "grpc", "asyncssh", "apache_beam", "skimage", "sklearn", "IPython", "grain",
    "array_record", "pathspec", "matplotlib", "urllib3", "requests",
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
    "protobuf_wire",
}
# What a part may import besides the foundation and itself; a new arrow is a decision.
SERVICES = {
    "storage", "hardware", "runtime", "diagnosis", "profiling", "datasets",
    "training", "cloud", "emulator", "compile", "demo", "remote", "supervise",
}  # fmt: skip
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "outcome": set(),
    "progress": set(),
    "clock": set(),
    "codec": set(),
    "protobuf_wire": set(),
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
    "supervise": {"cloud", "hardware", "remote", "storage"},
    "demo": {"data"} | SERVICES - {"demo", "hardware", "cloud", "emulator", "compile", "supervise"},
    "api": SERVICES | {"reporters"},
    "data": {"api", "datasets"},
    "reporters": SERVICES,
    "cli": SERVICES | {"api", "data", "reporters"},
    "notebook": {"api", "cli", "datasets", "profiling"},
}


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


def test_a_module_imports_only_what_lies_below_it() -> None:
    found = {}
    for path in MODULES:
        part = part_of(path)
        adapter = path.name.startswith("_") and path.name != "__init__.py"
        if part not in ("__init__", "__main__"):  # the front doors
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
    modules = {module.split(".")[0] for module, _ in imports_of(path.read_text(encoding="utf-8"))}
    assert "tpuctl" not in modules


def test_every_part_is_named_in_the_rules() -> None:
    parts = {part_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert parts == set(ARROWS)


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
