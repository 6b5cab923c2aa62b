"""Every command on Colab and Kaggle, struck at every request: nothing is lost, nothing burns.

A few points run here; all of them take two hours: make test-kills.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import Tpuctl
from tests.kaggle_world import Kaggles, World
from tests.kaggle_world import kaggle as kaggle
from tests.waiting import wait_until
from tpuctl.emulator.colab.account import Account, Fault
from tpuctl.emulator.faults import StorageFault
from tpuctl.emulator.kaggle.api import KaggleApi
from tpuctl.emulator.kaggle.sessions import Session
from tpuctl.providers.batch import Run, RunStore
from tpuctl.providers.kaggle.client import KaggleClient

pytestmark = pytest.mark.slow

CREATE = ("create", "t1", "--provider", "colab", "--type", "v5e-1", "--ttl", "9h", "--yes")
LAUNCH = ("launch", "job.py", "--ttl", "9h", "--yes", "--on")
COLAB: dict[str, tuple[str, ...]] = {
    "create": CREATE,
    "launch": (*LAUNCH, "colab", "--no-check"),
    "run": ("run", "t1", "--", "true"),
    "delete": ("delete", "t1", "--yes"),
}
# Without a connection that another command has left open.
BEFORE = {"run": (*CREATE, "--no-wait"), "delete": CREATE}
KAGGLE: dict[str, tuple[str, ...]] = {
    "launch": (*LAUNCH, "kaggle"),
    "send": (*LAUNCH, "kaggle", "--set", "data=noise.bin"),
    "logs": ("logs", "NAME", "--follow"),
    "delete": ("delete", "NAME", "--yes"),
    "gc": ("gc", "--provider", "kaggle", "--yes"),
}
COMMANDS = {"colab": COLAB, "kaggle": KAGGLE}
REQUESTS: dict[str, dict[str, Sequence[int]]] = {
    "colab": {"create": range(9), "launch": range(16), "run": range(2), "delete": range(5)},
    # `send` is `launch` but for its data set.
    "kaggle": {
        "launch": range(12), "send": (*range(3, 9), 16), "logs": range(7), "delete": range(6),
        "gc": range(6),
    },
}  # fmt: skip
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP}
BLOWS = (*SIGNALS, "stderr", "cut", "lost")
SAMPLE = {
    ("colab", "create", 3, "lost"), ("colab", "launch", 9, "kill"), ("colab", "run", 1, "term"),
    ("colab", "delete", 2, "cut"), ("kaggle", "launch", 3, "lost"), ("kaggle", "logs", 2, "cut"),
    ("kaggle", "delete", 4, "hup"),
}  # fmt: skip
IS_WHOLE = bool(os.environ.get("TPUCTL_ALL_KILLS"))
POINTS = [
    (at, name, number, blow)
    for at, commands in REQUESTS.items()
    for name in commands
    for number in commands[name]
    for blow in BLOWS
    if IS_WHOLE or (at, name, number, blow) in SAMPLE
]
JOB = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.parse_args()
print("worked", flush=True)
open("made.txt", "w").write("made")
"""


