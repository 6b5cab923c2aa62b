"""What a person sees in a terminal of 80 columns: help, completion, suggestions, progress."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer import Context

from tests.conftest import Tpuctl
from tests.test_cli_options import COMMANDS
from tpuctl.cli import output
from tpuctl.cli.app import _load
from tpuctl.cli.contents import CONTENTS
from tpuctl.cli.progress import _amount
from tpuctl.cloud.error_table import Fault, RequestContext, translate
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.hardware.types import all_sizes, all_zones, parse_type
from tpuctl.printable import printable_result
from tpuctl.profiling.compare import Comparison, Row, Side
from tpuctl.progress import Progress, speed
from tpuctl.reporters import layout
from tpuctl.reporters.profile import render_profile_diff
from tpuctl.training.catalog import find_template

GROUPS = [entry.name for entry in CONTENTS if entry.is_group]


def offered(name: str, metavar: str, begun: str = "") -> list[str]:
    """What completion offers for a parameter of a command."""
    parameter = next(each for each in COMMANDS[name].params if each.metavar == metavar)
    return [item.value for item in parameter.shell_complete(Context(COMMANDS[name]), begun)]


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_every_help_ends_with_examples_of_its_own_command(name: str) -> None:
    entry, _, below = name.partition(" ")
    command = _load(next(each for each in CONTENTS if each.name == entry))
    command = command.commands[below] if below else command
    head, _, lines = (command.epilog or "").partition("\n")
    assert head == "Examples:"
    assert f"tpuctl {name}" in lines.replace("\\", "")


@pytest.mark.parametrize("name", ["", "create", "data presize"])
def test_the_help_screens_are_golden(
    tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None], name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = tpuctl(*name.split(), "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "<bool>" not in shown
    assert tpuctl(*name.split(), "-h").stdout == shown
    lines = "\n".join(line.rstrip() for line in shown.splitlines())
    golden(f"help_{name.replace(' ', '_') or 'tpuctl'}.txt", lines + "\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["docter"], "doctor"),
        (["data", "presiz"], "presize"),
        (["create", "t1", "--acelerator-type", "v5e-8"], "--accelerator-type"),
        (["launch", "imges"], "images"),
        (["templates", "show", "imges"], "images"),
        (["types", "v5lte-8"], "v5lite-8"),
        (["types", "v5e8"], "v5e-8"),
        (["launch", "images", "--set", "epoch=2", "--dry-run"], "epochs"),
    ],
)
def test_a_word_that_is_nearly_right_is_suggested(
    tpuctl: Tpuctl, words: list[str], meant: str
) -> None:
    result = tpuctl(*words)
    assert result.exit_code in (1, 2)
    assert re.search(rf"(Did you mean|Possible options).*{meant}", result.stderr)


def test_a_zone_that_is_nearly_right_is_suggested_and_a_right_one_is_not() -> None:
    def hint(zone: str) -> str:
        said = f"Location {zone} is not found or access is unauthorized."
        return translate(Fault(3, said), RequestContext("Could not list", zone=zone)).hint or ""

    assert hint("us-centrl1-a").startswith("Did you mean us-central1-a? ")
    assert "Did you mean" not in hint("us-central1-a") + hint("nowhere")


def test_what_is_far_from_everything_gets_no_suggestion() -> None:
    with pytest.raises(UsageError) as refused:
        parse_type("banana-8")
    with pytest.raises(NotFoundError) as missing:
        find_template("zzz")
    assert "Did you mean" not in f"{refused.value.hint} {missing.value.hint}"


def test_all_sizes_exist() -> None:
    assert {parse_type(size)[1] > 0 for size in all_sizes()} == {True}
    assert {"v5litepod-8", "v4-32", "v6e-256"} <= set(all_sizes())


@pytest.mark.slow
def test_completion_offers_types_zones_and_templates() -> None:
    assert "v5litepod-16" in offered("types", "[TYPE]", "v5")
    assert offered("quota", "[TYPE]", "v6e-25") == ["v6e-256"]
    assert offered("create", "ZONE,...", "us-central1-a,europe-west4-b")[0].endswith("-b")
    assert offered("templates show", "TEMPLATE", "ima") == ["images"]
    assert offered("types", "[TYPE]", "v5e-25") == ["v5e-256"]
    assert offered("create", "PROVIDER", "g") == ["gce", "gke"]
    assert offered("launch", "local|NAME|kaggle|colab|gke|auto", "k") == ["kaggle"]
    assert len(all_zones()) > 10
    environment = {
        **os.environ,
        "_TPUCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "tpuctl launch ima",
        "COMP_CWORD": "2",
    }
    shown = subprocess.run(
        [sys.executable, "-m", "tpuctl"], env=environment, capture_output=True, text=True
    )
    assert (shown.stdout.split(), shown.stderr) == (["images"], "")


def test_completion_offers_tpus_and_jobs_that_this_machine_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    records = {
        "creates/a.json": {"name": "train-1", "phase": "ready"},
        "creates/b.json": {"name": "train-2", "phase": "closed"},
        "creates/c.json": {"name": "$(touch x)", "phase": "ready"},
        "colab/d.json": {"name": "train-3"},
        "watches/e.json": {"memory": {"open": {"job": "night-1"}}},
    }
    for place, record in records.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(json.dumps(record))
    (tmp_path / "creates/damaged.json").write_text("{")
    (tmp_path / "creates/list.json").write_text("[1]")
    assert offered("logs", "[NAME]") == ["train-1", "train-3"]
    assert offered("watch", "[NAME] -- CMD...") == ["train-1", "train-3"]
    assert offered("logs", "JOB") == ["night-1"]


def test_progress_has_a_rate_and_the_time_left_after_two_seconds() -> None:
    half = Progress("copy", 50, 200, "images")
    assert speed(half, 50, 1.9) == ""
    assert speed(half, 50, 10) == ", 5 images/s, 30 s left"
    assert speed(Progress("copy", 50, None, "images"), 50, 10) == ", 5 images/s"
    assert speed(Progress("copy", 0, 200, "images"), 0, 10) == ""
    assert _amount(half) == "50/200 images"


def test_a_change_is_told_in_words_and_not_by_colour_alone() -> None:
    side = Side("a", "photos", "vcpu", "", "")
    rows = (
        Row("rate", "examples/s", 1.0, 2.0, 2.0, True),
        Row("wait", "ms", 1.0, 2.0, 2.0, False),
        Row("x", "ms", 1.0, 1.0, 1.0, None),
    )
    plain = Console(width=80, file=io.StringIO(), color_system=None)
    plain.print(render_profile_diff(printable_result(Comparison(side, side, rows, ()))))
    text = plain.file.getvalue()  # type: ignore[attr-defined]
    assert [line.split(", ")[-1].strip() for line in text.splitlines()[-3:-1]] == [
        "better", "worse",
    ]  # fmt: skip


def test_a_plain_table_is_packed_where_it_would_be_wider_than_80() -> None:
    titles, row = ("name", "zone", "type"), ("t1", "z" * 40, "v" * 33)
    assert layout.plain_table(titles, [row])[1] == f"t1   {'z' * 40} {'v' * 33}"
    assert layout.plain_table(titles, [("t1", "zo", "v5")])[1] == "t1    zo    v5"


def test_a_screen_is_redrawn_without_being_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tpuctl.cli.progress import screen

    monkeypatch.setenv("FORCE_COLOR", "1")
    with screen(str) as draw:
        for frame in ("one", "two", "three"):
            draw(frame)
    drawn = capsys.readouterr().out
    assert "three" in drawn
    # The cursor goes back over the last frame; the screen is never blank between two.
    assert "\x1b[2J" not in drawn
    assert "\x1b[H" not in drawn


def test_long_work_is_quiet_in_a_pipe_but_for_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpuctl.cli.progress import bars

    monkeypatch.delenv("FORCE_COLOR", raising=False)
    output.prepare(["data", "presize"])
    with bars() as on_progress:
        for done in range(1, 101):
            on_progress(Progress("presize", done, 100, "images"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["presize: 100/100 images"]
