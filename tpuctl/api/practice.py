"""Practice from Python: `start`, `stop` and `status` of the emulator, and `run` of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.progress import OnProgress, silent
from tpuctl.settings import state_dir

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.demo.demo import DemoResult
    from tpuctl.emulator.process import Started, Status, Stopped


def start(
    scenario: Path | None = None,
    *,
    port: int = 0,
    fresh: bool = False,
    detach: bool = True,
    allow_unauthenticated: bool = False,
    on_started: Callable[[Started], None] = lambda started: None,
) -> Started:
    """Start an emulator of Google Cloud, Colab and Kaggle, or resume the last one unless `fresh`.

    `scenario` is a JSON file with zones, capacity and faults. With `allow_unauthenticated`, every
    user of this machine can use it, and run commands as you. `on_started` is called when the
    emulator answers; without `detach`, it then runs until this process is interrupted.
    """
    from tpuctl.emulator import process

    options: dict[str, Any] = {"port": port, "fresh": fresh}
    options["allow_unauthenticated"] = allow_unauthenticated
    if detach:
        started = process.detach(_folder(), scenario, **options)
        on_started(started)
        return started
    run = process.run(_folder(), scenario, **options)
    with process.stop_signals() as signals, run as started:
        on_started(started)
        signals.get()
    return started


def stop() -> Stopped:
    """Stop the emulator; its state is kept for the next start."""
    from tpuctl.emulator import process

    return process.stop(_folder())


def status() -> Status:
    """Return whether an emulator runs, its time, and what it holds."""
    from tpuctl.emulator import process

    return process.status(_folder())


def _folder() -> Path:
    return state_dir() / "emulator"


def run(
    images: Path | None = None,
    out: Path = Path("tpuctl-demo"),
    *,
    log: int | None = None,
    on_progress: OnProgress = silent,
) -> DemoResult:
    """Run the demo on this machine: doctor, profile, presize, profile again, train, report.

    Takes a few minutes. `images` is a folder of them; without it, some are generated. `log` is
    the file descriptor for the training's output, by default stdout.
    """
    from tpuctl.demo.demo import run_demo
    from tpuctl.reporters.practice import write_demo

    images = Path(images) if images else None
    result = run_demo(images, Path(out), log=log, on_progress=on_progress)
    write_demo(result)
    return result
