"""Machines from public dumps, in two halves by source: the second is judged before it is used.

`public_machines/machines.json` has a source and a date for each; `inferred` names what the source
does not say. `expected` has only what the source proves.
"""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.machines import chips, codes, diagnosed
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.runtime.record import Recorder, to_json
from tpuctl.runtime.replay import RecordedMachine

MACHINES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "public_machines" / "machines.json").read_text(encoding="utf-8")
)
BY_NAME = {machine["name"]: machine for machine in MACHINES}
# What is still wrong, with the reason; a fixed one fails this list.
UNSOLVED: dict[str, set[str]] = {
    # jax.distributed asks for MEGASCALE_SLICE_ID despite TPU_SKIP_MDS_QUERY (jax-ml/jax#40857).
    "kubernetes_without_metadata": {"problems"},
}


def half(machine: dict[str, Any]) -> str:
    """All machines of a source are in the same half."""
    digest = hashlib.sha256(machine["source"].encode()).digest()
    return "seen" if digest[0] % 2 else "unseen"


def recording(machine: dict[str, Any]) -> dict[str, Any]:
    """Write out the chips, with the device nodes of their generation."""
    document = copy.deepcopy(machine)
    tpu = document.pop("tpu", None)
    if not tpu:
        return document
    driver, visible = tpu.pop("driver", "vfio-pci"), tpu.pop("nodes", True)
    control = tpu.pop("control", visible and driver == "vfio-pci")
    document["pci"] = chips(tpu.pop("count"), tpu.pop("device"), driver=driver, **tpu)
    nodes = "/dev/vfio/" if driver == "vfio-pci" else "/dev/accel"
    extra = {f"{nodes}{number}": None for number in range(len(document["pci"]) * visible)}
    if control:
        extra["/dev/vfio/vfio"] = None
    document["files"] = {**document.get("files", {}), **extra}
    return document


def wrong(machine: dict[str, Any]) -> set[str]:
    """The answers that differ from what the source says."""
    found = diagnosed(recording(machine))
    expected = dict(machine["expected"])
    problems = expected.pop("problems", None)
    differing = {key for key, value in expected.items() if getattr(found, key) != value}
    if problems is not None and codes(found) != set(problems):
        differing.add("problems")
    return differing


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_machine_of_a_public_dump_is_diagnosed_as_its_source_says(name: str) -> None:
    assert wrong(BY_NAME[name]) == UNSOLVED.get(name, set())


_ANSWERS = (
    "runtime", "accelerator", "generation", "chips", "devices", "hosts", "worker", "slices",
    "usable", "gpus", "strategy_tf", "strategy_jax", "strategy_torch",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_recording_gives_the_same_answers(name: str) -> None:
    recorder = Recorder(RecordedMachine(recording(BY_NAME[name])))
    found = diagnose(recorder.machine)
    again = diagnosed(json.loads(to_json(recorder.document())))
    assert [getattr(again, key) for key in _ANSWERS] == [getattr(found, key) for key in _ANSWERS]
    assert codes(again) == codes(found)


def test_both_halves_are_large_and_share_no_source() -> None:
    sources = {
        side: {machine["source"] for machine in MACHINES if half(machine) == side}
        for side in ("seen", "unseen")
    }
    assert len(MACHINES) >= 245
    assert min(len(group) for group in sources.values()) >= 50
    assert not sources["seen"] & sources["unseen"]
    for machine in MACHINES:
        assert machine["source"]
        assert machine["date"]
        assert machine["expected"]


def test_a_changed_machine_is_noticed() -> None:
    machine = copy.deepcopy(BY_NAME["gke_jobset_two_slices"])
    machine["env"]["MEGASCALE_NUM_SLICES"] = "4"
    machine["tpu"]["count"] = 8
    assert {"hosts", "slices", "chips"} <= wrong(machine)
