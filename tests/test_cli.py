import ast
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import tpuctl as library
from tpuctl import __version__, config, errors
from tpuctl.cli import app as program
from tpuctl.cli import output
from tpuctl.cli.contents import CONTENTS, Entry

SOME_NEED = {"rich.console", "tpuctl.cloud.connect"}
COMPLETION = {"_TPUCTL_COMPLETE": "complete_bash"}
HEAVY = ("tensorflow", "google.cloud", "grpc", "jax", "torch", "keras", "numpy", "cv2", "PIL")


def heavy_after(modules: list[str]) -> dict[str, list[str]]:
    """What is loaded of the heavy ones when modules have been imported one after the other."""
    probe = (
        "import importlib, json, sys\nfound = {}\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        f"    found[module] = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "print(json.dumps({module: heavy for module, heavy in found.items() if heavy}))"
    )
    found: dict[str, list[str]] = json.loads(
        subprocess.check_output([sys.executable, "-c", probe], text=True)
    )
    return found


def test_no_command_loads_anything_heavy_before_it_runs() -> None:
    assert heavy_after(["tpuctl", "tpuctl.cli.app", *(entry.module for entry in CONTENTS)]) == {}


def test_the_probe_would_notice() -> None:
    assert heavy_after(["tpuctl.cli.app", "numpy"]) == {"numpy": ["numpy"]}


def loaded_by(*arguments: str) -> set[str]:
    """What a whole command has loaded of what only some commands need."""
    probe = (
        f"import sys\nsys.argv = ['tpuctl', *{arguments!r}]\n"
        "from tpuctl.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print('loaded', *sys.modules.keys() & {SOME_NEED!r})"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded")[2].split())


def test_a_short_command_loads_no_layout_and_no_cloud(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    words = ["--host", "me@127.0.0.1", "--key", str(key), str(tmp_path / "nothing"), ":there"]
    assert loaded_by("cp", *words) == set()


@pytest.mark.slow
def test_what_a_command_does_need_is_loaded_and_seen() -> None:
    assert loaded_by("show", "--help") == {"rich.console"}
    assert loaded_by("list", "--project", "p") == {"tpuctl.cloud.connect"}


def test_completion_and_the_list_of_commands_import_no_command() -> None:
    for environment in ({}, COMPLETION | {"COMP_WORDS": "tpuctl d", "COMP_CWORD": "1"}):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "tpuctl", "--help"],
            env=os.environ | environment, capture_output=True, text=True,
        )  # fmt: skip
        assert "doctor" in done.stdout
        assert "tpuctl.cli.app" in done.stderr
        assert "tpuctl.cli.machine" not in done.stderr


@pytest.mark.parametrize("entry", CONTENTS, ids=lambda entry: entry.name)
def test_the_table_of_contents_says_what_the_command_says(entry: Entry) -> None:
    assert (program._load(entry).help or "").splitlines()[0] == entry.help
    # One line of the help screen in 80 columns.
    assert len(entry.help) <= 65


@pytest.mark.parametrize("entry", CONTENTS, ids=lambda entry: entry.name)
def test_every_command_has_the_common_options_and_no_foreign_ones(
    tpuctl, monkeypatch: pytest.MonkeyPatch, entry: Entry
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screens = [tpuctl(entry.name, "--help").stdout]
    command = program._load(entry)
    for name in getattr(command, "commands", {}):
        screens.append(tpuctl(entry.name, name, "--help").stdout)
    for screen in screens if len(screens) == 1 else screens[1:]:
        assert all(option in screen for option in ("--json", "--verbose", "--debug"))
        assert "--install-completion" not in screen
        assert "…" not in screen, "a name or a word is too long for its column"


def examples_of(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, str]]:
    """Every example in the help of a command and of those below it."""
    below = getattr(command, "commands", {})
    for name, child in below.items():
        yield from examples_of((*words, name), child)
    title, *lines = (command.epilog or "").splitlines()
    assert title == "Examples:"
    yield from ((" ".join(words), line.replace("\\[", "[")) for line in lines)


EXAMPLES = [pair for entry in CONTENTS for pair in examples_of((entry.name,), program._load(entry))]


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=lambda text: text)
def test_every_example_in_a_help_screen_parses(command: str, line: str) -> None:
    if match := re.fullmatch(r'eval "\$\((.*)\)"', line):
        line = match[1]
    *piped, line = line.partition(" > ")[0].split(" | ")
    for before in piped:
        parse(shlex.split(before)[1:])
    program_name, *arguments = shlex.split(line)
    assert program_name == "tpuctl"
    assert "--type" not in arguments, "one name for one option: --accelerator-type"
    assert f"{' '.join(arguments)} ".startswith(f"{command} ")
    parse(arguments)


