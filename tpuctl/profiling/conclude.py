"""How many vCPUs a device would need, and what a prediction for other vCPUs rests on. Pure."""

import datetime
from dataclasses import replace
from functools import partial

import tpuctl
from tpuctl.profiling.advice import advise
from tpuctl.profiling.attribution import Attribution, attribute
from tpuctl.profiling.attribution_python import attribute_counted
from tpuctl.profiling.models import (
    Device,
    Measurement,
    Phase,
    Profile,
    StepTimes,
    Vcpus,
    Verdict,
    Window,
)
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.rule_inputs import CPU_REGIMES, Case, Finding, Situation, build_case
from tpuctl.profiling.verdict import judge, lock_is_held
from tpuctl.profiling.whatif import Scaling, what_if

LEAST_BUSY = 0.01


def count_vcpus(case: Case, verdict: Verdict, device: Device | None = None) -> Vcpus:
    """Say how many vCPUs would keep the device busy: batch size x CPU per example / step time.

    An example takes a little more of that on more vCPUs. Refused outside the regimes in which vCPUs
    are what is missing. Where the step time of the device is an interval, so is the answer.
    """
    signals = case.free.signals
    used = signals.cpu_s / signals.wall_s

    def refused(why: str) -> Vcpus:
        return Vcpus(signals.vcpus_usable, used, None, None, None, why)

    if case.device_step_s is None:
        return refused("no device step time: give --device-step-ms or --train")
    if verdict not in CPU_REGIMES:
        return refused(f"the verdict is {verdict}: vCPUs are not what is missing")
    scaling, step_ms = scaling_of(case), case.device_step_s * 1e3
    slow_ms = device.high_ms if device and device.high_ms else step_ms
    fast_ms = device.low_ms if device and device.low_ms else step_ms
    held_ms = case.measured.batch_size * scaling.serial_ms * scaling.cpu_high
    if held_ms > fast_ms:
        return refused(f"Python holds its lock for {held_ms:.3g} ms of a batch, whatever the vCPUs")
    fed = partial(
        what_if,
        batch_size=case.measured.batch_size,
        cpu_ms_per_example=case.parts.cpu_s_per_example * 1e3,
        vcpus=signals.vcpus_usable,
        scaling=scaling,
    )
    return Vcpus(
        signals.vcpus_usable,
        used,
        fed(step_ms=step_ms).vcpus_needed,
        fed(step_ms=slow_ms).vcpus_low,
        fed(step_ms=fast_ms).vcpus_high,
        None,
    )


def scaling_of(case: Case) -> Scaling:
    """What a prediction for other vCPUs rests on: this run, and a dated fact about others."""
    known, signals = load_facts("scaling.json"), case.free.signals
    busy = signals.cpu_s / signals.wall_s + case.others * signals.vcpus_visible
    holding = [each for each in case.parts.stages if each.runs_python and lock_is_held(case)]
    return Scaling(
        busy_vcpus=max(LEAST_BUSY, min(busy, float(signals.vcpus_visible))),
        growth=known["growth_per_doubling"],
        growth_low=known["growth_least"],
        growth_high=known["growth_most"],
        cpu_low=case.parts.low_factor,
        cpu_high=case.parts.high_factor,
        unevenness=case.free.unevenness or 0.0,
        batches_ahead=known["batches_ahead"],
        serial_ms=sum(stage.cpu_ms_per_example for stage in holding),
    )


LOST_WORTH_A_NOTE = 0.005
MOST = 0.5
NO_DEVICE = "no device step time was given: add --device-step-ms MS, --fit TYPE or --train"


def build_profile(
    measured: Measurement, *, target: str, image_size: int, device: Device | None
) -> Profile:
    """Draw the conclusions from a measurement. Pure but for the date."""
    case = case_of(measured)
    parts, finding = case.parts, judge(case)
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
        image_size=image_size if measured.kind in ("photos", "shards") else None,
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
        deep=measured.deep,
        scaling=scaling_of(case),
    )


