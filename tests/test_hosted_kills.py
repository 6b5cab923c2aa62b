"""Every command on Colab, struck at every request in every way: nothing is lost, nothing burns.

A few points run here; all of them take an hour: make test-kills.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import Tpuctl
from tests.waiting import wait_until
from tpuctl.emulator.colab._server import Colab
from tpuctl.emulator.colab.account import Fault

pytestmark = pytest.mark.slow

CREATE = ("create", "t1", "--provider", "colab", "--type", "v5e-1", "--ttl", "2h", "--yes")
LAUNCH = ("launch", "job.py", "--on", "colab", "--no-check", "--ttl", "2h", "--yes")
COMMANDS = {
    "create": CREATE,
    "launch": LAUNCH,
    "run": ("run", "t1", "--", "true"),
    "delete": ("delete", "t1", "--yes"),
}
REQUESTS = {"create": 9, "launch": 16, "run": 4, "delete": 6}
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP}
BLOWS = (*SIGNALS, "stderr", "cut", "lost")
SAMPLE = {("create", 3, "lost"), ("launch", 9, "kill"), ("delete", 2, "cut"), ("run", 1, "term")}
POINTS = [(name, at, blow) for name in COMMANDS for at in range(REQUESTS[name]) for blow in BLOWS]
if not os.environ.get("TPUCTL_ALL_KILLS"):
    POINTS = [point for point in POINTS if point in SAMPLE]


class Striker:
    """Waits for the n-th request, and strikes then."""

    def __init__(self, colab: Colab, at: int, blow: str) -> None:
        self.at, self.blow, self.seen = at, blow, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False
        self._before = colab.account.take_fault
        vars(colab.account)["take_fault"] = self.take_fault

    def take_fault(self, kind: str) -> Any:
        number, self.seen = self.seen, self.seen + 1
        if self.is_over or number < self.at:
            return self._before(kind)
        if self.blow in SIGNALS and number == self.at and self.process:
            self.process.send_signal(SIGNALS[self.blow])
        if self.blow == "cut" or (self.blow == "lost" and number == self.at):
            return Fault(kind, cut=True, after_accept=self.blow == "lost")
        return self._before(kind)


@pytest.mark.parametrize(("name", "at", "blow"), POINTS)
def test_whatever_happens_at_any_request_nothing_is_lost(
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
    (tmp_path / "job.py").write_text("open('made.txt', 'w').write('made')\n")
    if name in ("run", "delete"):
        assert tpuctl(*CREATE).exit_code == 0
    striker = Striker(colab, at, blow)
    read, write = os.pipe()
    os.close(read)
    nobody = write if blow == "stderr" else subprocess.DEVNULL
    command = [sys.executable, "-m", "tpuctl", *COMMANDS[name]]
    striker.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=nobody)
    if blow == "cut":
        wait_until(
            lambda: striker.seen > at or (striker.process and striker.process.poll() is not None)
        )
        striker.is_over = name != "delete"
    striker.process.wait(120)
    striker.is_over = True
    os.close(write)
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
    again = tpuctl(*COMMANDS[name])
    assert again.exit_code == 0, again.stderr
    now = [each.name or each.endpoint for each in colab.account.runtimes.values()]
    assert len(now) == (name in ("create", "run"))
    if name == "create" and len(alive) == 1:
        assert now == list(alive), "adopted"
    if name == "launch":
        assert (tmp_path / "launch-job-output" / "made.txt").read_text() == "made"