def parse(arguments: list[str]) -> None:
    """Read arguments with the parser that the command line has, and run nothing."""
    group: Any = typer.main.get_command(program.app)
    context = group.make_context("tpuctl", list(arguments))
    while rest := context._protected_args + context.args:
        if not hasattr(group, "resolve_command"):
            break
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, rest, parent=context)


def test_an_example_with_a_wrong_option_would_not_parse() -> None:
    for words in (["doctor", "--nonsense"], ["bench", "compare", "one.json"], ["types", "a", "b"]):
        with pytest.raises(output.USAGE_ERROR):
            parse(words)


def test_help_lists_every_command(tpuctl) -> None:
    screen = tpuctl("--help")
    assert screen.exit_code == 0
    assert all(entry.name in screen.stdout for entry in CONTENTS)


def test_version(tpuctl) -> None:
    assert tpuctl("--version").stdout == f"tpuctl {__version__}\n"


def test_a_typing_mistake_exits_2_and_offers_the_right_word(tpuctl) -> None:
    result = tpuctl("confg")
    assert result.exit_code == 2
    assert "Did you mean 'config'?" in result.stderr
    assert result.stdout == ""


def test_wrong_usage_with_json_is_still_one_document(tpuctl) -> None:
    result = tpuctl("config", "--nonsense", "--json")
    assert result.exit_code == 2
    assert result.document["status"] == "error"
    assert result.document["errors"][0]["code"] == "usage"
    assert result.document["errors"][0]["hint"] == "See: tpuctl config --help"


def test_json_goes_to_stdout_and_nothing_else_does(tpuctl) -> None:
    result = tpuctl("config", "--json")
    assert set(result.document) == {"schema", "command", "status", "data", "errors", "warnings"}
    assert result.document["schema"] == "tpuctl/1"
    assert result.document["command"] == "config"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.TpuctlError("no"), 1),
        (errors.UsageError("no"), 2),
        (errors.TryAgainError("later"), 3),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("ours"), 1),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_whatever_is_raised_ends_in_one_message_and_the_right_code(
    capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, as_json: bool
) -> None:
    def run() -> None:
        raise raised

    output.prepare(["config", "--json"] if as_json else ["config"])
    assert program._guarded(run) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert (printed.err == "") is as_json


def test_a_signal_while_a_class_is_made_is_no_bug() -> None:
    def run(signal: BaseException) -> Any:
        def ask() -> None:
            raise RuntimeError("Error calling __set_name__") from signal

        return ask

    output.prepare(["config"])
    assert program._guarded(run(KeyboardInterrupt())) == 130
    with pytest.raises(SystemExit) as ended:
        program._guarded(run(SystemExit(143)))
    assert ended.value.code == 143


def test_in_a_folder_that_was_deleted_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    output.prepare(["profile", "run"])
    assert program._guarded(lambda: library.profile.run("pipe.py:make")) == 1
    assert "The current folder was deleted." in capsys.readouterr().err


def test_a_wrong_choice_is_reported_without_a_library_s_prefix(tpuctl) -> None:
    words = tpuctl("lint", "x.py", "--format", "xml").stderr
    assert "Invalid value for '--format': 'xml' is not one of 'text'" in words


def test_what_fails_from_python_raises_the_public_error() -> None:
    with pytest.raises(library.TpuctlError) as refused:
        library.types("v5e8")
    assert "Did you mean v5e-8?" in (refused.value.hint or "")


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise errors.TpuctlError("no")

    output.prepare(["config", "--debug"])
    program._guarded(run)
    assert "Traceback" in capsys.readouterr().err


