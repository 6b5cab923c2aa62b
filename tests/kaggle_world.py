"""An emulated Kaggle whose sessions run scripts at once, and ways to break it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EMULATOR_TOKEN
from tpuctl.emulator.server import Emulator, serve
from tpuctl.emulator.service import ScaledClock
from tpuctl.providers.kaggle.client import KaggleClient

SCALE = 600.0
Kaggles = Callable[..., "World"]
SLUG = "practice/tpuctl-by-hand"


class World:
    """One emulator, and a client of ours."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    @property
    def client(self) -> KaggleClient:
        return KaggleClient()

    def push(self, text: str, **fields: Any) -> dict[str, Any]:
        """The request for a session; `fields` replace those of an ordinary one."""
        usual = {
            "slug": SLUG, "newTitle": "tpuctl-by-hand", "text": text, "language": "python",
            "kernelType": "script", "isPrivate": True, "enableInternet": True,
            "machineShape": "TpuV5E8",
        }  # fmt: skip
        return usual | fields

    def calls(self, on: str) -> int:
        return sum(method == on for method, _, _ in self.emulator.requests)


def fault(on: str, error: str, **more: Any) -> dict[str, Any]:
    return {"faults": [{"on": on, "error": error, **more}]}


@pytest.fixture
def kaggle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kaggles]:
    """Start an emulator with a scenario; the current folder and our state are temporary."""
    with ExitStack() as stack:

        def start(
            scenario: dict[str, Any] | None = None,
            *,
            folder: Path | None = None,
            machines: Path | None = None,
            scale: float = SCALE,
        ) -> World:
            plan = scenario or {}
            account = {"queue_s": 0, **plan.get("kaggle", {})}
            clock = ScaledClock(datetime(2026, 11, 22, tzinfo=timezone.utc), scale)
            given = {**plan, "time_scale": scale, "kaggle": account}
            emulator = stack.enter_context(
                serve(given, clock=clock, secret=EMULATOR_TOKEN, folder=folder, machines=machines)
            )
            monkeypatch.setenv("TPUCTL_KAGGLE_ENDPOINT", emulator.http)
            return World(emulator)

        work = tmp_path / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
        yield start
