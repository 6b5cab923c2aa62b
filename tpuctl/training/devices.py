"""The devices of a strategy, and the steps that each of them executed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, read_json
from tpuctl.errors import InvalidInputError

# The file to which the runner writes its counts; `run_training` sets it for the child.
COUNTS_VARIABLE = "TPUCTL_COUNTS_FILE"


@dataclass(frozen=True)
class Devices:
    """Opened devices; `native` is the framework's own strategy or mesh."""

    names: tuple[str, ...]
    replicas: int
    scope: Callable[[], AbstractContextManager[Any]]
    native: Any


@dataclass(frozen=True)
class Executed:
    """The training and evaluation steps that one device executed, and their examples.

    `examples` is None if the framework does not report it.
    """

    device: str
    steps: int
    examples: int | None

    def __str__(self) -> str:
        examples = "" if self.examples is None else f", {self.examples:,} examples"
        return f"{self.device} ({self.steps:,} steps{examples})"


def check_split(count: int, kinds: Sequence[str]) -> None:
    """Raise InvalidInputError unless exactly `count` CPU devices are in use."""
    cpus = [kind for kind in kinds if kind.lower() == "cpu"]
    if len(cpus) != count or len(kinds) != count:
        raise InvalidInputError(
            f"Could not split the CPU into {count} devices: the framework has already opened "
            f"{', '.join(kinds)}.",
            hint="Restart the kernel, and call tpuctl.strategy(cpu_devices=...) before any model.",
        )


def write_counts(path: Path, counts: Sequence[Executed]) -> None:
    """Write the counts for the parent process."""
    path.write_text(json.dumps([asdict(count) for count in counts]), encoding="utf-8")


def read_counts(path: Path, result: Mapping[str, Any] | None) -> tuple[Executed, ...]:
    """Read the counts of a finished script: its own from `result`, otherwise those in `path`."""
    try:
        counts = (result or {}).get("executed") or read_json(path)
        return tuple(from_plain(Executed, count) for count in counts)
    except (OSError, ValueError, TypeError):
        return ()


def idle_devices(counts: Sequence[Executed], devices: int) -> str | None:
    """Return a warning if some devices executed no steps; None if all did or none were counted."""
    worked = [count for count in counts if count.steps and count.examples != 0]
    if not counts or len(worked) >= devices:
        return None
    names = ", ".join(count.device for count in worked) or "none"
    return f"Only {len(worked)} of {devices} devices executed steps: {names}."
