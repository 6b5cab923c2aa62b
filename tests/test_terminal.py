"""What reaches the terminal: text of data is shown and never acts, and JSON stays exact."""

import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hostile
from tests.hostile import FORGED, HOSTILE
from tpuctl import reporters
from tpuctl.api.workers import print_output
from tpuctl.cli import output, progress
from tpuctl.printable import WorkerText, printable, printable_json, printable_result
from tpuctl.progress import MESSAGE, Progress, StderrProgress
from tpuctl.reporters import envelope
from tpuctl.reporters.display import _SHOWN, _as_text, card
from tpuctl.reporters.profile_html import profile_page

TPUCTL = [sys.executable, "-m", "tpuctl"]
COLOUR = re.compile(r"\x1b\[[\d;:]*m")
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def acts_on_the_terminal(text: str) -> list[str]:
    """Characters that a terminal obeys instead of showing them, and lines that are forged."""
    forged = [line for line in text.splitlines() if line.startswith((FORGED, f"  {FORGED}"))]
    return RAW.findall(COLOUR.sub("", text)) + forged


# Their parts are reports of other modules, or the rules of lint.
COMPOSED = {"render_demo", "render_sarif"}
TEXTS = ("render_", "create_", "delete_", "watch_", "attempt_", "free_question", "live_row")


def reports() -> Iterator[Callable[..., Any]]:
    for module in pkgutil.iter_modules(reporters.__path__):
        if module.name != "layout":
            place = importlib.import_module(f"tpuctl.reporters.{module.name}")
            for name, found in vars(place).items():
                is_ours = inspect.isfunction(found) and found.__module__ == place.__name__
                if is_ours and name.startswith(TEXTS) and name not in COMPOSED:
                    yield found


def arguments_of(report: Callable[..., Any]) -> dict[str, Any]:
    hints = hostile.hints_of(report)
    return {name: hostile.made(kind) for name, kind in hints.items() if name != "return"}


REPORTS = list(reports())


def test_the_reports_are_found() -> None:
    assert len(REPORTS) > 40


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.__name__)
def test_no_text_in_a_result_acts_on_the_terminal(report, capsys) -> None:
    arguments = {name: printable_result(value) for name, value in arguments_of(report).items()}
    output.print_report(report(**arguments))
    assert acts_on_the_terminal(capsys.readouterr().out) == []


def test_the_results_are_hostile_and_the_search_finds_it() -> None:
    report = next(each for each in REPORTS if each.__name__ == "render_tpus")
    text = report(**arguments_of(report))
    assert {FORGED, "\x1b", "\x9b", "\u202e"} <= {line[:20] for line in text.splitlines()} | set(
        text
    )
    assert FORGED in str(acts_on_the_terminal(text))


def test_a_page_of_html_shows_hostile_text() -> None:
    page = profile_page(**arguments_of(profile_page))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def kind_of(name: str) -> type:
    module, _, kind = name.rpartition(".")
    found: type = getattr(importlib.import_module(f"tpuctl.{module}"), kind)
    return found


@pytest.mark.parametrize("name", sorted(_SHOWN.keys() - {"demo.demo.DemoResult"}))
def test_a_result_shows_itself_and_no_text_in_it_acts(name: str) -> None:
    result = hostile.made(kind_of(name))
    line, page = repr(result), card(result)
    assert RAW.findall(line) == RAW.findall(page.replace("\t", "")) == []
    assert "\n" not in line
    assert line.startswith(f"<tpuctl {_SHOWN[name][0]}: ")
    assert len(line) < 250
    assert "<script" not in page.lower()
    assert "iframe" not in page
    assert acts_on_the_terminal(str(result)) == []


def test_characters_that_cannot_be_seen_are_shown() -> None:
    for hidden in "\u00ad\u034f\u115f\u180e\u206a\u3164\uffa0\U0001d173\U000e0100":
        assert printable(f"t1{hidden}") == "t1" + hidden.encode("unicode_escape").decode()


@given(st.text())
def test_printable_text_is_one_line_that_a_terminal_shows(text: str) -> None:
    shown = printable(text)
    assert not RAW.search(shown.replace("\n", "\t"))
    shown.encode()
    assert printable(shown) == shown


