"""Ctrl-C in the middle of a create: a real signal to a real process."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cloud_world import CloudWorld, Worlds
from tests.waiting import wait_until
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES

pytestmark = pytest.mark.slow

A, B = "us-west4-a", "us-central1-a"
ZONE = {"types": ["v5litepod-8"], "capacity_chips": 16, "quota_chips": 32}
SLOW = {"zones": {A: ZONE, B: ZONE}, "provision_s": 1e6, "delete_s": 5, "time_scale": 100}
CREATE = [sys.executable, "-m", "tpuctl", "create", "t1", "--type", "v5e-8", "--yes"]
PATIENT = ["--timeout", "8000h"]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    return Journal(tmp_path / "creates")


def things(here: CloudWorld) -> int:
    nodes = here.api.list_nodes(ALL_ZONES).items
    return len(nodes) + len(here.api.list_queued_resources(ALL_ZONES).items)


def phases(here: CloudWorld, journal: Journal) -> list[str]:
    return [entry.phase for entry in journal.entries(here.api)]


@contextmanager
def creating(*options: str) -> Iterator[subprocess.Popen[str]]:
    """A create without a terminal, which does not outlive its test."""
    with subprocess.Popen(
        [*CREATE, *PATIENT, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("options", [["--zone", A], ["--zones", f"{A},{B}", "--queued"]])
def test_without_a_terminal_what_is_given_up_is_cancelled(
    world: Worlds, journal: Journal, options: list[str], number: signal.Signals, exit_code: int
) -> None:
    here = world(SLOW, real_time=True)
    with creating(*options) as process:
        assert process.stderr
        said = next(line for line in process.stderr if line.startswith("t1 in"))
        process.send_signal(number)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == exit_code, said + rest
    assert "Interrupted; t1 in" in rest
    assert "was cancelled" in rest
    assert things(here) == 0
    assert set(phases(here, journal)) == {"closed"}


def test_in_json_it_is_one_document_that_says_so(world: Worlds, journal: Journal) -> None:
    here = world(SLOW, real_time=True)
    with creating("--zone", A, "--json") as process:
        wait_until(lambda: here.requests["get_operation"])
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=120)[0])
    assert process.returncode == 130
    assert document["errors"][0]["code"] == "interrupted"
    assert things(here) == 0


class Terminal:
    """A create with a terminal before it."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*CREATE, *PATIENT, "--zone", A],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self._ours, 4096).decode()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Read to the end, so that the process never waits for us."""
        try:
            while data := os.read(self._ours, 4096):
                self.shown += data.decode()
        except OSError:
            pass
        os.close(self._ours)
        return self.process.wait(timeout=120)


def leave(terminal: Terminal) -> None:
    terminal.type("maybe\n")
    terminal.type("leave\n")


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (leave, True),
        (lambda terminal: terminal.type("\n"), False),
        (lambda terminal: terminal.type("cancel\n"), False),
        (Terminal.interrupt, True),
        (lambda terminal: terminal.type("\x04"), True),
    ],
    ids=["leave", "default", "cancel", "second Ctrl-C", "end of input"],
)
def test_on_a_terminal_it_asks_whether_to_leave_or_to_cancel(
    world: Worlds, journal: Journal, answer: Callable[[Terminal], None], left: bool
) -> None:
    here = world(SLOW, real_time=True)
    terminal = Terminal()
    terminal.wait_for("CREATING")
    terminal.interrupt()
    terminal.wait_for("Leave the request running, or cancel it?")
    answer(terminal)
    assert terminal.end() == 130, terminal.shown
    assert ("was not cancelled" in terminal.shown) == left
    assert ("tpuctl wait t1 --zone" in terminal.shown) == left
    assert things(here) == int(left)
    assert phases(here, journal) == ["accepted" if left else "closed"]
