"""The proof of a training: which devices executed its steps, as the devices themselves counted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Where a script that runs inside of ours leaves its counts; set for the child by `run_training`.
COUNTS_VARIABLE = "TPUCTL_COUNTS_FILE"


@dataclass(frozen=True)
class Executed:
    """What one device did: steps of training and evaluation, and the examples it was given.

    `examples` is None where the framework does not tell it.
    """

    device: str
    steps: int
    examples: int | None

    def __str__(self) -> str:
        examples = "" if self.examples is None else f", {self.examples:,} examples"
        return f"{self.device} ({self.steps:,} steps{examples})"


def write_counts(path: Path, counts: Sequence[Executed]) -> None:
    """Leave the counts for the process that started this one."""
    path.write_text(json.dumps([asdict(count) for count in counts]), encoding="utf-8")


def read_counts(path: Path, result: Mapping[str, Any] | None) -> tuple[Executed, ...]:
    """The counts of a script that ended: its own in `result`, else those left in `path`."""
    said: Any = (result or {}).get("executed") or _left(path)
    if not isinstance(said, list):
        return ()
    return tuple(_read(entry) for entry in said if isinstance(entry, Mapping))


def idle_devices(counts: Sequence[Executed], devices: int) -> str | None:
    """Say which part of the devices did nothing; None where all worked or nothing was counted."""
    worked = [count for count in counts if count.steps and count.examples != 0]
    if not counts or len(worked) >= devices:
        return None
    names = ", ".join(count.device for count in worked) or "none"
    return f"Only {len(worked)} of {devices} devices executed steps: {names}."


def _left(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _read(entry: Mapping[str, Any]) -> Executed:
    steps, examples = entry.get("steps"), entry.get("examples")
    return Executed(
        str(entry.get("device")),
        steps if isinstance(steps, int) else 0,
        examples if isinstance(examples, int) else None,
    )
