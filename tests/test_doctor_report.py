"""What the report tells people to do can be done."""

import io
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tpuctl
from tests.conftest import Tpuctl
from tests.machines import chips, diagnosed
from tpuctl.cli.contents import CONTENTS
from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.trials import Numerics, PrecisionError
from tpuctl.reporters import machine as report
from tpuctl.reporters.display import card

MODULES = ("runtime", "diagnosis", "hardware", "notebook", "launch")
PROGRAMS = {
    "accelerate", "ansible-galaxy", "apt-cache", "apt-get", "apt-mark", "chmod", "colab", "conda",
    "cp", "curl", "df", "dmesg", "docker", "dstack", "echo", "env", "export", "file", "find",
    "findmnt", "free", "fuser", "fusermount", "gcloud", "gcsfuse", "getent", "gh", "git", "grep",
    "gsutil", "head", "helm", "hf", "journalctl", "jupyter", "kaggle", "kill", "kinetic",
    "kubectl", "ldconfig", "ldd", "ls", "lsb_release", "lsblk", "lsof", "lspci", "lsusb", "make",
    "mv", "nc", "nproc", "nvidia-smi", "papermill", "pip", "podman", "poetry", "pyenv", "python",
    "python3", "quota", "ray", "rclone", "sed", "sh", "sinfo", "sky", "source", "ssh", "ssh-add",
    "ssh-keygen", "sudo", "systemctl", "systemd-analyze", "tail", "tar", "tensorboard",
    "terraform", "tmux", "tpu-info", "tpuctl", "ulimit", "unset", "uptime", "uv", "uvx", "visudo",
    "wandb", "xpk", "xprof",
}  # fmt: skip
# The name in a sentence, not in a command.
PROSE = {"can", "command", "inside", "itself", "knows"}
JAX = {"jax": "0.7.2", "jaxlib": "0.7.2", "libtpu": "0.0.23"}
V5E = {"pci": chips(4, "0x0063"), "files": {f"/dev/vfio/{n}": None for n in range(4)}}
V5E_VM = {**V5E, "metadata": {"instance/attributes/agent-worker-number": "0"}}


def words(machine: dict[str, Any]) -> str:
    paper = io.StringIO()
    console = Console(file=paper, width=100, color_system=None, force_jupyter=False)
    console.print(report.render_diagnosis(diagnosed(machine)))
    return paper.getvalue()


@pytest.mark.parametrize(
    ("machine", "sentence", "line"),
    [
        ({}, "No framework is installed here.", "pip install -U 'jax'"),
        ({"files": {"/dev/nvidia0": None}}, "No framework is installed here.", "'jax[cuda12]'"),
        (V5E_VM, "No framework is installed here.", "pip install -U 'jax[tpu]'"),
        (
            {**V5E_VM, "packages": {"tensorflow-cpu": "2.20.0"}},
            "No installed framework supports the TPU here.",
            "pip install -U 'jax[tpu]'",
        ),
    ],
)
def test_without_a_framework_the_report_says_so_and_gives_the_line(
    machine: dict[str, Any], sentence: str, line: str
) -> None:
    for text in (words(machine), card(diagnosed(machine)).replace("&#x27;", "'")):
        assert sentence in text
        assert line in text
        assert "no problems found" not in text.lower()
        assert "Start with" not in text
    best = diagnosed(machine).recommended
    package = line.split("'")[1]
    assert (best.framework, best.strategy) == ("jax", "not-installed")
    assert f'"install", "-U", "{package}"' in best.snippet


@pytest.mark.parametrize("machine", [{"packages": {"jax": "0.7.2"}}, {**V5E_VM, "packages": JAX}])
def test_with_a_framework_nothing_is_wrong(machine: dict[str, Any]) -> None:
    assert "No problems found." in words(machine)
    assert "Start with jax" in words(machine)
    assert "no problems found" in card(diagnosed(machine))


def commands_named(text: str) -> list[str]:
    return re.findall(r"(?<![\w./-])tpuctl ([a-z][a-z-]*)", text)


def known_commands() -> set[str]:
    return {entry.name for entry in CONTENTS}


def test_the_catalogue_names_only_commands_that_exist() -> None:
    for known in failures().values():
        named = commands_named(f"{known.cause} {known.fix} {known.fix_command or ''}")
        assert set(named) <= known_commands(), known.code
        if known.fix_command:
            words = (word for word in shlex.split(known.fix_command) if "=" not in word)
            assert next(words) in PROGRAMS, known.code


def test_hints_and_fixes_name_only_commands_that_exist() -> None:
    root = Path(tpuctl.__file__).parent
    files = [path for module in MODULES for path in (root / module).rglob("*.py")]
    files += (root / "reporters" / f"{name}.py" for name in ("machine", "types"))
    files.append(root / "cli" / "machine.py")
    found = {
        (path.name, command)
        for path in files
        for quoted in re.findall(r'"([^"\n]*)"', path.read_text(encoding="utf-8"))
        for command in commands_named(quoted)
    }
    assert len(found) > 3
    unknown = {pair for pair in found if pair[1] not in known_commands() | PROSE}
    assert unknown == set()


def test_the_search_for_commands_finds_one_that_does_not_exist() -> None:
    assert commands_named("Wait, then: tpuctl pods list (or sudo tpuctl doctor)") == [
        "pods",
        "doctor",
    ]


def test_a_narrow_terminal_cuts_no_line_that_is_to_be_copied(
    tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    snippet = tpuctl("doctor", "--json").data["recommended"]["snippet"]
    assert any(len(line) > 40 for line in snippet.splitlines())
    assert snippet.rstrip() in tpuctl("doctor").stdout
    monkeypatch.setenv("COLUMNS", "30")
    assert "    tpuctl lint --select T105 --diff .\n" in tpuctl("explain", "T105").stdout


def test_the_matrix_test_is_told_in_words() -> None:
    errors = (
        PrecisionError("default", "QEP", 0.5, 0.0031),
        PrecisionError("default", "Q", 0.1, 0.002),
        PrecisionError("highest", "QEP", 1e-5, 2e-7),
    )
    test = Numerics("jax", "TPU v5e", errors, "By default it multiplies in bfloat16.", 1.0, None)
    diagnosis = replace(diagnosed({}), numerics=test)
    for text in (str(diagnosis), diagnosis._repr_html_()):
        lines = " ".join(text.split())
        assert "4x4 matrices inverted and multiplied in default precision: " in lines
        assert "in default precision: largest relative error 0.0031" in lines
        assert "in highest precision: largest relative error 2e-07" in lines
        assert "QEP" not in text
