"""Machines for tests: the recorded ones, and changes of them."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.runtime.replay import RecordedMachine

# Read on import: later every TPUCTL_ variable is hidden from the tests.
_SHARED = Path(
    os.environ.get("TPUCTL_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)


def shared() -> Path:
    """The folder with the recorded machines and the facts; it need not be there."""
    return _SHARED


def environments() -> dict[str, dict[str, Any]]:
    """Every recorded machine by its name; empty on a clone without them."""
    files = sorted((shared() / "environments").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def environment(name: str) -> dict[str, Any]:
    """A recorded machine to change at will; skips the test where there is none."""
    path = shared() / "environments" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"needs the recorded machine {path}")
    return copy.deepcopy(json.loads(path.read_text(encoding="utf-8")))


def diagnosed(document: dict[str, Any]) -> Diagnosis:
    return diagnose(RecordedMachine(document))


def codes(diagnosis: Diagnosis) -> set[str]:
    return {problem.code for problem in diagnosis.problems}


def chips(count: int, device: str, *, driver: str | None = "vfio-pci", **more: Any) -> list[Any]:
    """PCI entries of TPU chips; vfio chips get one group each."""
    vfio = driver == "vfio-pci"
    return [
        {
            "addr": f"0000:00:{4 + n:02x}.0",
            "vendor": "0x1ae0",
            "device": device,
            "driver": driver,
            "iommu_group": n if vfio else None,
            **more,
        }
        for n in range(count)
    ]
