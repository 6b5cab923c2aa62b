"""An emulated cluster whose pods run at once, and a kubeconfig that points to it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EMULATOR_TOKEN
from tpuctl.emulator.kubernetes.discovery import kubeconfig
from tpuctl.emulator.server import Emulator, serve
from tpuctl.emulator.service import ScaledClock

pytest.importorskip("yaml", reason="PyYAML is not installed")

SCALE = 600.0
STAGING = "gs://staging/jobs"
Clusters = Callable[..., "World"]
SCRIPT = """\
import os, signal, socket, sys, time
if "PORT" in os.environ:
    first = (os.environ["MEGASCALE_COORDINATOR_ADDRESS"], int(os.environ["PORT"]))
    for name in os.environ["TPU_WORKER_HOSTNAMES"].split(","):
        socket.gethostbyname(name)
    if os.environ["MEGASCALE_SLICE_ID"] == os.environ["TPU_WORKER_ID"] == "0":
        server = socket.create_server(first)
        for _ in range(3):
            server.accept()
    else:
        for _ in range(600):
            try:
                socket.create_connection(first)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        else:
            sys.exit(9)
print("worker", os.environ["TPU_WORKER_ID"], "slice", os.environ.get("MEGASCALE_SLICE_ID"))
sys.stdout.flush()
time.sleep(float(os.environ.get("NAP", "0")))
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


class World:
    """One emulator, and the requests that its cluster has had."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def calls(self, on: str) -> int:
        return sum(method == on for method, _, _ in self.emulator.requests)


def launch(*words: str, type: str = "v6e-16") -> tuple[str, ...]:
    """The words of a launch on the cluster."""
    return ("launch", "train.py", "--on", "gke", "--accelerator-type", type, "--staging", STAGING,
            *words)  # fmt: skip


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Clusters]:
    """Start an emulator with a scenario; the current folder has a script."""
    with ExitStack() as stack:

        def start(
            gke: dict[str, Any] | None = None, folder: Path | None = None, **scenario: Any
        ) -> World:
            scale = scenario.pop("time_scale", SCALE)
            clock = ScaledClock(datetime(2026, 11, 22, tzinfo=timezone.utc), scale)
            given = {
                "time_scale": scale, "buckets": {"staging": {"location": "us-central1"}},
                "gke": {"start_s": 0, **(gke or {})}, **scenario,
            }  # fmt: skip
            emulator = stack.enter_context(
                serve(given, clock=clock, secret=EMULATOR_TOKEN, folder=folder)
            )
            config = tmp_path / "kubeconfig"
            config.write_text(kubeconfig(emulator))
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator.http)
            return World(emulator)

        work = tmp_path / "work"
        work.mkdir()
        (work / "train.py").write_text(SCRIPT)
        monkeypatch.chdir(work)
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
        yield start
