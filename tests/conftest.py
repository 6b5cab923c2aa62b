"""What every test may use: an empty home, a command line, golden files."""

import gc
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from typer.testing import CliRunner

import tests.lean.sitecustomize  # noqa: F401
from tests.sharing import HEAVY, shared_folder
from tpuctl.cli.app import app
from tpuctl.training.choose import Choice

if TYPE_CHECKING:
    from tests.cloud_world import Worlds

# These machines are shared: how long one example takes says nothing. The examples are the same in
# every run; `--hypothesis-profile random`, as in `make fuzz`, draws others.
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.register_profile("shared", deadline=None, derandomize=True)
hypothesis.settings.load_profile("shared")

EMULATOR_TOKEN = "only-the-tests-know-this"
GOLDEN = Path(__file__).parent / "golden"
LEAN = Path(__file__).parent / "lean"
NUMBERS = count()


def pytest_configure(config: pytest.Config) -> None:
    # The secret of every emulator in this process, and of its clients.
    folder = TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    token = Path(folder.name, "token")
    token.write_text(EMULATOR_TOKEN)
    os.environ["TPUCTL_TPU_TOKEN_FILE"] = str(token)
    # A shell's background jobs are deaf to Ctrl-C and SIGQUIT, nohup's to SIGHUP, and so is all
    # that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_sessionstart(session: pytest.Session) -> None:
    # A process that a test forks would keep the pipe of its worker open: when the worker dies, as
    # at a timeout, pytest-xdist would wait for its end as long as that process lives.
    for plugin in session.config.pluginmanager.get_plugins():
        if channel := getattr(plugin, "channel", None):
            pipes = channel.gateway._io
            ends = [pipes.infile.fileno(), pipes.outfile.fileno()]
            os.register_at_fork(after_in_child=lambda ends=ends: _let_go(ends))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Thousands of tests and all that they import are no garbage, and need not be looked through.
    gc.collect()
    gc.freeze()


def _let_go(ends: list[int]) -> None:
    with open(os.devnull, "r+b") as nothing:
        for each in ends:
            os.dup2(nothing.fileno(), each, inheritable=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def new_folder(factory: pytest.TempPathFactory, kind: str) -> Path:
    """Make a folder; `mktemp` reads the names of all others first, for thousands of tests."""
    folder = factory.getbasetemp() / f"{kind}{next(NUMBERS)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this test, named like it."""
    return new_folder(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def alone(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Keep the developer's own settings, home and cache out of every test."""
    if request.node.get_closest_marker("tf"):
        for name, value in HEAVY.items():
            monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith(("TPUCTL_", "XDG_"))]:
        if name != "TPUCTL_TPU_TOKEN_FILE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(new_folder(tmp_path_factory, "home")))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    yield
    timers = sys.modules.get("tpuctl.profiling.frameworks.timers")
    assert not (timers and timers._installed), "a profile of this test goes on"


@pytest.fixture(autouse=True, scope="session")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all programs import little, and share what XLA compiles, quickly: half of their time."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    HEAVY.update(
        PYTHONPATH=os.pathsep.join([str(LEAN), *paths]),
        XLA_FLAGS="--xla_backend_optimization_level=1",
        JAX_COMPILATION_CACHE_DIR=str(shared_folder(tmp_path_factory) / "compiled"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )


class Result:
    """What one run of `tpuctl` gave."""

    def __init__(self, exit_code: int, stdout: str, stderr: str) -> None:
        self.exit_code, self.stdout, self.stderr = exit_code, stdout, stderr

    @property
    def words(self) -> str:
        """What was printed, however it was wrapped."""
        return " ".join(self.stdout.split())

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.document["data"]
        return data


Tpuctl = Callable[..., Result]


@pytest.fixture
def tpuctl() -> Tpuctl:
    """Run the command line in this process: `tpuctl("doctor", "--json")`."""

    def run(*arguments: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in arguments], input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a whole report with a file in tests/golden; `--update-golden` rewrites it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def choice() -> Choice:
    """A choice of strategy that needs no machine."""
    return Choice("tensorflow", "default", because="a test", snippet="")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve small photographs in three class folders."""
    from tests.pictures import fill

    return fill(tmp_path / "photos", 12, classes=3)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Worlds]":
    """Clouds to practise on: `world(scenario).api` is the real API over gRPC to an emulator."""
    from tests.cloud_world import Worlds

    with ExitStack() as stack:
        yield Worlds(stack, monkeypatch)


@pytest.fixture
def practice() -> Iterator[Callable[..., Any]]:
    """Start emulators with a manual clock: `practice({"zones": ...})`; without, a small one."""
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

    from tests.emulator_world import SMALL, START, Practice, open_channel
    from tpuctl.clock import ManualClock
    from tpuctl.emulator.server import serve

    with ExitStack() as stack:

        def start(scenario: dict[str, Any] | None = None, **options: Any) -> Practice:
            clock = ManualClock(options.pop("start", START))
            emulator = stack.enter_context(serve(scenario or SMALL, clock=clock, **options))
            channel = stack.enter_context(open_channel(emulator.endpoint))
            return Practice(emulator, clock, channel)

        yield start
