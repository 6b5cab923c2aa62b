"""CONTRACT.md's keys are in the schemas, and the check of documents can fail."""

import copy
import json
from importlib.util import find_spec
from typing import Any

import pytest

from tests import contract
from tpuctl.cli import app as program
from tpuctl.cli import output


@pytest.mark.parametrize("command", contract.LEAST)
def test_the_schema_of_a_command_has_the_keys_of_the_contract(command: str) -> None:
    assert contract.keys_missing(command) == []


def test_a_key_that_no_result_has_would_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {**contract.DOCTOR, "host": contract.keys("vcpus mood"), "[holders]": {"soul": None}}
    monkeypatch.setitem(contract.LEAST, "doctor", shape)
    assert contract.keys_missing("doctor") == ["host.mood", "holders.soul"]


@pytest.mark.parametrize(
    ("command", "key", "word"),
    [("profile run", "verdict", "vcpu"), ("watch", "cause", "preempted")],
)
def test_words_that_scripts_compare_are_enumerated(command: str, key: str, word: str) -> None:
    objects = contract.document_schema(command)["$defs"].values()
    found = [each["properties"][key] for each in objects if key in each["properties"]]
    assert found
    assert all(word in schema["enum"] for schema in found if "enum" in schema)
    assert any("enum" in schema for schema in found)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_a_planned_launch_keeps_the_contract(tpuctl) -> None:
    document = tpuctl("launch", "images", "--dry-run", "--json").document
    assert contract.problems(document, "launch", contract.PLAN) == []
    assert document["data"]["argv"][1].endswith("images.py")


@pytest.mark.parametrize(
    ("arguments", "command", "code"),
    [
        (["templates", "show", "nonsense"], "templates show", "not_found"),
        (["doctor", "--replay", "/nowhere"], "doctor", "not_found"),
        (["types", "--nonsense"], "types", "usage"),
        (["data", "verify", "/nowhere"], "data verify", "not_found"),
        (["create", "t1"], "create", "usage"),
    ],
)
def test_a_failure_keeps_the_contract(
    tpuctl, arguments: list[str], command: str, code: str
) -> None:
    document = tpuctl(*arguments, "--json").document
    assert contract.failure_problems(document, command, code) == []
    assert contract.problems(document, command)
    assert contract.failure_problems(document, command, "another_code")


@pytest.fixture
def document(tpuctl) -> dict[str, Any]:
    found: dict[str, Any] = tpuctl("doctor", "--json").document
    assert contract.problems(found, "doctor", contract.DOCTOR) == []
    return found


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("data", "hosts"), None, "hosts"),
        (("data", "host", "vcpus"), "many", "many"),
        (("data", "host"), [], "host"),
        (("data", "recommended", "strategy"), 3, "strategy"),
        (("data", "evidence"), [1], "evidence"),
        (("status",), "fine", "fine"),
        (("command",), "explain", "command"),
        (("schema",), "tpuctl/2", "schema"),
        (("warnings",), None, "warnings"),
        (("errors",), [{"code": "invalid", "message": "no"}], "hint"),
        (("errors",), [{"code": "bug", "message": "no", "hint": None}], "bug"),
    ],
)
def test_a_wrong_type_is_named(
    document: dict[str, Any], path: tuple[str, ...], value: Any, named: str
) -> None:
    below = document
    for key in path[:-1]:
        below = below[key]
    below[path[-1]] = value
    assert named in " ".join(contract.problems(document, "doctor"))


@pytest.mark.parametrize("place", [(), ("data",), ("data", "host"), ("data", "recommended")])
def test_a_missing_or_an_additional_key_is_named(
    document: dict[str, Any], place: tuple[str, ...]
) -> None:
    for change in ("missing", "additional"):
        changed = copy.deepcopy(document)
        below = changed
        for key in place:
            below = below[key]
        if change == "missing":
            name = sorted(below)[0]
            del below[name]
        else:
            name = "moon"
            below[name] = 1
        assert name in " ".join(contract.problems(changed, "doctor"))


def test_a_command_that_crashes_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def crash() -> None:
        raise ZeroDivisionError("ours")

    output.prepare(["doctor", "--json"])
    program._guarded(crash)
    document = json.loads(capsys.readouterr().out)
    assert contract.problems(document, "doctor")
    assert contract.failure_problems(document, "doctor", "bug")