@given(st.text())
def test_json_means_the_same_and_is_valid_everywhere(text: str) -> None:
    document = json.dumps({"text": text}, ensure_ascii=False)
    for ascii_only, encoding in ((False, "utf-8"), (True, "ascii")):
        safe = printable_json(document, ascii_only=ascii_only)
        assert json.loads(safe.encode(encoding)) == {"text": text}
        assert RAW.findall(safe) == []


def test_a_result_without_such_text_is_not_copied() -> None:
    result = Progress("presize", 1, note="photos/cat.jpg")
    assert printable_result(result) is result
    assert printable_result({"a": ["b", ("c", result)]})["a"][1][1] is result


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(
    st.lists(st.sampled_from(["é", "\x1b[31m", "\x1b[2J", "a\r", "\n", "\x9b", "\udcc3"])),
    st.data(),
)
def test_workers_may_colour_their_lines_and_nothing_else(pieces: list[str], data) -> None:
    raw = "".join(pieces).encode("utf-8", "surrogateescape")
    whole, parts = Terminal(), Terminal()
    WorkerText(whole).write(raw)
    writer, cuts = WorkerText(parts), data.draw(st.lists(st.integers(0, len(raw))))
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(raw)], strict=True):
        writer.write(raw[start:end])
    plain = [COLOUR.sub("", file.getvalue()).replace("\r", "") for file in (whole, parts)]
    assert RAW.findall(plain[0]) == []
    assert plain[0] == plain[1]
    assert parts.getvalue().count("\x1b[31m") == pieces.count("\x1b[31m")
    # The colour of a worker ends with its line.
    assert all("\x1b[3" not in line or line.endswith("\x1b[0m")
               for line in whole.getvalue().split("\n")[:-1])  # fmt: skip


def test_output_of_workers_in_a_pipe_is_unchanged(capfdbinary) -> None:
    print_output(1, b"\x1b[2J\xff\r\n\x9b")
    print_output(2, b"\x00")
    assert tuple(capfdbinary.readouterr()) == (b"\x1b[2J\xff\r\n\x9b", b"\x00")


def test_notes_errors_and_questions_are_printable(capsys, monkeypatch) -> None:
    output.prepare(["config", "-v", "--debug"])
    output.note(HOSTILE)
    output.warn(HOSTILE)
    output.note_message(Progress(MESSAGE, 0, note=HOSTILE))
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        output.fail("invalid", HOSTILE, HOSTILE)
        output.fail_bug(error)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    with pytest.raises(Exception, match="1"):
        output.confirm_plan(lambda plan: f"Delete {plan}?", HOSTILE, yes=False)
    said = capsys.readouterr()
    for line in (said.out + said.err).splitlines():
        # A further line is indented, so that it is no message of ours.
        assert not RAW.search(line)
        assert not line.startswith(FORGED)


