import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Tpuctl
from tests.waiting import wait_until
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UsageError
from tpuctl.reporters.training import training_figures
from tpuctl.training import catalog
from tpuctl.training.plan import LaunchPlan, find_script, plan_launch
from tpuctl.training.run import _output_folder, run_training

SCRIPT = '''"""Train nothing."""
import argparse, json, sys
from pathlib import Path

FRAMEWORKS = ("jax", "tensorflow")
parser = argparse.ArgumentParser()
parser.add_argument("--out", default="training")
parser.add_argument("--steps", type=int, default=1, help="how many")
parser.add_argument("--strategy", default="auto")
parser.add_argument("--kind", choices=["a", "b"])
parser.add_argument("--fail", type=int, default=0)
parser.add_argument("--dry", action="store_true")
parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
Path(args.out).mkdir(exist_ok=True)
if args.fail:
    sys.exit(args.fail)
Path(args.out, "result.json").write_text(json.dumps(vars(args)))
'''


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train nothing.py"
    path.write_text(SCRIPT)
    return path


def test_every_template_says_what_it_does_and_takes_the_promised_flags() -> None:
    promised = {"--data", "--steps", "--epochs", "--batch-size", "--out", "--seed", "--strategy"}
    for template in catalog.list_templates().templates:
        assert template.summary
        assert promised <= {flag.name for flag in template.flags}


def test_a_template_lands_in_the_users_folder_once(tmp_path: Path) -> None:
    written = Path(catalog.write_template("images", tmp_path / "new").path)
    assert written.read_bytes() == catalog.find_template("images").read_bytes()
    with pytest.raises(AlreadyExistsError, match="exists; nothing was written"):
        catalog.write_template("images", tmp_path / "new")


def test_a_missing_template_names_the_others() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_script("imagse")
    assert "images" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"def broken(:", b"\x00", b"\xff\xfe"])
def test_a_script_that_is_no_python_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"bad\.py is not valid Python"):
        find_script(str(path))


def test_a_script_that_is_no_python_ends_as_it_does_alone(tmp_path: Path, tpuctl: Tpuctl) -> None:
    path = tmp_path / "bad.py"
    path.write_text("print('first')\nif True:\n    x = [1, 2\ny = (3 4)\n")
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True)
    watched = tpuctl("launch", path)
    assert watched.exit_code == alone.returncode == 1
    assert [line.strip() for line in alone.stderr.splitlines()] == [
        line.strip() for line in watched.stderr.splitlines()[1:]
    ]
    assert "^" in watched.stderr


def test_a_notebook_or_a_module_is_told_what_to_do(tpuctl: Tpuctl) -> None:
    done = tpuctl("launch", "my notes.ipynb")
    assert done.exit_code == 2
    assert "jupyter nbconvert --to script 'my notes.ipynb'" in " ".join(done.stderr.split())
    done = tpuctl("launch", "-m", "package.train", "--", "--steps", "3")
    assert done.exit_code == 2
    assert "tpuctl profile run -- python -m MODULE" in " ".join(done.stderr.split())


def test_any_file_is_a_script_under_the_name_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, target in (("train", "train"), ("-x.py", "./-x.py"), ("images", "images")):
        Path(name).write_text("import sys\nprint(sys.argv[0])\n")
        plan = plan_launch(find_script(target), choice)
        assert (plan.script == target) == (target != "images")  # a template


def test_settings_become_the_scripts_own_flags(script: Path, choice) -> None:
    plan = plan_launch(find_script(str(script)), choice, ["steps=2"], ["--out", "x y"])
    assert plan.argv[1:] == (
        str(script), "--steps", "2", "--strategy", choice.strategy, "--out", "x y",
    )  # fmt: skip


