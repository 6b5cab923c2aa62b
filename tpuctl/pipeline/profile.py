"""Take a profile: what to measure in, verdict and numbers out."""

import math
from functools import partial

from tpuctl.errors import UsageError
from tpuctl.pipeline.conclude import build_profile
from tpuctl.pipeline.estimate import estimate_training_step
from tpuctl.pipeline.measure import measure
from tpuctl.pipeline.models import Device, Profile
from tpuctl.pipeline.presized import presized_sample
from tpuctl.pipeline.request import DEFAULT_SECONDS, LEAST_WAIT_S, LONGEST_WAIT_S, Request
from tpuctl.pipeline.targets import parse_target
from tpuctl.pipeline.train import TEMPLATE, measure_training_step
from tpuctl.pipeline.verify import verify as verify_advice
from tpuctl.progress import OnProgress, silent


def profile_target(
    target: str,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    batch_size: int = 32,
    image_size: int = 224,
    device_step_ms: float | None = None,
    train: bool = False,
    fit: str | None = None,
    model: str = TEMPLATE,
    device_source: str | None = None,
    verify: bool = False,
    deep: bool = False,
    on_progress: OnProgress = silent,
) -> Profile:
    """Measure an input pipeline in a fresh process and say what limits it.

    `seconds` is how long to measure and bounds how long a batch may take to come. Takes that long
    plus the start of TensorFlow. `batch_size` is for folders and for data sets that do not batch.
    `fit` is a type of TPU: the step of `model` compiled for it stands in for the device. `verify`
    tries the advice, which takes a process and two seconds for each piece, three times. `deep`
    traces the operations too, for a few seconds and 5 % of the vCPUs at most.
    """
    _check(steps, seconds, batch_size, image_size, device_step_ms)
    _check_one_device({"--device-step-ms": device_step_ms, "--train": train, "--fit": fit})
    parsed = parse_target(target, on_progress=on_progress)
    device = None if device_step_ms is None else Device(device_step_ms, device_source or "given")
    if fit:
        device = estimate_training_step(
            model, fit, batch_size=batch_size, image_size=image_size, on_progress=on_progress
        )
    if train:
        from tpuctl.launch.catalog import find_template

        device = measure_training_step(
            find_template(TEMPLATE), batch_size=batch_size, on_progress=on_progress
        )
    request = Request(
        target=parsed,
        batch_size=batch_size,
        image_size=image_size,
        seconds=seconds or DEFAULT_SECONDS,
        steps=steps,
        device_step_ms=device.step_ms if device else None,
        wait_limit_s=LONGEST_WAIT_S if seconds is None else max(LEAST_WAIT_S, 2 * seconds),
    )
    measured = measure(request, on_progress=on_progress, deep=deep)
    profile = build_profile(measured, target=target, image_size=image_size, device=device)
    if not verify:
        return profile
    return verify_advice(
        profile,
        request,
        measure=partial(measure, on_progress=silent),
        presize=presized_sample,
        on_progress=on_progress,
    )


def _check(
    steps: int | None,
    seconds: float | None,
    batch_size: int,
    image_size: int,
    device_step_ms: float | None,
) -> None:
    positive = {
        "--steps": steps,
        "--seconds": seconds,
        "--batch-size": batch_size,
        "--image-size": image_size,
        "--device-step-ms": device_step_ms,
    }
    for flag, value in positive.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(
                f"{flag} must be a number above 0, not {value:g}.",
                hint=f"Give another value or leave {flag} out.",
            )


def _check_one_device(flags: dict[str, object]) -> None:
    given = [flag for flag, value in flags.items() if value not in (None, False)]
    if len(given) > 1:
        raise UsageError(f"Both {' and '.join(given)} were given.", hint="Choose one of them.")
