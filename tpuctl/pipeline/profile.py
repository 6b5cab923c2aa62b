"""Take a profile: what to measure in, verdict and numbers out."""

import datetime
import math
from dataclasses import replace

import tpuctl
from tpuctl.errors import UsageError
from tpuctl.pipeline.advice import Situation, advise
from tpuctl.pipeline.analyze import Case, Finding, build_case, count_vcpus, judge
from tpuctl.pipeline.attribution import Attribution, attribute
from tpuctl.pipeline.estimate import estimate_training_step
from tpuctl.pipeline.measure import measure
from tpuctl.pipeline.models import Device, Measurement, Phase, Profile, StepTimes, Window
from tpuctl.pipeline.request import DEFAULT_SECONDS, LONGEST_WAIT_S, Request
from tpuctl.pipeline.targets import parse_target
from tpuctl.pipeline.train import TEMPLATE, measure_training_step
from tpuctl.progress import OnProgress, silent

LOST_WORTH_A_NOTE = 0.005
NO_DEVICE = "no device step time was given: add --device-step-ms MS, --fit TYPE or --train"


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
    on_progress: OnProgress = silent,
) -> Profile:
    """Measure an input pipeline in a fresh process and say what limits it.

    `seconds` is how long to measure and bounds how long a batch may take to come. Takes that long
    plus the start of TensorFlow. `batch_size` is for folders and for data sets that do not batch.
    `fit` is a type of TPU: the step of `model` compiled for it stands in for the device.
    """
    _check(steps, seconds, batch_size, image_size, device_step_ms)
    _check_one_device({"--device-step-ms": device_step_ms, "--train": train, "--fit": fit})
    parsed = parse_target(target)
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
        wait_limit_s=LONGEST_WAIT_S if seconds is None else max(10.0, 2 * seconds),
    )
    measured = measure(request, on_progress=on_progress)
    return build_profile(measured, target=target, image_size=image_size, device=device)


def build_profile(
    measured: Measurement, *, target: str, image_size: int, device: Device | None
) -> Profile:
    """Draw the conclusions from a measurement. Pure but for the date."""
    parts = attribute(measured, measured.phases[0])
    case = build_case(measured, parts)
    finding = judge(case)
    vcpus = count_vcpus(case, finding.verdict, device)
    stages = tuple(
        replace(stage, is_bottleneck=stage.index == finding.bottleneck) for stage in parts.stages
    )
    window = case.device or case.free
    idle = _idle_fraction(case.device)
    times = window.step_times
    return Profile(
        kind=measured.kind,
        target=target,
        batch_size=measured.batch_size,
        image_size=image_size if measured.kind != "tf.data" else None,
        steps=window.steps,
        window=Window(window.start_s, window.end_s, _window_name(case)),
        step_ms=StepTimes(times.mean * 1e3, times.p50 * 1e3, times.p95 * 1e3) if device else None,
        pipeline_examples_per_s=case.examples_per_s,
        device_examples_per_s=case.device_examples_per_s,
        input_wait_fraction=case.wait_fraction,
        device_idle_fraction=idle,
        mxu_idle_fraction=idle,
        mxu_utilization=None,
        why_no_device=None if device else NO_DEVICE,
        device=device,
        verdict=finding.verdict,
        confidence=finding.confidence,
        headline=_headline(case, finding, parts),
        evidence=finding.evidence,
        cpu_ms_per_example=parts.cpu_s_per_example * 1000,
        stages=stages,
        residual=parts.residual,
        vcpus=vcpus,
        advice=advise(Situation(case, finding, vcpus, target, image_size)),
        overhead_fraction=_overhead(case.free),
        first_batch_s=measured.first_batch_s,
        input=measured.input,
        host=measured.host,
        signals=case.free.signals,
        device_signals=case.device.signals if case.device else None,
        settings=measured.settings,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        tpuctl_version=tpuctl.__version__,
        notes=_notes(measured),
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


def _idle_fraction(device: Phase | None) -> float | None:
    """The share of the window in which nothing ran on the device, so its MXU did not either."""
    return None if device is None else max(0.0, 1 - device.device_busy_s / device.wall_s)


def _overhead(phase: Phase) -> float:
    signals = phase.signals
    return signals.tool_cpu_s / max(1e-9, signals.cpu_s - signals.tool_cpu_s)


def _window_name(case: Case) -> str:
    if case.device is None:
        return "steady state without a device; the first batches dropped"
    step_ms = (case.device_step_s or 0.0) * 1e3
    return f"steady state with a device that takes {step_ms:.4g} ms per step; first batches dropped"


def _headline(case: Case, finding: Finding, parts: Attribution) -> str:
    stage = parts.stages[finding.bottleneck].name if finding.bottleneck is not None else ""
    cause = {
        "device": "The device is the limit: the input pipeline keeps up.",
        "vcpu": f"The vCPUs are the limit; {stage} takes most of their time.",
        "stolen": "The vCPUs are the limit, and other processes take a part of them.",
        "throttled": "The CPU quota of this container is the limit.",
        "gil": f"The Python interpreter lock is the limit: {stage} holds it.",
        "io": f"Waiting for data is the limit: {stage} waits and leaves the vCPUs idle.",
        "threadpool": f"The thread pool is the limit: {stage} blocks all of its threads.",
        "serial": f"One thread is the limit: {stage} does not run in parallel.",
        "bursty": "Batches come unevenly: fast enough on average, too late too often.",
        "startup": "Only the start is slow; from then on the pipeline keeps up.",
        "unknown": "The signals do not point at one cause.",
    }[finding.verdict]
    idle = _idle_fraction(case.device)
    return cause if idle is None else f"MXU idle {idle:.0%}. {cause}"


def _lost_while_decoding(phase: Phase) -> int:
    """Elements that went into a decoder and did not come out, beyond those still inside."""
    counts = {cost.path: cost for cost in phase.nodes}
    for path, skip in counts.items():
        below = [cost for cost in phase.nodes if cost.path[: len(path)] == path]
        if skip.path[-1] == "IgnoreErrors" and len(below) > 2:
            decode, read = below[1], below[2]
            inside = 2 * (decode.parallelism or 1) + 2 * (read.parallelism or 1)
            lost = read.elements - decode.elements - inside
            return lost if lost > LOST_WORTH_A_NOTE * read.elements else 0
    return 0


def _notes(measured: Measurement) -> tuple[str, ...]:
    found, notes = measured.input, list(measured.input.notes)
    if found.left_out_count:
        some = "; ".join(f"{path}: {reason}" for path, reason in found.left_out[:3])
        more = "; ..." if found.left_out_count > 3 else ""
        notes.append(f"{found.left_out_count:,} files were left out ({some}{more}).")
    if lost := _lost_while_decoding(measured.phases[0]):
        notes.append(f"About {lost:,} photographs could not be decoded while measuring.")
    if not measured.phases[0].nodes:
        notes.append("tf.data keeps no model of this pipeline (autotune is off): no stages.")
    missing = measured.phases[0].signals.missing
    if missing:
        notes.append(f"This machine does not tell: {', '.join(missing)}.")
    return tuple(notes)
