"""Every recorded machine is diagnosed as its `expected` says."""

from typing import Any

import pytest

from tests.machines import codes, diagnosed, environment, environments

_KEYS = (
    "runtime", "accelerator", "generation", "chips", "cores", "devices", "hosts", "strategy_tf",
    "strategy_jax", "strategy_torch",
)  # fmt: skip
_OPTIONAL = ("usable", "worker", "gpus", "slices", "remote_chips", "remote_cores")
_NAMES = sorted(environments()) or ["none"]


def differences(document: dict[str, Any]) -> dict[str, Any]:
    diagnosis, expected = diagnosed(document), document["expected"]
    keys = [*_KEYS, *(key for key in _OPTIONAL if key in expected)]
    wrong = {
        key: (expected[key], getattr(diagnosis, key))
        for key in keys
        if expected[key] != getattr(diagnosis, key)
    }
    if set(expected["problems"]) != codes(diagnosis):
        wrong["problems"] = (set(expected["problems"]), codes(diagnosis))
    return wrong


@pytest.mark.parametrize("name", _NAMES)
def test_a_recorded_machine_is_diagnosed_as_expected(name: str) -> None:
    assert differences(environment(name)) == {}


def test_the_comparison_notices_a_machine_that_changed() -> None:
    document = environment("kaggle_tpu_v5e_8")
    document["pci"].pop()
    document["env"]["KAGGLE_KERNEL_RUN_TYPE"] = ""
    document["files"] = {}
    del document["packages"]["tensorflow-cpu"]
    assert {"chips", "runtime", "problems"} <= set(differences(document))
