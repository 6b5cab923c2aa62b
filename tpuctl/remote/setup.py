"""`create --setup`: install a framework on new workers, and prove that it sees the TPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.errors import WorkerError
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import Command, run_command

_DATA = Path(__file__).parent / "data" / "setup.json"


def recipes() -> dict[str, Any]:
    """Return the scripts by framework; `verify` runs on all workers at once."""
    return dict(load_facts(_DATA)["recipes"])


def set_up(
    hosts: tuple[Host, ...],
    access: Access,
    recipe: dict[str, str],
    *,
    chips: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Install and verify a framework on every worker; raises WorkerError with what was said."""
    for step in ("install", "verify"):
        on_step(step)
        command = Command(("bash", "-c", recipe[step]), {"TPUCTL_CHIPS": str(chips)})
        done = run_command(hosts, command, access, sink=lambda stream, data: None)
        for worker in done.workers:
            if worker.failure or worker.exit_code:
                said = (worker.stderr or worker.stdout).strip().splitlines()[-1:]
                why = said[0] if said else str(worker.failure or f"exit code {worker.exit_code}")
                raise WorkerError(
                    f"The TPU is there, but the step {step!r} of its setup failed on worker "
                    f"{worker.index}: {why}",
                    hint="To repeat the setup: the same command. To see more: "
                    f"tpuctl ssh {hosts[0].target}; to stop paying: "
                    f"tpuctl delete {hosts[0].target}",
                )
