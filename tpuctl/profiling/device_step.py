"""The device's step time: estimated by compiling a model for a TPU, or measured by training."""

import math
import sys
from pathlib import Path
from typing import Any

from tpuctl.codec import read_json
from tpuctl.compile.fit import fit
from tpuctl.errors import InvalidInputError, TargetError
from tpuctl.hardware.types import describe
from tpuctl.profiling.models import Device
from tpuctl.progress import OnProgress, Progress
from tpuctl.units import format_duration
from tpuctl.usercode.scratch import scratch_folder

STEPS = 8
LIMIT_S = 900.0
HINT = "Give the step time instead: --device-step-ms MS"


def estimate_training_step(
    model: str, accelerator_type: str, *, batch_size: int, image_size: int, on_progress: OnProgress
) -> Device:
    """Compile a model for a TPU and estimate its step time, an interval, with the roofline model.

    `batch_size` is that of one host. Raises InvalidInputError if the model does not fit.
    """
    kind = describe(accelerator_type)
    found = fit(
        model,
        accelerator_type,
        batch_size=batch_size * kind.workers,
        image_size=image_size,
        on_progress=on_progress,
    )
    if not found.fits:
        raise InvalidInputError(
            f"{model} with a batch of {found.batch_size:,} does not fit a {kind.accelerator_type}.",
            hint=f"tpuctl fit {model} --accelerator-type {accelerator_type} --max-batch",
        )
    step = found.step_ms_estimate
    low, high = (format_duration(ms / 1e3) for ms in (step.low, step.high))
    return Device(
        # The geometric mean, from which both bounds differ by the same factor.
        step_ms=math.sqrt(step.low * step.high),
        source=f"compiled: {model} on a {kind.accelerator_type} takes between {low} and {high}",
        low_ms=step.low,
        high_ms=step.high,
    )


def measure_training_step(template: Path, *, batch_size: int, on_progress: OnProgress) -> Device:
    """Run a few steps of a training template on fake data and return its median step time.

    Raises TargetError if the template fails or does not report how long a step took.
    """
    on_progress(Progress("training step", 0, None, "", "running a real training step first"))
    with scratch_folder("tpuctl-train-") as scratch:
        command = [sys.executable, str(template), "--data", "fake", "--steps", str(STEPS)]
        command += ["--batch-size", str(batch_size), "--out", str(scratch.path)]
        try:
            scratch.run(command, limit_s=LIMIT_S)
        except TargetError as error:
            raise TargetError(
                f"The training template {template} failed: {error}", hint=HINT
            ) from error
        step_ms = _median_step_ms(scratch.path / "result.json", template)
    on_progress(Progress("training step", 1, 1, "", f"{step_ms:.1f} ms"))
    return Device(step_ms, f"measured: {template.name}, batch {batch_size}, on this machine")


def _median_step_ms(place: Path, template: Path) -> float:
    try:
        result: Any = read_json(place)
        step_ms = float(result["step_ms"]["p50"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"The training template {template} left no step time in {place.name}.", hint=HINT
        ) from error
    if not step_ms > 0:
        raise TargetError(f"The training template {template} reports a step of {step_ms} ms.")
    return step_ms
