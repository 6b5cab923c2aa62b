"""Run a training with the profiler attached, to measure its steps and input wait."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tpuctl.diagnosis.explain import first_claim
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.program.run import (
    FOLDER,
    conclude,
    hook_environment,
    read_error,
    read_few,
    read_other_steps,
    read_result,
    read_unseen,
)
from tpuctl.profiling.program.watch import Steps
from tpuctl.profiling.tpuprof import save
from tpuctl.training.devices import Executed
from tpuctl.training.plan import LaunchPlan
from tpuctl.training.run import Training, Watched, run_training


def watch_training(
    plan: LaunchPlan,
    *,
    log: int | None = None,
    errors: Path | None = None,
    stdin: int | None = None,
    profile: Path | None = None,
    on_start: Callable[[], object] = lambda: None,
) -> Training:
    """Run a plan like `run_training` and measure its steps; `profile` is a file for the profile.

    It finds the same iterators as `profile run -- CMD`. If that command runs this one, it does the
    measuring.
    """
    with tempfile.TemporaryDirectory(prefix="tpuctl-launch-", ignore_cleanup_errors=True) as folder:
        hooks = {} if FOLDER in os.environ else hook_environment(folder, os.environ)
        training = run_training(
            plan, log=log, errors=errors, stdin=stdin, extra_env=hooks, on_start=on_start
        )
        measured = read_result(Path(folder))
        few = read_few(Path(folder))
        other = read_other_steps(Path(folder))
        unseen = read_unseen(Path(folder))
        error = read_error(Path(folder)) or "\n".join(training.last_words)
    if profile and measured:
        save(conclude(measured, target=measured.program or ""), profile)
    watched = read_steps(measured, training.executed) if measured else None
    return replace(
        training,
        watched=watched or (_without_input(other) if other else None),
        few=0 if measured else few,
        unseen=unseen,
        explanation=first_claim(error) if training.returncode and error else None,
    )


def read_steps(measured: Measurement, executed: Sequence[Executed] = ()) -> Watched | None:
    """Summarise the steady phase of a measured training.

    The batch size comes from the device counters if there are any.
    """
    phase = measured.phases[-1]
    length_s = phase.end_s - phase.start_s
    if not (phase.steps and length_s > 0):
        return None
    found = conclude(measured, target=measured.program or "")
    slowest = next((stage for stage in found.stages if stage.is_bottleneck), None)
    named = f"{slowest.name} at {slowest.location}" if slowest and slowest.location else None
    examples = sum(count.examples or 0 for count in executed)
    steps = max((count.steps for count in executed), default=0)
    batch = examples / steps if steps and examples else _batch_seen(measured)
    return Watched(
        steps=phase.steps,
        step_ms=round(length_s / phase.steps * 1e3, 3),
        examples_per_s=round(batch * phase.steps / length_s, 1) if batch else None,
        input_wait_fraction=round(max(0.0, 1 - phase.device_busy_s / length_s), 4),
        slowest=named,
        mxu_idle_fraction=found.mxu_idle_fraction,
        has_mxu=bool(found.host and found.host.has_tpu),
    )


def _without_input(steps: Steps) -> Watched:
    rate = steps.examples and round(steps.examples / steps.step_ms * 1e3, 1)
    return Watched(steps.count, round(steps.step_ms, 3), rate, None, None)


def _batch_seen(measured: Measurement) -> float | None:
    """Return the measured batch size; None if only a compiled graph knows it."""
    if measured.kind == "tf.data" and not measured.settings.get("batch_size"):
        return None
    phase = measured.phases[-1]
    return phase.examples / phase.steps