def test_a_strategy_that_the_user_names_is_not_overruled(script: Path, choice) -> None:
    plan = plan_launch(find_script(str(script)), choice, ["strategy=mine"])
    assert plan.argv.count("--strategy") == 1
    assert "mine" in plan.argv


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stepps=2", "has no flag --stepps"),
        ("steps", "is not K=V"),
        ("=2", "is not K=V"),
        ("steps=x", "--steps takes a whole number, not 'x'"),
        ("kind=c", "'c' is not a valid --kind"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(
    script: Path, choice, setting: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_launch(find_script(str(script)), choice, [setting])


def test_a_near_miss_is_offered(script: Path, choice) -> None:
    with pytest.raises(UsageError) as caught:
        plan_launch(find_script(str(script)), choice, ["stepps=2"])
    assert "Did you mean --set steps=2?" in (caught.value.hint or "")


def test_a_flag_with_underscores_is_set_with_either_spelling(tmp_path: Path, choice) -> None:
    path = tmp_path / "own.py"
    path.write_text("import argparse\nargparse.ArgumentParser().add_argument('--max_steps')\n")
    for name in ("max_steps", "max-steps", "--max_steps"):
        plan = plan_launch(find_script(str(path)), choice, [f"{name}=2"])
        assert plan.argv[2:] == ("--max_steps", "2")


@pytest.mark.parametrize("words", [["--epochs", "3"], ["-e", "3"], ["--set", "epochs=3"]])
def test_flags_that_cannot_be_read_go_after_dashes(
    tpuctl: Tpuctl, tmp_path: Path, words: list[str]
) -> None:
    path = tmp_path / "own.py"
    path.write_text("import click\nclick.command()(click.option('--epochs', '-e')(print))()\n")
    result = tpuctl("launch", path, *words)
    assert result.exit_code == 2
    assert f"go after --: tpuctl launch {path} -- ARGS" in result.stderr


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--steps", "20", "--kind=a"], ["--steps", "20", "--kind", "a"]),
        (["--dry", "--set", "steps=3"], ["--dry", "--steps", "3"]),
        (["--set", "dry=true", "--set", "cache=false"], ["--dry", "--no-cache"]),
        (["--set", "dry=false", "--set", "cache"], ["--cache"]),
        (["--no-cache"], ["--no-cache"]),
        (["--cache"], ["--cache"]),
        (["--", "--steps", "4"], ["--steps", "4"]),
    ],
)
def test_the_scripts_own_flags_are_options_of_launch(
    tpuctl: Tpuctl, script: Path, words: list[str], given: list[str]
) -> None:
    result = tpuctl("launch", script, "--strategy", "default", "--dry-run", "--json", *words)
    argv = [word for word in result.data["argv"] if word not in ("--strategy", "default")]
    assert sorted(argv[2:]) == sorted(given)
    assert argv[1] == str(script)


def test_help_with_a_script_lists_its_flags(tpuctl: Tpuctl, script: Path) -> None:
    shown = tpuctl("launch", script, "--help")
    assert "how many" in shown.stdout
    assert "how many" not in tpuctl("launch", "--help").stdout


@pytest.mark.parametrize(
    "words", [["--stpes", "2"], ["--dry=perhaps"], ["--steps"], ["--no-cache=true"], ["--no-dry"]]
)
def test_wrong_flags_of_a_script_are_refused(
    tpuctl: Tpuctl, script: Path, words: list[str]
) -> None:
    result = tpuctl("launch", script, *words, "--dry-run")
    assert result.exit_code == 2
    assert words[0] != "--stpes" or "Did you mean --steps?" in result.stderr


def test_another_name_of_a_template_has_its_own_folder(tpuctl: Tpuctl) -> None:
    plan = tpuctl("launch", "fashion-mnist", "--dry-run", "--json").data
    assert plan["script"].endswith("mnist_cnn.py")
    assert plan["argv"][2:4] == ["--out", "training/fashion-mnist"]
    told = tpuctl("templates", "show", "fashion-mnist").stdout
    assert "default training/fashion-mnist" in told
    assert "of Adam; never scaled; default 0.001" in told


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ((), "training"),
        (("--out", "a"), "a"),
        (("--out", "a", "--out=b"), "b"),
        (("--out=a", "--out", "b"), "b"),
    ],
)
def test_the_last_folder_that_is_given_counts(words: tuple[str, ...], out: str) -> None:
    plan = LaunchPlan("x.py", ("python", "x.py", *words), {}, (), "", "", 1, 1, ())
    assert _output_folder(plan) == Path(out)


def test_a_part_of_a_templates_name_names_it(tpuctl: Tpuctl) -> None:
    assert "Did you mean fashion-mnist or mnist-cnn?" in tpuctl("launch", "mnist").stderr