def test_verbose_says_why(tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "why: no settings file was found" in tpuctl("config", "-v").stderr
    assert "why:" not in tpuctl("config").stderr
    (tmp_path / "tpuctl.toml").write_text("zone = ")
    result = tpuctl("config", "-v")
    assert result.exit_code == 1
    assert "why: TOMLDecodeError: " in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"], ["--help"]])
def test_a_full_standard_output_is_one_line_on_stderr(options: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tpuctl", "config", *options],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("is_early", [True, False])
def test_with_json_an_error_after_the_result_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], is_early: bool
) -> None:
    output.prepare(["config", "--json"])
    if not is_early:
        output.show(config(), lambda result: "")
    output.fail_system(OSError(errno.ENOSPC, "No space left on device", "notes"))
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == ("error" if is_early else "ok")
    assert ("Error: Could not use notes: No space left on device." in err) is not is_early


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (errno.EIO, "write_failed", "Could not use notes: Input/output error."),
        (errno.ENAMETOOLONG, "write_failed", "Could not use notes: File name too long."),
        (errno.ENOTDIR, "write_failed", "Could not use notes: Not a directory."),
        (0, "bug", ""),
    ],
)
def test_trouble_of_the_machine_is_an_error_and_not_a_bug(
    number: int, code: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.prepare(["config", "--json"])
    output.fail_system(OSError(number, os.strerror(number), "notes"))
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["code"] == code
    assert says in error["message"]


def test_a_reader_that_goes_away_is_nobodys_error() -> None:
    command = f"{sys.executable} -m tpuctl types | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_common_options_may_stand_before_the_command(tpuctl) -> None:
    assert tpuctl("--json", "config").document["command"] == "config"


def test_options_behind_two_dashes_are_not_ours() -> None:
    output.prepare(["launch", "images", "--", "--json", "--debug"])
    assert not output.as_json()


def test_a_question_without_a_terminal_names_yes() -> None:
    output.prepare(["config"])
    with pytest.raises(errors.UsageError) as caught:
        output.confirm("Really?", yes=False)
    assert "--yes" in (caught.value.hint or "")
    output.confirm("Really?", yes=True)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_the_commands(shell: str) -> None:
    environment = {
        "_TPUCTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "tpuctl conf",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "tpuctl conf",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PATH": "/usr/bin:/bin",
    }
    offered = subprocess.run(
        [sys.executable, "-m", "tpuctl"], env=environment, capture_output=True, text=True
    )
    assert "config" in offered.stdout


# Commands that CONTRACT.md promises.
PROMISED = """create list show wait delete gc watch run logs stop ssh cp free top fit bench lint
emulator""".split()  # noqa: SIM905


def test_every_command_that_was_promised_exists() -> None:
    assert set(PROMISED) <= {entry.name for entry in CONTENTS}


def test_a_report_that_is_piped_has_the_columns_it_was_designed_for() -> None:
    command = [sys.executable, "-m", "tpuctl", "types"]
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    for env, columns in ((plain, 100), ({**plain, "COLUMNS": "60"}, 60)):
        lines = subprocess.check_output(command, text=True, env=env).splitlines()
        assert columns - 5 < max(map(len, lines)) <= columns


ROOT = Path(__file__).parents[1]


def unnamed_options(source: str) -> list[str]:
    """Options whose metavar is their name and that name no flag: typer 0.27.1 loses them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "arg", None) or next(
            (target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)),
            "",
        )
        held = getattr(node, "annotation", None) or getattr(node, "value", None)
        for call in ast.walk(held) if name and isinstance(held, ast.AST) else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Option"):
                given = {each.arg: ast.unparse(each.value) for each in call.keywords}
                if not call.args and given.get("metavar") == repr(name.upper()):
                    found.append(name)
    return found


def test_every_option_is_there_with_the_typer_that_colab_has() -> None:
    # A failure is fixed with the flag: Option("--zone", metavar="ZONE").
    assert unnamed_options('Zone = Annotated[str, Option(metavar="ZONE")]') == ["Zone"]
    assert unnamed_options('def f(job: Annotated[str, typer.Option(metavar="JOB")]): 0') == ["job"]
    for path in (ROOT / "tpuctl" / "cli").glob("*.py"):
        assert unnamed_options(path.read_text(encoding="utf-8")) == [], path.name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_the_users_code_is_not_an_error_of_it(
    tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "p.py").write_text(
        "import os, time\ndef make(seed=0):\n    print('here', flush=True)\n    time.sleep(60)\n"
    )
    words = [sys.executable, "-m", "tpuctl", "data", "cache", "p.py:make", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=-1, stderr=-1, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "here\n"
        child.send_signal(number)
        assert (child.wait(), child.stderr and child.stderr.read()) == (code, "")


def test_ctrl_c_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-c", "from tpuctl.__main__ import main; main()", "config"]
    with subprocess.Popen(words, env=env, stdout=-1, stderr=-1, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "here\n"
        child.send_signal(signal.SIGINT)
        assert (child.wait(), child.stderr and child.stderr.read()) == (-signal.SIGINT, "")
