"""Nothing in the current folder is executed unless the user named it: no module, no program."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pictures import fill
from tpuctl.start_python import ROOT, absolute_entries, child_environment

pytestmark = pytest.mark.slow

# What children import besides the standard library.
DEPENDENCIES = {
    "absl", "annotated_doc", "asyncssh", "cv2", "google", "google_crc32c", "grain", "grpc", "jax",
    "jaxlib", "keras", "libtpu", "markdown_it", "numpy", "packaging", "pathspec", "PIL", "psutil",
    "pygments", "rich", "shellingham", "simplejpeg", "sitecustomize", "skimage", "sklearn",
    "tensorflow", "tomli", "torch", "tpuctl", "typer", "typing_extensions", "usercustomize",
}  # fmt: skip
PROGRAMS = ("gcloud", "git", "python3", "python", "sh", "sleep", "ssh", "gcc", "ldconfig")
TPUCTL = [str(Path(sys.executable).with_name("tpuctl"))]
OTHERS = [
    path
    for version in ("3.10", "3.11", "3.12", "3.13")
    for path in (
        f"/usr/bin/python{version}",
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")),
    )
    if os.access(path, os.X_OK)
]


# What `python -m` imports before the package that it starts, in one version or another.
BEFORE_TPUCTL = (
    "collections", "contextlib", "functools", "importlib", "keyword", "operator", "pkgutil",
    "reprlib", "runpy", "tpuctl", "types", "warnings",
)  # fmt: skip


class Trap:
    """A folder full of modules and programs that leave a mark when they are executed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder / "trap", folder / "marks"
        self.folder.mkdir()
        for name in (sys.stdlib_module_names | DEPENDENCIES) - {"sys", "builtins", "posix"}:
            code = f"open({str(self.marks)!r}, 'a').write({name + chr(10)!r})\n"
            (self.folder / f"{name}.py").write_text(code)
        for name in PROGRAMS:
            program = self.folder / name
            program.write_text(f"#!/bin/sh\necho {name} >> {self.marks}\n")
            program.chmod(0o755)

    def run(self, *command: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the folder, with a PATH that begins with it."""
        path = f":.:{os.environ['PATH']}"
        return subprocess.run(
            command, cwd=self.folder, env={**os.environ, "PATH": path, **env},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    @property
    def caught(self) -> list[str]:
        return self.marks.read_text().split() if self.marks.exists() else []


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("photos"), 6, classes=2)


def test_the_trap_catches_python_and_the_shell(trap: Trap) -> None:
    trap.run(sys.executable, "-c", "import json")
    trap.run(sys.executable, "-m", "json.tool", "--help")
    trap.run("/bin/sh", "-c", "sleep 0")
    assert {"json", "sleep"} <= set(trap.caught)


@pytest.mark.parametrize("python", OTHERS)
def test_a_module_is_started_without_the_current_folder(trap: Trap, python: str) -> None:
    # multiprocessing starts Python with -c; PYTHONPATH may have an empty entry by accident.
    (trap.folder.parent / "own").mkdir()
    program = trap.folder.parent / "own" / "spawning.py"
    program.write_text(
        "import json, multiprocessing, sys\n"
        "def main():\n"
        "    print(json.dumps(sys.argv[1:]), flush=True)\n"
        "    for way in ('spawn', 'forkserver'):\n"
        "        context = multiprocessing.get_context(way)\n"
        "        process = context.Process(target=print, args=(way,))\n"
        "        process.start(); process.join(); assert process.exitcode == 0\n"
        "        context.Lock()\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"PYTHONPATH": f":{program.parent}:", "PATH": f":{env['PATH']}"}
    code = (
        "import os, subprocess; from tpuctl.start_python import child_environment, python_command\n"
        f"subprocess.run(python_command('spawning', 'a b', python={python!r}), check=True,\n"
        f"cwd={str(trap.folder)!r}, env=child_environment())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert (done.stderr, done.stdout.split("\n")[:3]) == ("", ['["a b"]', "spawn", "forkserver"])
    assert trap.caught == []


def test_python_3_10_is_among_those_tried() -> None:
    if not any("3.10" in path for path in OTHERS):
        pytest.skip("no Python 3.10 on this machine")


def test_python_m_tpuctl_forgets_the_current_folder(trap: Trap) -> None:
    """Python itself imports a few modules before tpuctl can act; its option -P prevents that."""
    for name in BEFORE_TPUCTL:
        (trap.folder / f"{name}.py").unlink()
    for words in (["-m"], ["-E", "-m"], ["-P", "-m"] if sys.version_info >= (3, 11) else ["-m"]):
        done = trap.run(sys.executable, *words, "tpuctl", "config")
        assert (done.returncode, trap.caught) == (0, []), done.stderr


def test_python_m_of_the_users_own_program_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import tpuctl\n")
    (tmp_path / "own" / "__main__.py").write_text("import neighbour\n")
    (tmp_path / "neighbour.py").write_text("print('here')\n")
    done = subprocess.check_output([sys.executable, "-m", "own"], cwd=tmp_path, text=True)
    assert done == "here\n"


COMMANDS = {
    "presize": ["data", "presize", "{photos}", "{out}", "--size", "32"],
    "doctor": ["doctor"],
    "ssh": ["ssh", "--host", "somebody@127.0.0.1:1", "--json"],
    "top": ["top", "local", "--once", "--json"],
    "list": ["list", "--project", "p", "--zone", "us-central1-a"],
}
HEAVY = {
    "numerics": ["doctor", "--numerics"],
    "fit": ["fit", "{pipe}:step", "--type", "v5e-1"],
    "profile": ["profile", "run", "{photos}", "--seconds", "0.5"],
}


def words_of(words: list[str], photos: Path, tmp_path: Path) -> list[str]:
    pipe = tmp_path / "code" / "pipe.py"
    pipe.parent.mkdir()
    pipe.write_text(
        "def step(batch=8):\n    import jax.numpy as jnp\n"
        "    return (lambda x: x @ x.T), (jnp.ones((batch, 8)),)\n"
    )
    places = {"photos": photos, "out": tmp_path / "out", "pipe": pipe}
    return [word.format(**places) for word in words]


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_executes_nothing_in_the_folder(trap, photos, tmp_path, words) -> None:
    done = trap.run(*TPUCTL, *words_of(words, photos, tmp_path), LD_LIBRARY_PATH="")
    assert (trap.caught, "bug" in done.stderr + done.stdout) == ([], False)


@pytest.mark.tf
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(HEAVY[name], id=name, marks=[pytest.mark.soak] * (name == "numerics"))
        for name in HEAVY
    ],
)
def test_a_heavy_command_executes_nothing_in_the_folder(trap, photos, tmp_path, words) -> None:
    done = trap.run(*TPUCTL, *words_of(words, photos, tmp_path))
    assert trap.caught == []
    assert "is a bug" not in done.stderr
    if words[0] != "fit":
        assert done.returncode == 0, done.stderr


def test_the_emulator_executes_nothing_in_the_folder(trap: Trap) -> None:
    started = trap.run(*TPUCTL, "emulator", "start", "--detach", "--json")
    try:
        assert started.returncode == 0, started.stdout
    finally:
        trap.run(*TPUCTL, "emulator", "stop")
    assert trap.caught == []


def test_search_paths_lose_what_stands_for_the_current_folder(monkeypatch) -> None:
    assert absolute_entries(":/a:.::b/c:/d:") == "/a:/d"
    assert absolute_entries("") == absolute_entries(".") == os.defpath
    monkeypatch.setenv("PYTHONPATH", ":/a::src")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":/usr/local/lib")
    env = child_environment({"PATH": ".:/bin"})
    assert (env["PYTHONPATH"], env["LD_LIBRARY_PATH"]) == ("/a:src", "/usr/local/lib")
    assert env["PATH"] == "/bin"


def starts(source: str) -> Iterator[str]:
    """Ways to start Python that look into the current folder."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(element) for element in node.elts]
            if words[:1] == ["sys.executable"] and words[1:2] and words[1] in ("'-m'", "'-c'"):
                yield ast.unparse(node)


def test_there_is_one_way_to_start_python() -> None:
    found = {
        path.name: list(starts(path.read_text(encoding="utf-8")))
        for path in Path(ROOT, "tpuctl").rglob("*.py")
    }
    # It runs where tpuctl is not, and in the root folder.
    assert {name for name, ways in found.items() if ways} == {"serve_agent.py"}
    assert list(starts("run([sys.executable, '-m', 'json'])"))
