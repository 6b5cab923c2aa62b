"""`fit` on targets that raise, hang, die or are something else: one clear error each."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fit_cases import a_session, empty_cache, with_compiler, write_programs
from tests.waiting import wait_until
from tpuctl.compile.fit import Session, fit, missing
from tpuctl.errors import InvalidInputError, MissingExtraError, NotFoundError, TpuctlError
from tpuctl.training.catalog import list_templates
from tpuctl.usercode.error_summary import last_line, ran_out_of_memory


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    return write_programs(tmp_path)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """It stays usable after an error of the target."""
    with a_session(tmp_path_factory.mktemp("cache")) as session:
        yield session


def failure_of(place: Path, function: str, **options) -> TpuctlError:
    with pytest.raises(TpuctlError) as caught:
        fit(f"{place}:{function}", "v5e-4", **options)
    assert "\n" not in str(caught.value)
    return caught.value


FAILURES = {
    "raises": ("OSError: no such bucket", "programs.py:", "target_failed"),
    "exits": ("SystemExit: 3", "programs.py:", "target_failed"),
    "nothing": ("returned a builtins.NoneType", "", "invalid"),
    "needs": ("arguments that fit does not pass: path", "", "invalid"),
    "no_such": ("has no function no_such", "", "invalid"),
    "without_a_kernel": ("primitive 'eig'", "", "target_failed"),
    "of_unknown_size": ("ConcretizationTypeError", "programs.py:", "target_failed"),
}


@pytest.mark.parametrize("function", FAILURES)
@with_compiler
def test_a_target_that_fails_gives_one_clear_error(
    function: str, programs: Path, session: Session
) -> None:
    words, place, code = FAILURES[function]
    error = failure_of(programs, function, session=session)
    assert words in str(error)
    assert place in str(error)
    assert (error.code, error.exit_code) == (code, 1)
    assert error.hint


@with_compiler
def test_a_process_that_the_kernel_kills_may_have_had_no_memory(
    programs: Path, tmp_path: Path
) -> None:
    error = failure_of(programs, "dies", cache=empty_cache(tmp_path))
    assert "was killed by SIGKILL; the machine may have run out of memory" in str(error)
    assert error.hint


@with_compiler
@pytest.mark.parametrize(
    ("limit_mib", "words"),
    [(800, "libtpu cannot compile"), (1800, "process was killed by SIG")],
)
def test_without_memory_there_is_one_error_that_says_so(
    limit_mib: int, words: str, programs: Path
) -> None:
    command = f"ulimit -v {limit_mib * 1024}; exec {sys.executable} -m tpuctl fit " + (
        f"{programs}:conv --type v5e-1 --batch 32"
    )
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("Error: ")
    assert words in found.stderr
    assert "memory here (ulimit -v)" in found.stderr or "failed to map segment" in found.stderr
    assert "Traceback" not in found.stderr


def test_what_a_crash_was_about_is_found_in_its_log() -> None:
    log = (
        "F1121 17:50:44.871491   28536 env.cc:93] Check failed: ret == 0 (11 vs. 0) Thread "
        "tf_XLAEigen creation via pthread_create() failed.\n"
        "*** Check failure stack trace: ***\n    @     0x7f353f2a8eec  (unknown)\n"
        "*** SIGABRT received by PID 28536 (TID 28536) on cpu 1; stack trace: ***\n"
        "PC: @     0x7f353f2a8eec  (unknown)  (unknown)\nhttps://symbolize.stripped_domain/r/\n"
        "E1121 17:50:45.247978   28536 coredump_hook.cc:310] RAW: Remote crash data gathering\n"
    )
    assert last_line(log).startswith("env.cc:93] Check failed: ret == 0")
    assert ran_out_of_memory(log)
    assert not ran_out_of_memory("E1121 17:50:45.247978   28536 coredump_hook.cc:310] RAW")


@with_compiler
def test_versions_that_were_never_tried_together_are_refused(
    programs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "site" / "libtpu-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 9.9.9\n")
    found = subprocess.run(
        [sys.executable, "-m", "tpuctl", "fit", f"{programs}:conv", "--type", "v5e-1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{other.parent}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert found.returncode == 1
    assert "libtpu 9.9.9" in found.stderr
    assert "tpuctl[aot]" in found.stderr or "libtpu==" in found.stderr


@with_compiler
def test_a_target_that_hangs_is_given_up_with_the_line_it_was_at(
    programs: Path, tmp_path: Path
) -> None:
    error = failure_of(programs, "hangs", cache=empty_cache(tmp_path), timeout_s=2)
    assert "while loading" in str(error)
    line = programs.read_text().splitlines().index("    time.sleep(3600)") + 1
    assert f"programs.py:{line}" in str(error)
    assert "--timeout" in str(error.hint)


@with_compiler
@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words", "title"),
    [
        ("with_python", "EagerPyFunc", "does not run on a TPU"),
        ("with_strings", "AsString", "does not run on a TPU"),
        ("with_an_open_size", "static input shape", "fixed shapes"),
        ("uncompiled", "was not compiled", "model.compile"),
    ],
)
def test_what_a_tpu_cannot_run_is_explained(
    function: str, words: str, title: str, programs: Path, session: Session
) -> None:
    pytest.importorskip("tensorflow")
    error = failure_of(programs, function, session=session)
    assert words in str(error)
    assert title in str(error.hint)


@with_compiler
def test_a_batch_that_does_not_divide_names_those_that_do(programs: Path, session: Session) -> None:
    error = failure_of(programs, "dense", batch_size=30, session=session)
    assert "30 cannot be split evenly among 4 devices" in str(error)
    assert error.hint == "--batch 28 or --batch 32"


@with_compiler
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.mlir", b"module @x { garbage", "not valid StableHLO"),
        ("noise.mlir", bytes(range(128, 256)), "Could not read"),
        ("noise.stablehlo", b"ML\xefR" + bytes(range(256)), "not valid StableHLO"),
        ("empty.mlir", b"", "no function main"),
    ],
)
def test_a_damaged_file_is_refused(
    name: str, content: bytes, words: str, tmp_path: Path, session: Session
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=words):
        fit(str(tmp_path / name), "v5e-1", session=session)


def test_what_is_asked_wrongly_is_refused_before_anything_starts(tmp_path: Path, tpuctl) -> None:
    program = tmp_path / "step.mlir"
    program.write_text("module {}")
    for words, message in {
        ("--type", "v9-8"): "not a valid accelerator type",
        (): "needs the type of TPU",
        ("--type", "v5e-1", "--batch", "8", "--max-batch"): "exclude each other",
        ("--type", "v5e-1", "--max-batch"): "needs a function that builds the program",
        ("--type", "v5e-1", "--dtype", "bf16"): "needs a function that builds the program",
    }.items():
        result = tpuctl("fit", str(program), *words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_target_that_is_not_there_says_what_there_could_be(tmp_path: Path) -> None:
    for target in ("nonsense", str(tmp_path / "none.mlir"), f"{tmp_path}/none.py:make"):
        with pytest.raises(NotFoundError):
            fit(target, "v5e-1", cache=empty_cache(tmp_path))
    (tmp_path / "train.py").write_text("def make(): ...\n")
    with pytest.raises(InvalidInputError, match="is a file") as caught:
        fit(str(tmp_path / "train.py"), "v5e-1", cache=empty_cache(tmp_path))
    assert "train.py:function" in str(caught.value.hint)


def test_without_the_extra_the_pip_line_is_named(
    programs: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(MissingExtraError, match="libtpu") as caught:
        fit(f"{programs}:dense", "v5e-1", cache=empty_cache(tmp_path))
    assert caught.value.hint == "pip install 'tpuctl[aot]'"


def test_an_older_python_is_told_that_the_extra_gives_it_nothing() -> None:
    assert "Python 3.11 or newer, and this is 3.10" in str(missing("libtpu", (3, 10)).hint)
    assert missing("libtpu", (3, 11)).hint == "pip install 'tpuctl[aot]'"


def test_a_template_of_pytorch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is a PyTorch program"):
        fit("torch-xla-images", "v5e-1", cache=empty_cache(tmp_path))


def test_every_other_template_has_a_program_to_compile() -> None:
    for template in list_templates().templates:
        tree = ast.parse(Path(template.path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert ("make_example" in functions) == (template.frameworks != ("torch",)), template.name


@pytest.mark.slow
def test_the_user_process_never_loads_the_compiler(programs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from tpuctl.cli.app import app\n"
        f"sys.argv = ['tpuctl', 'fit', '{programs}:nothing', '--type', 'v5e-1']\n"
        "try: app()\n"
        "except SystemExit: print(*[m for m in ('jax', 'jaxlib', 'libtpu') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == ""


@with_compiler
def test_ctrl_c_leaves_nothing_behind(programs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tpuctl", "fit", f"{programs}:hangs", "--type", "v5e-1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    noted = programs.with_name("pid")
    wait_until(lambda: noted.exists() and noted.read_text())
    child = int(noted.read_text())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupted." in said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
