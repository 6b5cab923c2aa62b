"""Take a measurement in a fresh process: start it, listen, and end it whatever happens."""

import contextlib
import importlib.util
import math
from dataclasses import replace
from functools import partial
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.errors import MissingExtraError, UsageError
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.deep.linking import read_files
from tpuctl.profiling.device_step import TEMPLATE, estimate_training_step, measure_training_step
from tpuctl.profiling.models import Device, Measurement, Profile
from tpuctl.profiling.presized_sample import presized_sample
from tpuctl.profiling.request import (
    DEFAULT_SECONDS,
    LEAST_WAIT_S,
    LONGEST_WAIT_S,
    Request,
    parse_target,
    try_alone,
)
from tpuctl.profiling.verify import verify as verify_advice
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.usercode.child import start_child
from tpuctl.usercode.scratch import scratch_folder

START_LIMIT_S = 180.0
PREFIX = "tpuctl-trace-"
MORE_TIME = "If it is slow and not stuck, give it more time with --seconds."


def measure(request: Request, *, on_progress: OnProgress, deep: bool = False) -> Measurement:
    """Measure a pipeline in a child process, which is gone when this returns.

    `deep` traces it as well; of the traces only what they show is left then.

    Raises what the child raised, and TargetError when it hangs or dies.
    """
    if request.target.kind == "photos" and importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("Profiling an input pipeline", extra="tf", module="tensorflow")
    with contextlib.ExitStack() as stack:
        if deep:
            scratch = stack.enter_context(scratch_folder(PREFIX))
            request = replace(request, trace_folder=str(scratch.path))
        measured = _measured(request, on_progress)
        if measured.trace_files:
            on_progress(Progress("profile", 0, None, "", "reading the trace"))
        return read_files(measured)


def _measured(request: Request, on_progress: OnProgress) -> Measurement:
    limits_s = {"starting": START_LIMIT_S}
    with start_child("tpuctl.profiling.measure.child") as child:
        child.ask(to_plain(request))
        for message in child.listen(limits_s, request.wait_limit_s, more_time=MORE_TIME):
            if "result" in message:
                return from_plain(Measurement, message["result"])
            if "error" in message:
                raise child.error(message)
            on_progress(_progress(message))
        raise child.death("measuring", hint=try_alone(request.target, iterate=True))


def _progress(message: dict[str, Any]) -> Progress:
    return Progress("profile", round(message["done_s"], 1), None, "s", message["phase"])


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
        from tpuctl.training.catalog import find_template

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
