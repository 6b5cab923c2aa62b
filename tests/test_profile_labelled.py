"""The labelled suite: a cheap part of it for real, and the program that fits the thresholds.

Whether the machine is quiet is not ours to say. What must hold on any is that no verdict is wrong:
neighbours that are really there may be blamed, and `unknown` may be said where they drown the rest.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.profile_labels import LABELS, QUIET, Label, disturbance, grade, summary
from benchmarks.profile_records import conclude, keep, read_records
from benchmarks.profile_suite import take
from benchmarks.profile_thresholds import Record, fit
from tests.pipeline_cases import measurement, phase, profile, starving, up_to_three_times
from tpuctl.profiling.case import build_case
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.reference import thresholds
from tpuctl.profiling.windows import Signals

BY_NAME = {label.name: label for label in LABELS}
VCPU = Label("made", 20, ("vcpu",), None, "fit")
CHEAP = ("slow_pipe", "iterable_works", "neighbours")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHEAP, pytest.param("threads_at_work", marks=pytest.mark.soak)])
def test_a_pipeline_with_a_known_cause_gets_no_wrong_verdict(name: str) -> None:
    label = BY_NAME[name]
    measured = up_to_three_times(
        lambda: take(label, seconds=3.0),
        lambda measured: conclude(label, measured).verdict in label.verdicts,
    )
    result = conclude(label, measured)
    signals = measured.phases[0].signals
    assert grade(label, result.verdict, signals) != "wrong", result.evidence
    if disturbance(signals) < QUIET / 3:
        assert result.verdict in label.verdicts


def made(**signals: float) -> Signals:
    return replace(phase().signals, **signals)  # type: ignore[arg-type]


def test_an_abstention_is_not_wrong_and_another_cause_is() -> None:
    assert grade(VCPU, "vcpu", made()) == "right"
    assert grade(VCPU, "unknown", made()) == "unknown"
    assert grade(VCPU, "io", made()) == "wrong"


def test_neighbours_may_be_blamed_where_they_are_there_and_have_a_part_in_it() -> None:
    reading = Label("reads", 20, ("io",), None, "fit")
    assert grade(VCPU, "stolen", made(other_cpu_s=5.0)) == "right"
    assert grade(VCPU, "stolen", made(other_cpu_s=0.1)) == "wrong"
    assert grade(reading, "stolen", made(other_cpu_s=5.0)) == "wrong"


def test_the_summary_says_whether_what_we_promise_is_met() -> None:
    assert "met)" in summary("fit", ["right"] * 11 + ["unknown"])
    assert "not met)" in summary("fit", ["right"] * 10 + ["unknown"] * 2)
    assert "not met)" in summary("fit", ["right"] * 11 + ["wrong"])


def test_no_kept_measurement_gets_a_wrong_verdict() -> None:
    kept = [(BY_NAME[name], measured) for name, measured in read_records()]
    assert {label.part for label, _ in kept} == {"fit", "held out"}
    for label, measured in kept:
        result = conclude(label, measured)
        assert grade(label, result.verdict, measured.phases[0].signals) != "wrong", label.name


def records(**measured: Measurement) -> list[Record]:
    verdicts = {name: (profile(each).verdict,) for name, each in measured.items()}
    return [
        Record(Label(name, 20, verdicts[name], None, "fit"), build_case(each))
        for name, each in measured.items()
    ]


def test_a_threshold_on_the_wrong_side_is_moved_to_where_all_verdicts_are_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = records(busy=measurement(*starving()), idle=measurement(*starving(own=0.5)))
    right = thresholds()
    fitted = fit(known, replace(right, starved_wait=0.9))
    assert "starved_wait" in capsys.readouterr().out
    assert fitted.starved_wait < 0.5
    assert [each.grade(replace(right, starved_wait=0.9)) for each in known] == ["wrong", "wrong"]
    assert {each.grade(fitted) for each in known} <= {"right", "unknown"}


def test_thresholds_that_are_right_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    known = records(busy=measurement(*starving()))
    assert fit(known, thresholds()) == thresholds()
    assert "was" not in capsys.readouterr().out


def test_a_kept_measurement_is_judged_as_before_and_names_no_machine(tmp_path: Path) -> None:
    measured = measurement(*starving())
    place = tmp_path / "kept.jsonl"
    keep(place, "made", measured)
    keep(place, "made", measured)
    assert "/home/me" not in place.read_text()
    assert measured.host.name not in place.read_text()
    [(name, first), _] = read_records(place)
    assert name == "made"
    assert conclude(VCPU, first).verdict == profile(measured).verdict


def test_the_suite_tells_what_each_part_and_every_cause_is() -> None:
    assert {label.part for label in LABELS} == {"fit", "held out"}
    assert len(BY_NAME) == len(LABELS)
    held_out = {verdict for each in LABELS if each.part == "held out" for verdict in each.verdicts}
    assert {"vcpu", "gil", "io", "threadpool", "serial", "transfer", "bursty"} <= held_out
