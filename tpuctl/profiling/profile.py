"""Profile an input pipeline: measure it in a child process and draw the conclusions."""

import math
from dataclasses import replace
from functools import partial

from tpuctl.codec import from_plain, to_plain
from tpuctl.errors import UsageError
from tpuctl.lazy import need_modules
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.models import Device, Measurement, Profile
from tpuctl.profiling.request import (
    DEFAULT_SECONDS,
    LEAST_WAIT_S,
    LONGEST_WAIT_S,
    Request,
    parse_target,
    try_alone,
)
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.usercode.child import start_child
from tpuctl.usercode.scratch import scratch_folder

# Importing a framework from an uncached network disk may take minutes.
START_LIMIT_S = 180.0
MORE_TIME = "If it is slow but not stuck, give it more time with --seconds."
TEMPLATE = "images"
USUAL_BATCH = 32


def measure(request: Request, *, on_progress: OnProgress, deep: bool = False) -> Measurement:
    """Measure a pipeline in a child process, which has ended when this function returns.

    `deep` also traces it; the trace files are read and removed.

    Raises what the child raised, and TargetError if it hangs or dies.
    """
    if request.target.kind == "photos":
        need_modules("Profiling an input pipeline", "tensorflow", extra="tf")
    if not deep:
        return _measure_in_child(request, on_progress)
    from tpuctl.profiling.trace.host_trace import read_host_traces

    with scratch_folder("tpuctl-trace-") as scratch:
        request = replace(request, trace_folder=str(scratch.path))
        measured = _measure_in_child(request, on_progress)
        if measured.trace_files:
            on_progress(Progress("profile", 0, None, "", "reading the trace"))
        return read_host_traces(measured)


def _measure_in_child(request: Request, on_progress: OnProgress) -> Measurement:
    limits_s = {"starting": START_LIMIT_S}
    with start_child("tpuctl.profiling.measure.child") as child:
        child.ask(to_plain(request))
        for message in child.listen(limits_s, request.wait_limit_s, more_time=MORE_TIME):
            if "result" in message:
                return from_plain(Measurement, message["result"])
            if "error" in message:
                raise child.error(message)
            done_s = round(message["done_s"], 1)
            on_progress(Progress("profile", done_s, None, "s", message["phase"]))
        raise child.exit_error("measuring", hint=try_alone(request.target, iterate=True))


def profile_target(
    target: str,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    batch_size: int | None = None,
    image_size: int = 224,
    device_step_ms: float | None = None,
    train: bool = False,
    fit: str | None = None,
    model: str = TEMPLATE,
    verify: bool = False,
    deep: bool = False,
    on_progress: OnProgress = silent,
) -> Profile:
    """Measure an input pipeline in a fresh process and find its bottleneck.

    `seconds` is how long to measure, and limits how long a batch may take. The call takes that long
    plus the start of TensorFlow. `batch_size` (32) is for folders and for data sets that do not
    batch; unless it is given, a function keeps its own default for it.
    `fit` is an accelerator type: the step of `model` is compiled for it to estimate the device's
    step time. `verify` tests the advice: three rounds of two seconds, in a process per change.
    `deep` also traces the operations, for a few seconds and within 5 % of the vCPUs.
    """
    _check_positive(
        {
            "--steps": steps,
            "--seconds": seconds,
            "--batch-size": batch_size,
            "--image-size": image_size,
            "--device-step-ms": device_step_ms,
        }
    )
    _check_one_device({"--device-step-ms": device_step_ms, "--train": train, "--fit": fit})
    parsed = parse_target(target, on_progress=on_progress)
    examples = batch_size or USUAL_BATCH
    device = None if device_step_ms is None else Device(device_step_ms, "given")
    if fit or train:
        device = _device_step(
            fit, model=model, batch_size=examples, image_size=image_size, on_progress=on_progress
        )
    request = Request(
        target=parsed,
        batch_size=examples,
        keeps_batch_size=batch_size is None,
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
    from tpuctl.profiling.verify import presized_sample, verify_advice

    return verify_advice(
        profile,
        request,
        measure=partial(measure, on_progress=silent),
        presize=presized_sample,
        on_progress=on_progress,
    )


def _device_step(
    fit: str | None, *, model: str, batch_size: int, image_size: int, on_progress: OnProgress
) -> Device:
    """Estimate the step time of `model` on type `fit`, or measure a template's on this device."""
    from tpuctl.profiling.device_step import estimate_training_step, measure_training_step

    if fit:
        return estimate_training_step(
            model, fit, batch_size=batch_size, image_size=image_size, on_progress=on_progress
        )
    from tpuctl.training.catalog import find_template

    template = find_template(TEMPLATE)
    return measure_training_step(template, batch_size=batch_size, on_progress=on_progress)


def _check_positive(options: dict[str, float | None]) -> None:
    for flag, value in options.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(
                f"{flag} must be a number above 0, not {value:g}.",
                hint=f"Give another value or leave {flag} out.",
            )


def _check_one_device(flags: dict[str, object]) -> None:
    given = [flag for flag, value in flags.items() if value not in (None, False)]
    if len(given) > 1:
        raise UsageError(f"Both {' and '.join(given)} were given.", hint="Choose one of them.")
