"""The tutorial and the guides are run as they are written."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import pages
from tests.warm_python import TPUCTL, warm_python

ROOT = Path(__file__).parents[1]
WALKS = {
    "choose-a-tpu": ("types", "fit"),
    "cloud-tpus": ("emulator start", "create", "delete", "emulator stop"),
    "colab-and-kaggle": ("offers", "create", "presize", "--on kaggle", "--on colab", "--on auto"),
    "colab": ("emulator start", "--provider colab", "--on colab", "delete", "emulator stop"),
    "compute-engine": ("emulator start", "create", "migrate", "delete", "emulator stop"),
    "emulator": ("emulator start", "emulator stop"),
    "how-detection-decides": ("--record", "--replay"),
    "kaggle": ("emulator start", "--on kaggle", "emulator stop"),
    "port-a-notebook": ("lint", "--diff", "--fix"),
    "tutorial": ("doctor", "emulator start", "watch", "list", "emulator stop"),
    "workers": ("emulator start", "create", "delete", "emulator stop"),
    "gke": ("emulator start", "--on gke", "delete", "emulator stop"),
}
NEEDS = {
    "colab-and-kaggle": "jax",
    "choose-a-tpu": "libtpu",
    "gke": "yaml",
    "port-a-notebook": "libcst",
}
MARK = "\x1e"


def commands_of(page: str) -> list[tuple[str, str]]:
    """Every command of the page, and what is written below it.

    A block of the language `sh` is pasted as a whole; a block `text` that follows is its output.
    """
    found: list[tuple[str, str]] = []
    pasted = False
    for block in pages.blocks(page):
        if block.language == "console" and not block.reason:
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
        elif block.language == "sh" and not block.reason:
            found.append((block.text, "…"))
        elif block.language == "text" and pasted:
            found[-1] = found[-1][0], block.text
        pasted = block.language == "sh" and not block.reason
    return found


def files_of(page: str) -> dict[str, str]:
    """Every file that the page tells its reader to save."""
    found = re.findall(r"Save as\s+`(\S+)`:\n\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return dict(found)


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def matches(written: str, printed: str) -> bool:
    """Whether a program printed what is written; blanks count as one.

    `…` is anything; on a line of its own, any number of lines.
    """
    pattern = "".join(
        r"(?:.*\n)*" if line == "…\n" else re.escape(line).replace("…", ".*")
        for line in _folded(written)
    )
    return re.fullmatch(pattern, "".join(_folded(printed))) is not None


def _folded(text: str) -> list[str]:
    return [" ".join(line.split()) + "\n" for line in text.strip().splitlines()]


def run(commands: list[str], folder: Path) -> list[str]:
    """Run commands in one shell, one after the other; what each printed, errors included."""
    script = f'tpuctl() {{ {warm_python(TPUCTL).in_shell("-m", "tpuctl")} "$@"; }}\n'
    script += f'python3() {{ "{sys.executable}" "$@"; }}\n'
    script += "".join(f"printf '{MARK}'\n{command}\n" for command in commands)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.split(MARK)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_every_command_of_the_page_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    if name in NEEDS and not find_spec(NEEDS[name]):
        pytest.skip(f"{NEEDS[name]} is not installed")
    for file, text in files_of(page_of(name)).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    commands = commands_of(name)
    try:
        printed = run([command for command, _ in commands], tmp_path)
    finally:
        run(["tpuctl emulator stop"], tmp_path)
    wrong = [
        f"$ {command}\n{got}\n-- instead of --\n{written}"
        for (command, written), got in zip(commands, printed, strict=True)
        if not matches(written, got)
    ]
    assert not wrong, "\n\n".join(wrong)
    if name == "tutorial":
        begun = re.findall(r"attempt \d begins with step (\d+)", "".join(printed))
        assert 0 < int(begun[1]) < int(begun[2]) < 300, "it did not go on from its checkpoint"
        # The home of a stranger was empty: what the tutorial left is its own.
        assert {path.name for path in Path.home().iterdir()} <= {".local", ".cache", ".ssh"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cloud-tpus", "emulator"])
def test_the_code_of_a_page_about_the_emulator_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    codes = [each.text for each in pages.blocks(name) if each.language == "python"]
    for number, code in enumerate(codes):
        (tmp_path / f"{number}.py").write_text(code, encoding="utf-8")
    programs = [f"python3 {number}.py && echo done {number}" for number in range(len(codes))]
    start = 'eval "$(tpuctl emulator start --detach)"'
    try:
        printed = run([start, *programs], tmp_path)
    finally:
        run(["tpuctl emulator stop"], tmp_path)
    assert [f"done {n}" in text for n, text in enumerate(printed[1:])] == [True] * len(codes), (
        printed
    )


# What the commands of cloud-tpus.md print on Compute Engine, where it is not the same.
ON_GCE = {
    "--dry-run": ["image family ubuntu-accel-2204", "On Compute Engine."],
    "create t1": ["no capacity after", "t1 is READY in", "deleted by"],
    "show t1": ["provider gce", "time left"],
    "create s1": ["s1 is READY in us-central1-a", "spot"],
    "wait s1": [],
    "gc --yes": ["Nothing to clean up"],
    "delete t1": ["t1 in"],
    "emulator stop": ["Stopped the emulator"],
}


@pytest.mark.slow
@pytest.mark.soak  # its page runs above, and test_gce.py waits for and cleans up preempted VMs
def test_the_same_commands_run_on_compute_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    monkeypatch.setenv("TPUCTL_PROVIDER", "gce")
    for file, text in files_of(page_of("cloud-tpus")).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    commands = [command for command, _ in commands_of("cloud-tpus")]
    try:
        printed = run(commands, tmp_path)
    finally:
        run(["tpuctl emulator stop"], tmp_path)
    assert len(printed) == len(commands)
    told = [
        (command, " ".join(text.split())) for command, text in zip(commands, printed, strict=True)
    ]
    for marks, words in ON_GCE.items():
        found = [text for command, text in told if marks in command]
        assert found, marks
        assert all(word in found[-1] for word in words), (marks, found[-1])
    assert not [text for _, text in told if "Error:" in text or "Traceback" in text]
    lists = [text for command, text in told if command == "tpuctl list"]
    assert "s1" not in lists[2], "a preempted VM is gone"
    assert all("No TPUs in any zone." in lists[index] for index in (0, -1))


@pytest.mark.parametrize("name", WALKS)
def test_a_page_walks_from_start_to_stop(name: str) -> None:
    verbs = [command for command, _ in commands_of(name)]
    for word in WALKS[name]:
        assert any(word in command for command in verbs), word


def test_the_comparison_can_fail() -> None:
    assert matches("a …\n…\nlast", "a b\n1\n2\nlast\n")
    assert matches("a  b", "a b")
    assert matches("a\n…\nlast", "a\nlast\n")
    assert not matches("a …\nlast", "a b\n1\nlast")
    assert not matches("READY", "PREEMPTED")
    assert not matches("", "Traceback")
    assert not matches("one", "one\ntwo")
