"""The suite of public pipelines: what it takes for true, what it drops, and how it grades."""

import ast
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.pipelines.suite import Case, costliest, grade, read_case, report
from benchmarks.pipelines.truth import CASES, REST, Span, Truth, conclude_limit, conclude_stages

FILES = sorted(CASES.glob("*.py"))
STAGES = {"decode": "decode", "resize": "resize"}
CASE = Case("photos", "https://example.com/a", "tensorflow", STAGES, is_program=False)
QUIET = Span(cpu_ms=2.0, wall_ms=1.0, batch=16, runnable=2.0, busy=1.0, others=0.01)
SLOW = replace(QUIET, wall_ms=2.0)


def limit(whole: Span, alone: Span, **spied: float) -> Truth:
    truth = Truth("photos")
    conclude_limit(truth, [whole], [alone], spied)
    return truth


def stages(without: dict[str, float], **spied: float) -> Truth:
    truth = Truth("photos", limit="vcpu")
    spans = {name: [replace(QUIET, cpu_ms=cost)] for name, cost in without.items()}
    conclude_stages(truth, [QUIET], spans, spied)
    return truth


def profile(verdict: str, **costs: float) -> dict[str, Any]:
    rows = [{"name": name, "cpu_ms_per_example": cost} for name, cost in costs.items()]
    signals = {"other_cpu_s": 0.0, "wall_s": 1.0, "vcpus_visible": 2}
    rest = {"cpu_ms_per_example": 0.5}
    return {"data": {"verdict": verdict, "stages": rows, "residual": rest, "signals": signals}}


def test_there_are_enough_pipelines_and_half_of_them_are_kept_unseen() -> None:
    cases = [read_case(path) for path in FILES]
    assert len(cases) >= 24
    unseen = sum(case.part == "unseen" for case in cases)
    assert len(cases) / 3 < unseen < 2 * len(cases) / 3
    assert len({case.source for case in cases}) == len(cases)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_stage_of_a_pipeline_can_be_left_out(path) -> None:
    tree = ast.parse(path.read_text())
    case = read_case(path)
    marked = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("stage" in ast.unparse(each) for each in node.decorator_list)
    }
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    by_name = "is_left_out(name" in path.read_text()
    assert [name for name in case.stages if name not in marked | texts and not by_name] == []
    assert case.source.startswith("https://")


def test_twice_the_rate_on_two_vcpus_is_limited_by_vcpus() -> None:
    assert limit(QUIET, SLOW).verdicts == ["vcpu"]


def test_the_same_rate_on_two_vcpus_is_one_thread_or_waiting() -> None:
    one = replace(QUIET, runnable=1.0)
    assert limit(one, one, lock=0.1).verdicts == ["serial"]
    assert limit(one, one, lock=0.9).verdicts == ["gil", "serial"]
    assert limit(one, one, lock=0.45).verdicts == ["gil", "serial"]
    assert limit(one, one, lock=0.35).verdicts == ["serial"]
    waiting = replace(QUIET, runnable=0.1, busy=0.05)
    assert limit(waiting, waiting).verdicts == ["io", "threadpool"]


def test_threads_that_could_run_and_gain_nothing_from_a_vcpu_are_one_thread() -> None:
    assert limit(QUIET, QUIET, lock=0.1).verdicts == ["serial"]
    assert limit(QUIET, QUIET, lock=0.4).verdicts == ["gil", "serial"]
    # Of what two vCPUs do more than one, half is for handing elements on.
    assert limit(replace(QUIET, cpu_ms=2 * QUIET.cpu_ms, others=0.6), QUIET, lock=0.1).verdicts == [
        "serial"
    ]
    beside_others = replace(QUIET, runnable=1.7, busy=0.5, others=0.3)
    assert limit(beside_others, beside_others, lock=0.9).verdicts == ["gil", "serial"]
    assert limit(beside_others, beside_others, lock=0.1).verdicts == ["vcpu"]


def test_threads_that_gain_a_third_from_a_second_vcpu_are_limited_by_both() -> None:
    slower = replace(QUIET, wall_ms=1.35 * QUIET.wall_ms)
    assert limit(QUIET, slower, lock=0.1).verdicts == ["vcpu", "serial"]
    dearer = replace(QUIET, cpu_ms=1.3 * QUIET.cpu_ms, others=0.6)
    assert limit(dearer, QUIET, lock=0.1).verdicts == ["vcpu", "serial"]
    assert limit(replace(QUIET, others=0.6), QUIET, lock=0.1).verdicts == ["vcpu"]
    one = replace(QUIET, runnable=1.0)
    assert "threads" in limit(one, replace(one, wall_ms=2.0)).why_dropped


def test_what_is_left_without_a_wait_is_the_next_limit_and_no_cost() -> None:
    truth = Truth("photos", limit="waiting")
    whole = replace(QUIET, cpu_ms=0.5, wall_ms=1.3)
    without = {"read": replace(whole, cpu_ms=0.9, wall_ms=0.95), "resize": whole}
    conclude_stages(truth, [whole], {name: [each] for name, each in without.items()}, {})
    assert truth.stages == ["read"]


def test_helper_threads_that_spin_are_no_cost_where_one_thread_limits() -> None:
    truth = Truth("photos", limit="one thread", evidence={"others": 0.01})
    whole = replace(QUIET, cpu_ms=2.0, wall_ms=1.4)
    without = {
        "decode": replace(whole, cpu_ms=1.3, wall_ms=0.7),
        "blur": replace(whole, cpu_ms=0.9, wall_ms=1.0),
    }
    conclude_stages(truth, [whole], {name: [each] for name, each in without.items()}, {})
    assert truth.stages == ["decode"]


def test_truths_that_disagree_drop_the_pipeline() -> None:
    slow = replace(QUIET, runnable=1.0)
    assert "threads say one thread" in limit(slow, replace(slow, wall_ms=2.0)).why_dropped
    assert limit(QUIET, SLOW).why_dropped == ""
    assert "py-spy says resize" in stages({"decode": 0.5, "resize": 1.8}, resize=0.9).why_dropped
    assert stages({"decode": 0.5, "resize": 1.8}, decode=0.9).why_dropped == ""


def test_the_costliest_stage_is_the_one_whose_absence_saves_most() -> None:
    assert stages({"decode": 0.5, "resize": 1.8}).stages == ["decode"]
    assert stages({"decode": 1.0, "resize": 1.1}).stages == ["decode", "resize"]
    assert stages({"decode": 1.9, "resize": 1.9}).stages == [REST]
    assert stages({"decode": 1.4, "resize": 1.8}).stages == ["decode"]


def test_grades_compare_verdict_and_stage() -> None:
    truth = Truth("photos", "vcpu", ["vcpu"], ["decode"], saved_ms={"decode": 1.0})
    right = grade(CASE, truth, profile("vcpu", decode=2.0, resize=1.0))
    assert right.verdict_ok
    assert right.stage_ok
    wrong = grade(CASE, truth, profile("io", decode=1.0, resize=2.0))
    assert not wrong.verdict_ok
    assert not wrong.stage_ok
    assert costliest(truth, profile("vcpu", decode=0.1)["data"]) == [REST]
    named = profile("serial", decode=1.0, resize=2.0)["data"]
    named["stages"][0]["is_bottleneck"] = True
    assert costliest(truth, named) == ["decode"]
    equal = profile("vcpu", decode=1.7, resize=2.0)
    assert grade(CASE, truth, equal).stage_ok
    assert not grade(CASE, truth, profile("vcpu", decode=1.5, resize=2.0)).stage_ok
    assert any("both in 1 (50%)" in line for line in report([right, wrong], []))
