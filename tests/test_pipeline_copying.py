"""A batch's waiting is not its work: what it costs is bounded by what copying costs alone."""

import shutil
import sys
from dataclasses import replace

import pytest

from tests.pipeline_cases import BATCH, JPEG, measurement, nodes, phase, profile
from tests.test_profile_deep import traced_as
from tpuctl.profiling.attribution import COPYING
from tpuctl.profiling.models import Measurement, Stage
from tpuctl.profiling.program.copy_cost import with_copying
from tpuctl.profiling.windows import CopyingStage, NodeCost

WAITING = {**JPEG, "batch": 3.0}
PATH = nodes(JPEG, 320)[2].path


def copying(cost_ms: float) -> tuple[CopyingStage, ...]:
    """What a batch of 32 costs alone when an example of it costs so much."""
    return (CopyingStage(PATH, cost_ms * BATCH / 1e3),)


def stages(measured: Measurement) -> dict[str, Stage]:
    return {stage.name: stage for stage in profile(measured).stages}


def test_a_batch_costs_no_more_than_copying_as_much_alone() -> None:
    before = measurement(phase(active_ms=WAITING))
    after = stages(replace(before, copying=copying(0.4)))
    assert stages(before)["batch"].cpu_ms_per_example > 1
    assert after["batch"].cpu_ms_per_example == pytest.approx(0.4, rel=0.05)
    assert after["batch"].method == COPYING
    assert after["batch"].active_ms_per_example == pytest.approx(3.0)


def test_the_others_get_in_proportion_what_a_batch_did_not_take() -> None:
    measured = measurement(phase(active_ms=WAITING))
    before, after = stages(measured), stages(replace(measured, copying=copying(0.4)))
    costs = [sum(s.cpu_ms_per_example for s in found.values()) for found in (before, after)]
    assert costs[0] == pytest.approx(costs[1])
    ratios = [
        after[n].cpu_ms_per_example / before[n].cpu_ms_per_example for n in ("read", "decode")
    ]
    assert ratios[0] == pytest.approx(ratios[1])
    assert ratios[0] > 1


def test_a_batch_that_took_less_than_alone_is_left_as_it_is() -> None:
    measured = measurement(phase(active_ms=WAITING))
    after = replace(measured, copying=copying(50.0))
    assert stages(after) == stages(measured)
    assert stages(after)["batch"].method != COPYING


def test_nobody_gets_more_than_the_time_that_it_was_active() -> None:
    idle = measurement(phase(active_ms=WAITING, own=1.0, examples_per_s=20.0), copying=copying(0.1))
    for stage in stages(idle).values():
        assert stage.cpu_ms_per_example <= stage.active_ms_per_example * 1.001


def test_a_trace_counts_the_waiting_of_a_batch_too() -> None:
    measured = measurement(phase(), traced=traced_as(WAITING))
    after = stages(replace(measured, copying=copying(0.4)))
    assert stages(measured)["batch"].cpu_ms_per_example > 1
    assert after["batch"].cpu_ms_per_example == pytest.approx(0.4, rel=0.05)


@pytest.mark.tf
def test_what_copying_costs_is_measured_for_batches_alone() -> None:
    import tensorflow as tf

    from tpuctl.profiling.frameworks._tf_changes import copying_stages

    def cost_s(op: str, size_bytes: int, share: float = 0.5) -> list[float]:
        batch = NodeCost(("Root", op), share, 10, 10 * 16 * size_bytes, None, 16.0)
        rest = NodeCost(("Root", op, "Map"), 1 - share, 160, 0, None, 1.0)
        found = copying_stages((batch, rest), tf.data.Options(), threads=2)
        return [each.cpu_s_per_element for each in found]

    (large,), (small,) = cost_s("BatchV2", 2_000_000), cost_s("ParallelBatch", 1_000)
    assert large > small > 0
    assert cost_s("MapAndBatch", 1_000) == []
    assert cost_s("BatchV2", 1_000, share=0.001) == []
    assert cost_s("BatchV2", 1 << 40) == []


@pytest.mark.tf
def test_after_a_program_its_own_python_measures_its_batches() -> None:
    ended = measurement(phase(active_ms=WAITING), kind="tf.data")
    found = with_copying(replace(ended, python=sys.executable))
    assert [each.path for each in found.copying] == [PATH]
    assert 0 < stages(found)["batch"].cpu_ms_per_example < stages(ended)["batch"].cpu_ms_per_example


@pytest.mark.parametrize(
    ("kind", "active_ms", "python"),
    [
        ("torch", WAITING, sys.executable),
        ("tf.data", {**JPEG, "batch": 0.001}, sys.executable),
        ("tf.data", WAITING, "no-python-of-this-name"),
        ("tf.data", WAITING, shutil.which("true")),
    ],
    ids=["another kind", "no batch that counts", "python is gone", "no answer"],
)
def test_a_program_whose_batches_cannot_be_measured_is_left_as_it_is(
    kind: str, active_ms: dict[str, float], python: str
) -> None:
    ended = replace(measurement(phase(active_ms=active_ms), kind=kind), python=python)
    assert with_copying(ended) == ended