class Striker:
    """Waits for the n-th request, and strikes then."""

    def __init__(self, at: int = 10**6, blow: str = "") -> None:
        self.at, self.blow, self.seen = at, blow, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False
        self.api: KaggleApi | None = None

    def strikes(self) -> bool:
        """Count a request; whether its answer does not come."""
        number, self.seen = self.seen, self.seen + 1
        if self.is_over or number < self.at:
            return False
        if self.blow in SIGNALS and number == self.at and self.process:
            self.process.send_signal(SIGNALS[self.blow])
        return self.blow == "cut" or (self.blow == "lost" and number == self.at)

    def watch_colab(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = Account.take_fault

        def take_fault(account: Account, kind: str) -> Fault | None:
            if self.strikes():
                return Fault(kind, cut=True, after_accept=self.blow == "lost")
            return usual(account, kind)

        monkeypatch.setattr(Account, "take_fault", take_fault)

    def watch_kaggle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = KaggleApi._due

        def due(api: KaggleApi, on: str, about: str) -> StorageFault | None:
            self.api = api
            if on == "kaggle_session" or not self.strikes():
                return usual(api, on, about)
            return StorageFault(on, "*", 1, False, "cut", self.blow == "lost", 0, 0.0)

        monkeypatch.setattr(KaggleApi, "_due", due)

    def run(self, words: tuple[str, ...], *, is_cut_long: bool) -> bytes:
        """Run a command until it ends, however that is; returns what it wrote to stdout."""
        read, write = os.pipe()
        os.close(read)
        errors = write if self.blow == "stderr" else subprocess.DEVNULL
        with Path("stdout").open("wb") as stdout:
            command = [sys.executable, "-m", "tpuctl", *words]
            self.process = subprocess.Popen(command, stdout=stdout, stderr=errors)
            if self.blow == "cut" and not is_cut_long:
                wait_until(lambda: self.seen > self.at or self.exit_code is not None)
                self.is_over = True
            self.process.wait(300)
        self.is_over = True
        os.close(write)
        return Path("stdout").read_bytes()

    @property
    def exit_code(self) -> int | None:
        """How the command ended."""
        return self.process.poll() if self.process else None

    def kernels(self) -> dict[str, list[Session]]:
        """Every kernel on Kaggle, with its versions."""
        assert self.api
        return self.api.sessions.kernels

    def sessions(self) -> list[Session]:
        """Every session on Kaggle."""
        return [session for versions in self.kernels().values() for session in versions]

    def data_sets(self) -> list[Path]:
        """The data sets on Kaggle."""
        assert self.api
        return list(self.api._data.glob("*/made"))


def points(provider: str) -> Any:
    return pytest.mark.parametrize(
        ("name", "at", "blow"), [point[1:] for point in POINTS if point[0] == provider]
    )


@points("colab")
def test_whatever_happens_at_any_request_to_colab_nothing_is_lost(
    colab_world: ColabWorld,
    tpuctl: Tpuctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    at: int,
    blow: str,
) -> None:
    colab = colab_world({"capacity": 3})
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    if name in BEFORE:
        assert tpuctl(*BEFORE[name]).exit_code == 0
    striker = Striker(at, blow)
    striker.watch_colab(monkeypatch)
    striker.run(COLAB[name], is_cut_long=name == "delete")
    wait_until(lambda: not colab_world.records.is_being_created("t1"))
    alive = {each.name or each.endpoint for each in colab.account.runtimes.values()}
    found = tpuctl("gc", "--provider", "colab", "--json").data["found"]
    listed = tpuctl("list", "--provider", "colab", "--json").data["tpus"]
    names = {each["name"] for each in (*found, *listed)}
    assert {tpu["id"] for tpu in listed} <= alive
    assert names <= {"t1", "launch-job"}, "a runtime of ours is known by its name"
    assert all(record.expires for record in colab_world.records.all()), "and has a deadline"
    if name == "delete" and "t1" not in names:
        assert not alive, "what is not listed any more is gone"
        return
    again = tpuctl(*COLAB[name])
    assert again.exit_code == 0, again.stderr
    now = [each.name or each.endpoint for each in colab.account.runtimes.values()]
    assert len(now) == (name in ("create", "run"))
    if name == "create" and len(alive) == 1:
        assert now == list(alive), "adopted"
    if name == "launch":
        assert Path("launch-job-output/made.txt").read_text() == "made"


@points("kaggle")
def test_whatever_happens_at_any_request_to_kaggle_nothing_is_lost(
    kaggle: Kaggles,
    tpuctl: Tpuctl,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    at: int,
    blow: str,
) -> None:
    striker, words = Striker(at, blow), prepare_kaggle(kaggle(), tpuctl, name)
    was_home = {run.name for run in runs() if run.phase == "home"}
    striker.watch_kaggle(monkeypatch)
    # Only a reply tells how much faster the emulated time is; until then a retry takes minutes.
    first = striker.run(words, is_cut_long=at > 0)
    assert first.count(b"worked\n") <= 1, "the log is not repeated"
    names, found = kaggle_names(tpuctl), runs()
    assert names <= {run.name for run in found}
    assert striker.kernels().keys() <= names, "each session is listed, or found by gc"
    assert all(each.timeout_s <= 9 * 3600 for each in striker.sessions()), "and has a deadline"
    done = {run.name for run in found if run.phase == "home"} - was_home
    follows = name in ("launch", "send", "logs")
    if follows:
        assert bool(done) == (striker.exit_code == 0)
    if follows or names:
        again = tpuctl(*words)
        assert again.exit_code == 0, again.stderr
        assert again.stdout.count("worked\n") == follows
    if follows:
        # The same command goes on with its run, and starts another where that was home.
        count = 1 + (bool(done) and name != "logs")
        assert [run.phase for run in runs()] == ["home"] * count
        assert [len(versions) for versions in striker.kernels().values()] == [1] * count
        for run in runs():
            assert (Path(run.out) / "made.txt").read_text() == "made"
    assert tpuctl("gc", "--provider", "kaggle", "--yes").exit_code == 0
    assert (striker.kernels(), runs(), striker.data_sets()) == ({}, [], [])


def prepare_kaggle(world: World, tpuctl: Tpuctl, name: str) -> tuple[str, ...]:
    """Make what a command is about; returns the command."""
    Path("job.py").write_text(JOB)
    Path("noise.bin").write_bytes(os.urandom(900_000))
    if name in ("delete", "gc"):
        assert tpuctl(*KAGGLE["launch"]).exit_code == 0
    elif name == "logs":
        assert tpuctl(*KAGGLE["launch"], "--detach").exit_code == 0
    return tuple(runs()[0].name if word == "NAME" else word for word in KAGGLE[name])


def runs() -> list[Run]:
    """What this machine knows of its runs."""
    return RunStore().runs(KaggleClient().endpoint.shown)


def kaggle_names(tpuctl: Tpuctl) -> set[str]:
    """What gc finds, and what list shows."""
    found = tpuctl("gc", "--provider", "kaggle", "--json").data["found"]
    listed = tpuctl("list", "--provider", "kaggle", "--json").data["tpus"]
    return {each["name"] for each in (*found, *listed)}


@pytest.mark.skipif(not IS_WHOLE, reason="only of use before all points: make test-kills")
@pytest.mark.parametrize(("provider", "name"), [(p, n) for p in COMMANDS for n in COMMANDS[p]])
def test_every_point_is_within_its_command(
    request: pytest.FixtureRequest,
    tpuctl: Tpuctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    name: str,
) -> None:
    """A strike at a request that never comes would prove nothing."""
    striker = Striker()
    if provider == "kaggle":
        words = prepare_kaggle(request.getfixturevalue("kaggle")(), tpuctl, name)
        striker.watch_kaggle(monkeypatch)
    else:
        request.getfixturevalue("colab_world")({"capacity": 3})
        monkeypatch.chdir(tmp_path)
        Path("job.py").write_text(JOB)
        words = COLAB[name]
        if name in BEFORE:
            assert tpuctl(*BEFORE[name]).exit_code == 0
        striker.watch_colab(monkeypatch)
    striker.run(words, is_cut_long=False)
    assert striker.exit_code == 0
    assert REQUESTS[provider][name][-1] < striker.seen
