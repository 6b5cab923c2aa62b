"""From a measurement to a profile: attribution, verdict, vCPUs needed, advice and notes. Pure."""

import datetime
from dataclasses import replace
from functools import partial

import tpuctl
from tpuctl.profiling.advice import advise
from tpuctl.profiling.case import (
    CPU_REGIMES,
    PYTHON_KINDS,
    AdviceInputs,
    Case,
    Finding,
    build_case,
    lock_is_held,
    name_idle,
    serial_runs,
)
from tpuctl.profiling.likely import HALF_CERTAIN
from tpuctl.profiling.models import Device, Measurement, Profile, StepTimes, Vcpus, Verdict, Window
from tpuctl.profiling.reference import load_facts
from tpuctl.profiling.verdict import judge
from tpuctl.profiling.whatif import Scaling, what_if
from tpuctl.profiling.windows import Phase

# Avoids dividing by zero for pipelines that hardly use a vCPU.
LEAST_BUSY = 0.01
LOST_WORTH_A_NOTE = 0.005
MOST = 0.5
NO_DEVICE = "no device step time was given: add --device-step-ms MS, --fit TYPE or --train"


def count_vcpus(case: Case, verdict: Verdict, device: Device | None = None) -> Vcpus:
    """Estimate how many vCPUs would keep the device busy: batch size x CPU per example / step time.

    The CPU time per example grows slightly with the number of vCPUs. No estimate is given for
    verdicts under which more vCPUs would not help. If the device's step time is an interval, so is
    the estimate.
    """
    signals = case.free.signals
    used = signals.cpu_s / signals.wall_s

    def refused(why: str) -> Vcpus:
        return Vcpus(signals.vcpus_usable, used, None, None, None, why)

    if case.device_step_s is None:
        return refused("no device step time: give --device-step-ms or --train")
    if verdict not in CPU_REGIMES:
        return refused(f"the verdict is {verdict}: more vCPUs would not help")
    scaling, step_ms = scaling_of(case), case.device_step_s * 1e3
    slow_ms = device.high_ms if device and device.high_ms else step_ms
    fast_ms = device.low_ms if device and device.low_ms else step_ms
    held = max(scaling.serial_ms, scaling.serial_high_ms) * scaling.cpu_high
    held_ms = case.measured.batch_size * held
    if held_ms > fast_ms:
        holds = "holds" if scaling.serial_ms else "may hold"
        return refused(
            f"Python code {holds} the interpreter lock for {held_ms:.3g} ms of each batch, which "
            "more vCPUs cannot shorten"
        )
    name, alone_ms = _longest_thread(case)
    if alone_ms > fast_ms and case.measured.kind not in PYTHON_KINDS:
        return refused(
            f"one thread runs {name} and works {alone_ms:.3g} ms for each batch, which more vCPUs "
            "cannot shorten"
        )
    fed = partial(
        what_if,
        batch_size=case.measured.batch_size,
        cpu_ms_per_example=case.parts.cpu_s_per_example * 1e3,
        vcpus=signals.vcpus_usable,
        scaling=scaling,
    )
    needed = fed(step_ms=step_ms).vcpus_needed
    alone = case.measured.lanes == 1 and not case.has_threads
    if alone and needed and needed > max(1.0, signals.vcpus_usable):
        return refused(f"it produces one example at a time, which cannot use {needed:.3g} vCPUs")
    return Vcpus(
        signals.vcpus_usable,
        used,
        needed,
        fed(step_ms=slow_ms).vcpus_low,
        fed(step_ms=fast_ms).vcpus_high,
        None,
    )


def _longest_thread(case: Case) -> tuple[str, float]:
    """The stage with most of a single thread's work, and that thread's work per batch."""
    batch = case.measured.batch_size
    longest, name = 0.0, ""
    for indices, _ in serial_runs(case):
        stages = [case.parts.stages[index] for index in indices]
        spent_ms = batch * sum(stage.cpu_ms_per_example for stage in stages)
        if spent_ms > longest:
            heaviest = max(stages, key=lambda stage: stage.cpu_ms_per_example)
            longest, name = spent_ms, heaviest.name
    return name, longest


def scaling_of(case: Case) -> Scaling:
    """What predictions for other numbers of vCPUs are based on: this run and published facts."""
    known, signals = load_facts("scaling.json"), case.free.signals
    busy = signals.cpu_s / signals.wall_s + case.others * signals.vcpus_visible
    in_threads = case.measured.kind not in PYTHON_KINDS
    python_ms = sum(each.cpu_ms_per_example for each in case.parts.stages if each.runs_python)
    # The lock is not held longer than the run took. On one vCPU, its probe is seldom late.
    held_ms = min(python_ms, 1000 / case.examples_per_s) if in_threads else 0.0
    return Scaling(
        busy_vcpus=max(LEAST_BUSY, min(busy, float(signals.vcpus_visible))),
        growth=known["growth_per_doubling"],
        growth_low=known["growth_least"],
        growth_high=known["growth_most"],
        cpu_low=case.parts.low_factor,
        cpu_high=case.parts.high_factor,
        unevenness=case.free.unevenness or 0.0,
        batches_ahead=known["batches_ahead"],
        serial_ms=python_ms if lock_is_held(case) else 0.0,
        serial_high_ms=held_ms,
    )


