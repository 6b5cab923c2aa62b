"""A training step on a TPU that is not here, compiled for it, to stand in for the device."""

import math

from tpuctl.compile.fitting import fit
from tpuctl.errors import InvalidInputError
from tpuctl.hardware.types import describe
from tpuctl.pipeline.models import Device
from tpuctl.progress import OnProgress
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