def test_progress_is_printable(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    for show in (progress.bars, progress.states):
        with show() as on_progress:
            on_progress(Progress(HOSTILE, 0, 2, HOSTILE, HOSTILE))
            on_progress(Progress(MESSAGE, 0, note=HOSTILE))
    with progress.screen(str) as draw:
        draw(HOSTILE)
    seen = StderrProgress(HOSTILE, out=sys.stderr, delay_s=0)
    seen(Progress("a", 1, note=HOSTILE))
    said = capsys.readouterr()
    assert "\x1b]" not in said.out + said.err
    assert "\x9b" not in said.out + said.err
    assert "[/data]" in said.err


@pytest.mark.parametrize("value", ["[/]", "[red]", "[/data]", "[link=x]", ":smile:"])
def test_brackets_in_a_setting_are_no_markup(tpuctl, monkeypatch, value: str) -> None:
    monkeypatch.setenv("TPUCTL_PROJECT", value)
    assert value in tpuctl("config").stdout
    assert value in _as_text(value)


def files_of(folder: Path) -> dict[str, list[str]]:
    """Commands that read a hostile file."""
    text, error = json.dumps(HOSTILE), {"output_type": "error", "ename": HOSTILE, "evalue": HOSTILE}
    notebook = {"cells": [{"cell_type": "code", "source": [], "outputs": [error | {
        "traceback": [HOSTILE]}]}], "nbformat": 4, "nbformat_minor": 5, "metadata": {}}  # fmt: skip
    contents = {
        "n.ipynb": json.dumps(notebook), "s.json": f'{{"zones": {{{text}: {{}}}}}}',
        "p.tpuprof": f'{{"schema": {text}}}', "m.json": f'{{"env": {{{text}: {text}}}}}',
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_text(content)
    commands = {
        "notebook": ["explain", str(folder / "n.ipynb")],
        "text": ["explain", HOSTILE.replace("\x00", "")],
        "scenario": ["emulator", "start", "--detach", "--scenario", str(folder / "s.json")],
        "profile": ["profile", "show", str(folder / "p.tpuprof")],
        "machine": ["doctor", "--replay", str(folder / "m.json")],
        "argument": ["types", HOSTILE.replace("\x00", "")],
        "command": [HOSTILE.replace("\x00", "")],
        "option": ["create", f"--{HOSTILE}".replace("\x00", "")],
        "file": ["data", "show", HOSTILE.replace("\x00", "")],
    }
    return commands


@pytest.mark.parametrize(
    "name",
    "notebook text scenario profile machine argument command option file".split(),  # noqa: SIM905
)
def test_a_hostile_file_or_argument_is_shown(tpuctl, tmp_path: Path, name: str) -> None:
    words = files_of(tmp_path)[name]
    for options in ([], ["--json"], ["-v"]):
        result = tpuctl(*words, *options)
        assert acts_on_the_terminal(result.stdout + result.stderr) == []
        assert "bug in tpuctl" not in result.stderr + result.stdout


def run(*words: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    env = {**os.environ, **options.pop("env", {})}
    return subprocess.run([*TPUCTL, *words], capture_output=True, env=env, **options)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1", "C"])
def test_any_encoding_of_stdout_gets_valid_json_and_readable_text(encoding: str) -> None:
    name = os.fsdecode("gs-é-".encode() + b"\xff\x9b")
    env = {"TPUCTL_BUCKET": name, "PYTHONUTF8": "0"}
    env |= {"LC_ALL": "C", "LANG": "C"} if encoding == "C" else {"PYTHONIOENCODING": encoding}
    done = run("config", "--json", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    settings = json.loads(done.stdout.decode("utf-8"))["data"]["settings"]
    (value,) = [each["value"] for each in settings if each["name"] == "bucket"]
    assert value.encode("utf-8", "surrogateescape") == os.fsencode(name)
    text = run("config", env=env)
    assert (text.returncode, text.stderr) == (0, b"")
    assert b"gs-" in text.stdout
    assert not set(b"\xff\x9b") & set(text.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["config", "types --json", "show"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(words: str, closed: str) -> None:
    line = f"exec {' '.join(TPUCTL)} {words} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == (2 if words == "show" else 0)
    assert "a bug" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["types", "show --json"])
@pytest.mark.parametrize("pipe", ["| true", "2>&1 | true", "2>&1 >/dev/null | true"])
def test_a_reader_that_has_gone_is_quiet(words: str, pipe: str) -> None:
    line = f"{' '.join(TPUCTL)} {words} {pipe}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stderr == ""
    assert int(done.stdout) in ((2,) if "show" in words else (0, 1))


@pytest.mark.parametrize("name", ["COLUMNS", "LINES", "TERMINAL_WIDTH"])
@pytest.mark.parametrize("size", ["0", "-1", "1", "nan", "", "x", "1e9", "999999", "1" * 5000, "٣"])
def test_any_size_of_the_terminal_prints_the_report(tpuctl, monkeypatch, name, size) -> None:
    monkeypatch.setenv(name, size)
    shown = tpuctl("config").stdout
    assert "project" in shown
    assert max(map(len, shown.splitlines())) <= 500
    assert "Usage" in tpuctl("config", "--help").stdout


def test_a_big_terminal_is_used() -> None:
    wide = run("types", env={"COLUMNS": "140"}).stdout.decode().splitlines()
    assert 100 < max(map(len, wide)) <= 140


def test_json_has_the_exact_text() -> None:
    document = envelope.failure("config", "invalid", HOSTILE, None)
    assert RAW.findall(document) == []
    assert json.loads(document)["errors"][0]["message"] == HOSTILE