def build_profile(
    measured: Measurement, *, target: str, image_size: int, device: Device | None
) -> Profile:
    """Draw the conclusions from a measurement. Pure except for the date."""
    case = build_case(measured)
    parts, finding = case.parts, judge(case)
    vcpus = count_vcpus(case, finding.verdict, device)
    stages = tuple(
        replace(stage, is_bottleneck=stage.index == finding.bottleneck) for stage in parts.stages
    )
    window, signals = case.device or case.free, case.free.signals
    # The share of the window in which neither the device nor its MXU was busy.
    idle = max(0.0, 1 - case.device.device_busy_s / case.device.wall_s) if case.device else None
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
        why_no_device=None if device else NO_DEVICE,
        device=device,
        verdict=finding.verdict,
        confidence=finding.confidence,
        headline=_headline(case, finding, idle, device),
        evidence=finding.evidence,
        cpu_ms_per_example=parts.cpu_s_per_example * 1000,
        stages=stages,
        residual=parts.residual,
        vcpus=vcpus,
        advice=advise(AdviceInputs(case, finding, vcpus, target, image_size)),
        overhead_fraction=signals.tool_cpu_s / (case.free.wall_s * signals.vcpus_usable),
        first_batch_s=measured.first_batch_s,
        input=measured.input,
        host=measured.host,
        signals=signals,
        device_signals=case.device.signals if case.device else None,
        settings=measured.settings,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        tpuctl_version=tpuctl.__version__,
        notes=_notes(measured),
        deep=measured.deep,
        scaling=scaling_of(case),
    )


def _window_name(case: Case) -> str:
    if case.measured.program:
        return "training steps as they ran, without the first ones"
    if case.device is None:
        return "steady state without a device, without the first batches"
    step_ms = (case.device_step_s or 0.0) * 1e3
    return f"steady state with a device step of {step_ms:.4g} ms, without the first batches"


def _headline(case: Case, finding: Finding, idle: float | None, device: Device | None) -> str:
    found = finding.bottleneck
    stage = user = "the pipeline" if found is None else case.parts.stages[found].name
    if case.measured.program and case.parts.residual.share_of_cpu > MOST:
        user = "the training"
    holder = "Python code between the stages" if found is None else stage
    serial = f"{stage} does not run in parallel."
    if case.overhead > MOST or case.hands_over:
        serial = "most of its time is spent on passing single elements between stages."
    cause = {
        "device": "The device is the bottleneck: the input pipeline keeps up.",
        "vcpu": f"The vCPUs are the bottleneck; {user} uses most of their time.",
        "stolen": "The vCPUs are the bottleneck, and other processes use part of them.",
        "throttled": "The CPU quota of this container is the bottleneck.",
        "gil": f"The Python interpreter lock (GIL) is the bottleneck: {holder} holds it.",
        "io": f"Waiting for data is the bottleneck: {stage} waits while vCPUs are idle.",
        "threadpool": f"The thread pool is the bottleneck: {stage} fills all of its threads.",
        "serial": f"A single thread is the bottleneck: {serial}",
        "transfer": "Copying batches to the device is the bottleneck, not producing them.",
        "bursty": "Batches arrive unevenly: fast enough on average, but often too late.",
        "startup": "Only the start is slow; after that the pipeline keeps up.",
        "unknown": "The measurements do not point to a single cause.",
    }[finding.verdict]
    if finding.confidence <= HALF_CERTAIN and finding.verdict != "unknown":
        cause = cause.replace(" is the ", " is probably the ").replace(
            " are the ", " are probably the "
        )
    if idle is None:
        return cause
    name = name_idle(device, case.measured.host)
    return f"{name[0].upper()}{name[1:]} {idle:.0%}. {cause}"


def _lost_while_decoding(phase: Phase) -> int:
    """Elements that entered a decoder but did not leave it, except those still in flight."""
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
            "No stages: tf.data keeps no model of a data set that a strategy distributes. "
            "Profile its pipeline alone: tpuctl profile run path.py:function --deep."
        )
    if measured.kind == "iterable" and (measured.lanes or 1) > 1:
        return (
            f"No stages: {measured.chain.name} runs in {measured.lanes} processes of Keras, which "
            "cannot be observed. Profile it with workers=1 to see its functions."
        )
    if measured.kind in PYTHON_KINDS:
        return "No stages: none of the pipeline's functions was observed running."
    return "No stages: tf.data keeps no model of this pipeline (autotune is off)."


def _notes(measured: Measurement) -> tuple[str, ...]:
    found, notes = measured.input, list(measured.input.notes)
    if found.left_out_count:
        some = "; ".join(f"{path}: {reason}" for path, reason in found.left_out[:3])
        more = "; ..." if found.left_out_count > 3 else ""
        notes.append(f"{found.left_out_count:,} files were skipped ({some}{more}).")
    if lost := _lost_while_decoding(measured.phases[0]):
        notes.append(f"About {lost:,} images could not be decoded while measuring.")
    if measured.deep and measured.deep.note:
        notes.append(measured.deep.note)
    if not (measured.phases[0].nodes or measured.phases[0].costs or measured.traced):
        notes.append(_no_stages(measured))
    missing = measured.phases[0].signals.missing
    if missing:
        notes.append(f"Not available on this machine: {', '.join(missing)}.")
    return tuple(notes)
