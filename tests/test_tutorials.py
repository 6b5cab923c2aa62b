"""The tutorials on Cloud TPUs are run as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WALKS = {
    "cloud-tpus": ("emulator start", "create", "delete", "emulator stop"),
    "workers": ("emulator start", "create", "delete", "emulator stop"),
    "colab-and-kaggle": ("emulator start", "presize", "--on kaggle", "emulator stop"),
    "gke": ("emulator start", "--on gke", "delete", "emulator stop"),
    "spot-training": ("emulator start", "watch", "--delete", "emulator stop"),
}
MARK = "\x1e"


def commands_of(page: str) -> list[tuple[str, str]]:
    """Every command of the page, and what is written below it."""
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def files_of(page: str) -> dict[str, str]:
    """Every file that the page tells its reader to save."""
    found = re.findall(r"Save as\s+`(\S+)`:\n\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return dict(found)


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
    script = f'tpuctl() {{ "{sys.executable}" -m tpuctl "$@"; }}\n'
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
    if name == "colab-and-kaggle":
        pytest.importorskip("jax", reason="JAX is not installed")
    if name == "gke":
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for file, text in files_of(page).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    commands = commands_of(page)
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
    if name == "spot-training":
        begun = re.findall(r"attempt \d begins with step (\d+)", "".join(printed))
        assert 0 < int(begun[1]) < int(begun[2]) < 300, "it did not go on from its checkpoint"


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
def test_the_same_commands_run_on_compute_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    monkeypatch.setenv("TPUCTL_PROVIDER", "gce")
    page = (ROOT / "docs" / "cloud-tpus.md").read_text(encoding="utf-8")
    for file, text in files_of(page).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    commands = [command for command, _ in commands_of(page)]
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
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    verbs = [command for command, _ in commands_of(page)]
    for word in WALKS[name]:
        assert any(word in command for command in verbs), word
    assert files_of(page)


def test_the_comparison_can_fail() -> None:
    assert matches("a …\n…\nlast", "a b\n1\n2\nlast\n")
    assert matches("a  b", "a b")
    assert matches("a\n…\nlast", "a\nlast\n")
    assert not matches("a …\nlast", "a b\n1\nlast")
    assert not matches("READY", "PREEMPTED")
    assert not matches("", "Traceback")
    assert not matches("one", "one\ntwo")