def case_of(measured: Measurement) -> Case:
    """Attribute the CPU time of a measurement, and lay out what the rules look at."""
    free = measured.phases[0]
    attribution = attribute_counted if free.costs else attribute
    parts = attribution(measured, free)
    return build_case(measured, without_training(parts) if measured.program else parts)


def without_training(parts: Attribution) -> Attribution:
    """Leave out the CPU time of the training itself: what no stage claims is mostly its."""
    cpu_s = sum(stage.cpu_ms_per_example for stage in parts.stages) / 1000
    return replace(parts, cpu_s_per_example=cpu_s) if cpu_s else parts


def _idle_fraction(device: Phase | None) -> float | None:
    """The share of the window in which nothing ran on the device, so its MXU did not either."""
    return None if device is None else max(0.0, 1 - device.device_busy_s / device.wall_s)


def _overhead(phase: Phase) -> float:
    """The share of the vCPUs that measuring took; of a pipeline that waits it takes nothing."""
    return phase.signals.tool_cpu_s / (phase.wall_s * phase.signals.vcpus_usable)


def _window_name(case: Case) -> str:
    if case.measured.program:
        return "steps of the training as it ran, the first ones dropped"
    if case.device is None:
        return "steady state without a device; the first batches dropped"
    step_ms = (case.device_step_s or 0.0) * 1e3
    return f"steady state with a device that takes {step_ms:.4g} ms per step; first batches dropped"


def _headline(case: Case, finding: Finding, parts: Attribution) -> str:
    found = finding.bottleneck
    stage = "the pipeline" if found is None else parts.stages[found].name
    serial = f"{stage} does not run in parallel."
    if parts.residual.share_of_cpu > MOST:
        serial = "most of its time goes into passing elements on."
    cause = {
        "device": "The device is the limit: the input pipeline keeps up.",
        "vcpu": f"The vCPUs are the limit; {stage} takes most of their time.",
        "stolen": "The vCPUs are the limit, and other processes take a part of them.",
        "throttled": "The CPU quota of this container is the limit.",
        "gil": f"The Python interpreter lock is the limit: {stage} holds it.",
        "io": f"Waiting for data is the limit: {stage} waits and leaves the vCPUs idle.",
        "threadpool": f"The thread pool is the limit: {stage} fills all of its threads.",
        "serial": f"One thread is the limit: {serial}",
        "transfer": "Moving batches to the device is the limit, not making them.",
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


def _no_stages(measured: Measurement) -> str:
    if measured.settings.get("distributed"):
        return (
            "tf.data keeps no model of a data set that a strategy deals out to devices: no stages. "
            "Profile its pipeline alone: tpuctl profile run path.py:function --deep."
        )
    if measured.kind in ("torch", "grain", "iterable"):
        return "None of the pipeline's functions was seen at work: no stages."
    return "tf.data keeps no model of this pipeline (autotune is off): no stages."


def _notes(measured: Measurement) -> tuple[str, ...]:
    found, notes = measured.input, list(measured.input.notes)
    if found.left_out_count:
        some = "; ".join(f"{path}: {reason}" for path, reason in found.left_out[:3])
        more = "; ..." if found.left_out_count > 3 else ""
        notes.append(f"{found.left_out_count:,} files were left out ({some}{more}).")
    if lost := _lost_while_decoding(measured.phases[0]):
        notes.append(f"About {lost:,} photographs could not be decoded while measuring.")
    if measured.deep and measured.deep.note:
        notes.append(measured.deep.note)
    if not (measured.phases[0].nodes or measured.phases[0].costs or measured.traced):
        notes.append(_no_stages(measured))
    missing = measured.phases[0].signals.missing
    if missing:
        notes.append(f"This machine does not tell: {', '.join(missing)}.")
    return tuple(notes)
