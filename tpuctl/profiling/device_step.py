"""A training step on a TPU that is not here, compiled for it, to stand in for the device."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tpuctl.compile.fit import fit
from tpuctl.errors import InvalidInputError, TargetError
from tpuctl.hardware.types import describe
from tpuctl.profiling.models import Device
from tpuctl.progress import OnProgress, Progress
from tpuctl.units import format_duration


def estimate_training_step(
    model: str, accelerator_type: str, *, batch_size: int, image_size: int, on_progress: OnProgress
) -> Device:
    """Compile a model for a TPU and take its step time, an interval, from the roofline.

    `batch_size` is what one host feeds. Raises InvalidInputError where the model does not fit.
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
            hint=f"tpuctl fit {model} --type {accelerator_type} --max-batch",
        )
    step = found.step_ms_estimate
    low, high = (format_duration(ms / 1e3) for ms in (step.low, step.high))
    return Device(
        # In the middle by ratio: the bounds are as many times below as above.
        step_ms=math.sqrt(step.low * step.high),
        source=f"compiled: {model} on a {kind.accelerator_type} takes between {low} and {high}",
        low_ms=step.low,
        high_ms=step.high,
    )


STEPS = 8
LIMIT_S = 900.0
TEMPLATE = "images"


def measure_training_step(template: Path, *, batch_size: int, on_progress: OnProgress) -> Device:
    """Run a few steps of a training template on fake data and take its median step time.

    Raises TargetError when the template fails or does not say how long a step took.
    """
    on_progress(Progress("training step", 0, None, "", "runs a real training step first"))
    with tempfile.TemporaryDirectory(prefix="tpuctl-train-") as folder:
        command = [sys.executable, str(template), "--data", "fake", "--steps", str(STEPS)]
        command += ["--batch-size", str(batch_size), "--out", folder]
        result = _run(command, template)
        if result.returncode:
            words = result.stderr.strip().splitlines() or result.stdout.strip().splitlines()
            raise TargetError(
                f"The training template {template} failed with code {result.returncode}: "
                f"{words[-1][:300] if words else 'it said nothing'}",
                hint="Give the step time instead: --device-step-ms MS",
            )
        step_ms = _median_step_ms(Path(folder) / "result.json", template)
    on_progress(Progress("training step", 1, 1, "", f"{step_ms:.1f} ms"))
    return Device(step_ms, f"measured: {template.name}, batch {batch_size}, on this machine")


def _run(command: list[str], template: Path) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise TargetError(
            f"The training template {template} took longer than {LIMIT_S:.0f} s for {STEPS} steps.",
            hint="Give the step time instead: --device-step-ms MS",
        ) from error


def _median_step_ms(place: Path, template: Path) -> float:
    try:
        result: Any = json.loads(place.read_bytes())
        step_ms = float(result["step_ms"]["p50"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"The training template {template} left no step time in {place.name}.",
            hint="Give the step time instead: --device-step-ms MS",
        ) from error
    if not step_ms > 0:
        raise TargetError(f"The training template {template} reports a step of {step_ms} ms.")
    return step_ms
