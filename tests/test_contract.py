from importlib.util import find_spec

import pytest

from tests import contract


def test_config_keeps_the_contract(tpuctl) -> None:
    document = tpuctl("config", "--json").document
    assert contract.problems(document, "config", contract.CONFIG) == []


def test_doctor_keeps_the_contract(tpuctl) -> None:
    document = tpuctl("doctor", "--json").document
    assert contract.problems(document, "doctor", contract.DOCTOR) == []


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_a_planned_launch_keeps_the_contract(tpuctl) -> None:
    document = tpuctl("launch", "images", "--dry-run", "--json").document
    assert contract.problems(document, "launch", contract.PLAN) == []
    assert document["data"]["argv"][1].endswith("images.py")


def test_an_error_keeps_the_contract(tpuctl) -> None:
    document = tpuctl("templates", "show", "nonsense", "--json").document
    assert contract.problems(document, "templates show", {}) == []
    assert document["status"] == "error"


def test_the_check_names_what_is_missing() -> None:
    shape = {"a": None, "[b]": {"c": None}, "?d": {"e": None}}
    assert contract.missing({"a": 1, "b": [{"c": 1}], "d": None}, shape) == []
    assert contract.missing({"b": [{"c": 1}, {}], "d": {}}, shape) == [
        "data.a",
        "data.b[1].c",
        "data.d.e",
    ]
    assert contract.problems({"schema": "tpuctl/1"}, "config", shape)