@pytest.mark.slow
def test_a_known_failure_of_a_script_is_explained(tpuctl: Tpuctl, tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("raise RuntimeError('The TPU is already in use by process with pid 77')")
    known = tpuctl("launch", path, "--json")
    assert known.data["explanation"]["code"] in known.document["errors"][0]["hint"]
    path.write_text("raise RuntimeError('of its own')")
    own = tpuctl("launch", path, "--json")
    assert own.data["explanation"] is None
    # Of a guess that is not sure, nothing is said: it would send the reader the wrong way.
    path.write_text("None.mesh")
    assert tpuctl("launch", path, "--json").data["explanation"] is None
    assert "Run it without tpuctl" in own.document["errors"][0]["hint"]


def test_a_run_returns_what_the_script_left_behind(tmp_path: Path, script: Path, choice) -> None:
    out = tmp_path / "out"
    plan = plan_launch(find_script(str(script)), choice, [f"out={out}", "steps=7"])
    training = run_training(plan, log=subprocess.DEVNULL)
    assert training.exit_code == 0
    assert training.result is not None
    assert training.result["steps"] == 7


@pytest.mark.parametrize(
    "written",
    ["[1]", "{", '{"step_ms": 3.2, "epochs": [1], "devices": 4, "input_wait_fraction": 0.5}'],
)
def test_what_a_script_calls_result_is_its_own_business(
    tmp_path: Path, choice, written: str
) -> None:
    path, own = tmp_path / "own.py", tmp_path / "result.json"
    path.write_text(f"import pathlib; pathlib.Path({str(own)!r}).write_text({written!r})")
    plan = plan_launch(find_script(str(path)), choice, (), ["--out", str(tmp_path)])
    training = run_training(plan)
    assert training.exit_code == 0
    assert training_figures(training) == []


def test_a_failing_script_passes_its_exit_code_and_leaves_no_old_result(
    tmp_path: Path, script: Path, choice
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "result.json").write_text('{"steps": 1}')
    plan = plan_launch(find_script(str(script)), choice, [f"out={out}", "fail=9"])
    training = run_training(plan, log=subprocess.DEVNULL)
    assert (training.exit_code, training.status, training.result) == (9, "error", None)


def test_a_failing_scripts_last_words_are_kept(tmp_path: Path, choice) -> None:
    path = tmp_path / "raise.py"
    path.write_text("raise ValueError('no such thing')")
    errors = tmp_path / "logs" / "stderr.log"
    training = run_training(plan_launch(find_script(str(path)), choice), errors=errors)
    assert training.last_words[-1] == "ValueError: no such thing"
    (failure,) = training.failures
    assert "exited with code 1: ValueError: no such thing" in str(failure)


@pytest.mark.slow
def test_a_failing_script_is_an_error_on_stderr_and_in_the_document(
    tmp_path: Path, tpuctl, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "seven.py"
    path.write_text("raise SystemExit(7)")
    result = tpuctl("launch", path)
    assert result.exit_code == 7
    assert "Error:" in result.stderr
    assert "exited with code 7" in result.stderr
    document = tpuctl("launch", path, "--json").document
    assert document["status"] == "error"
    assert [error["code"] for error in document["errors"]] == ["script_failed"]


@pytest.mark.slow
def test_a_script_can_read_what_is_piped_to_it(tmp_path: Path) -> None:
    path = tmp_path / "read.py"
    path.write_text("print(input()[::-1])")
    command = [sys.executable, "-m", "tpuctl", "launch", str(path)]
    done = subprocess.run(command, input="abc\n", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cba\n")


def test_a_killed_script_exits_as_a_shell_would_say(tmp_path: Path, choice) -> None:
    path = tmp_path / "die.py"
    path.write_text("import os; os.kill(os.getpid(), 9)")
    training = run_training(plan_launch(find_script(str(path)), choice), log=subprocess.DEVNULL)
    assert training.exit_code == 128 + signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_tpuctl_stops_the_script_too(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    """Sent to tpuctl alone: the training must not go on without its parent."""
    path = tmp_path / "forever.py"
    path.write_text(
        "import os, signal, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "signal.pause()\n"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"sys.argv = ['tpuctl', 'launch', {str(path)!r}]\n"
        "from tpuctl.cli.app import main; main()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    pid_file = tmp_path / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    parent.send_signal(number)
    _, stderr = parent.communicate(timeout=120)
    assert parent.returncode == exit_code
    # After SIGINT, that of the script.
    assert stderr.count("Traceback") == (number == signal.SIGINT)
    assert not Path(f"/proc/{pid_file.read_text()}").exists()
