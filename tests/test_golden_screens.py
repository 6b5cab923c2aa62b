"""Whole screens at 80 columns without colour, from the emulator: what a person sees, kept as files.

Durations and generated names are replaced; the rest is as printed.
"""

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cloud_world import Worlds
from tests.conftest import Result, Tpuctl
from tests.test_create_cli import CREATE, SCENARIO, A, B, C
from tests.test_delete import ready
from tpuctl.cli.progress import _Bars, _live
from tpuctl.progress import Progress

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))


def settled(text: str) -> str:
    """Without what differs from run to run: how long was waited, and the blanks at line ends."""
    text = re.sub(r"(?<= after )\d+(\.\d+)? (ms|s)\b", "N s", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def typed(*words: str, result: Result) -> str:
    said = f"{result.stderr}{result.stdout}"
    return f"$ tpuctl {' '.join(words)}\n{said}[exit code {result.exit_code}]\n"


def test_errors(world: Worlds, tpuctl: Tpuctl, golden: Golden, tmp_path: Path,
                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    world(SCENARIO, real_time=True)
    screens = []
    for words in (
        ("docter",),
        ("create", "t1", "--acelerator-type", "v5e-8"),
        ("types", "v5lte-8"),
        ("launch", "imges"),
        (*CREATE, "--zone", B, "--yes", "--ttl", "1h"),
        (*CREATE, "--zone", C, "--yes", "--ttl", "1h"),
        (*CREATE, "--zone", "us-centrl1-a", "--yes", "--ttl", "1h"),
        (*CREATE, "--zone", A, "--ttl", "1h"),
        ("show", "t1"),
        ("run", "t1", "--", "nproc"),
        ("data", "verify", "missing"),
    ):
        screens.append(typed(*words, result=tpuctl(*words)))
    (tmp_path / "token").write_text("expired")
    monkeypatch.setenv("TPUCTL_TPU_TOKEN_FILE", str(tmp_path / "token"))
    screens.append(typed("list", result=tpuctl("list")))
    for name in ("TPUCTL_TPU_TOKEN_FILE", "TPUCTL_TPU_ENDPOINT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    screens.append(typed("list --project p", result=tpuctl("list", "--project", "p")))
    text = settled("\n".join(screens))
    assert "\x1b[" not in text
    golden("errors.txt", text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("offers", ("offers", "v5e-8")),
        ("explain_code", ("explain", "F05")),
        ("explain_text", ("explain", "The TPU is already in use by process with pid 7")),
        ("types", ("types",)),
    ],
)
def test_answers(
    world: Worlds, tpuctl: Tpuctl, golden: Golden, name: str, words: tuple[str, ...]
) -> None:
    world(SCENARIO)
    result = tpuctl(*words)
    assert "\x1b[" not in result.stdout
    golden(f"{name}.txt", settled(typed(*words, result=result)))


def in_a_terminal(*words: str, answer: str) -> str:
    """Run a command in a terminal of 80 columns and type an answer."""
    controller, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tpuctl", *words], stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(terminal)
    os.write(controller, answer.encode())
    shown = b""
    try:
        while part := os.read(controller, 4096):
            shown += part
    except OSError:
        # Linux reports the end of a terminal as an error.
        pass
    child.wait()
    os.close(controller)
    return shown.decode().replace("\r\n", "\n").removeprefix(answer)


@pytest.mark.slow
def test_the_question_before_deleting(world: Worlds, golden: Golden) -> None:
    ready(world(), "t1", "t2")
    text = in_a_terminal("delete", "t1", "t2", answer="n\n")
    golden("delete_question.txt", settled(f"$ tpuctl delete t1 t2\n{text}"))


def test_progress(golden: Golden) -> None:
    now = 0.0
    console = Console(width=80, file=io.StringIO(), color_system=None, force_terminal=True)
    live = _live(console, get_time=lambda: now)
    draw = _Bars(live)
    frames = []
    for done in (0, 60, 6000, 19990):
        now = done / 150
        draw(Progress("presize", done, 20000, "images", note="2 workers" if done == 6000 else ""))
        draw(Progress("upload", done // 200, None, "shards"))
        frames.append(drawn(live.get_renderable()))
    live.stop()
    golden("progress.txt", "\n".join(frames))


def drawn(renderable: Any) -> str:
    plain = Console(width=80, file=io.StringIO(), color_system=None)
    plain.print(renderable)
    text: str = plain.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
