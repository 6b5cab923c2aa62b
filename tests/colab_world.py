"""A Colab to practise on: an emulator in this process, and a state folder of its own."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.cloud_world import MORNING
from tests.conftest import EMULATOR_TOKEN
from tests.waiting import wait_until
from tests.workers import alive
from tpuctl.emulator.colab._server import Colab, serve_colab
from tpuctl.emulator.colab.account import read_plan
from tpuctl.emulator.service import ScaledClock
from tpuctl.providers.colab.records import Records


class ColabWorld:
    """One emulated Colab at a time; commands of this process use it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self._stack = ExitStack()
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(folder / "state"))

    def __call__(self, scenario: Mapping[str, Any] | None = None, *, scale: float = 1.0) -> Colab:
        self._stack.close()
        plan = read_plan(dict(scenario or {}))
        clock = ScaledClock(MORNING, scale)
        place = self.folder / "colab"
        serving = serve_colab(plan, clock=clock, folder=place, secret=EMULATOR_TOKEN, scale=scale)
        self.colab = self._stack.enter_context(serving)
        self._monkeypatch.setenv("TPUCTL_COLAB_ENDPOINT", self.colab.url)
        return self.colab

    @property
    def records(self) -> Records:
        return Records()

    def guards(self) -> list[int]:
        """The guards of this test's runtimes."""
        found = []
        for pid in alive("tpuctl.providers.colab.run_guard"):
            with suppress(OSError):
                env = Path(f"/proc/{pid}/environ").read_bytes()
                if str(self.folder).encode() in env:
                    found.append(pid)
        return found

    def kill_guards(self) -> None:
        for pid in self.guards():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.guards())

    def close(self) -> None:
        self.kill_guards()
        self._stack.close()


@pytest.fixture
def colab_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ColabWorld]:
    world = ColabWorld(tmp_path, monkeypatch)
    yield world
    world.close()
