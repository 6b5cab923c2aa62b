"""From a trace to a verdict: a trace shows when devices waited, but not always why. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from tpuctl.profiling.case import Finding
from tpuctl.profiling.models import Verdict
from tpuctl.profiling.reference import thresholds
from tpuctl.profiling.trace.idle import OTHERS_BUSY, Idle
from tpuctl.profiling.trace.intervals import length
from tpuctl.profiling.trace.models import IdleClass
from tpuctl.profiling.trace.reading import INPUT_CLASSES, Reading
from tpuctl.profiling.trace.stages import InputPipeline, by_operation
from tpuctl.profiling.trace.xspace import PS_PER_S

GROUPS: dict[str, tuple[str, ...]] = {
    "input": INPUT_CLASSES,
    "startup": ("compile", "load", "memory"),
    "transfer": ("to_device", "from_device", "dma_map", "layout", "outfeed"),
}
# A cause with less than half of the idle time does not explain it.
DECISIVE = 0.5
READS = ("ReadFile", "TFRecord", "LoadFile", "GcsRead")
PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorNext")
VERDICT_WORDS: dict[str, str] = {
    "device": "The devices are the bottleneck: they hardly ever wait.",
    "startup": "Only the start is slow; during the steps the devices hardly wait.",
    "transfer": "Copies between host and device are the bottleneck.",
    "vcpu": "The input pipeline is the bottleneck, and it keeps all vCPUs busy.",
    "io": "The input pipeline is the bottleneck, and it mostly reads.",
    "serial": "The input pipeline is the bottleneck: one of its threads is always busy.",
    "unknown": "This trace does not show a single cause.",
}

INPUT_WORDS = "The input is late, but this trace does not show why."


def judge(reading: Reading) -> Finding:
    """Find out what the devices wait for, or that this trace does not show it."""
    return _judge_host(reading) if reading.idle is None else _judge_devices(reading, reading.idle)


def headline(reading: Reading, finding: Finding) -> str:
    """The finding in one or two sentences."""
    cause = VERDICT_WORDS[finding.verdict]
    waited = reading.input_wait_fraction
    if finding.verdict == "unknown" and waited and waited >= thresholds().starved_wait:
        cause = INPUT_WORDS
    if reading.idle is None:
        return cause
    what = "MXU" if reading.devices[0].kind == "TPU" else "Device"
    return f"{what} idle {reading.idle.fraction:.0%}. {cause}"


def _judge_devices(reading: Reading, idle: Idle) -> Finding:
    starved, steady = thresholds().starved_wait, reading.steady
    lines = (_busy_line(reading, idle),)
    if idle.fraction < starved:
        return Finding("device", 0.95, lines)
    if steady and steady.fraction < starved:
        outside_s = (idle.fraction * idle.window_ps - steady.fraction * steady.window_ps) / PS_PER_S
        line = (
            f"during the {len(reading.steps.whole):,} steps they were busy "
            f"{1 - steady.fraction:.1%}; {outside_s:.1f} s of idle time are outside the steps"
        )
        return Finding("startup", 0.9, (*lines, line, *_class_lines(reading, idle)))
    return _judge_classes(reading, steady or idle, lines)


def _judge_classes(reading: Reading, idle: Idle, lines: tuple[str, ...]) -> Finding:
    shares = {each.code: each.share_of_idle for each in reading.classes_of(idle)}
    lines = (*lines, *_class_lines(reading, idle))
    groups = {name: sum(shares.get(code, 0.0) for code in codes) for name, codes in GROUPS.items()}
    name = max(groups, key=lambda each: groups[each])
    if groups[name] < DECISIVE:
        why = "no cause explains half of the idle time"
        if shares.get(OTHERS_BUSY, 0.0) >= DECISIVE:
            why = "devices mostly wait while others compute: their work is unevenly distributed"
        return Finding("unknown", 0.0, (*lines, why))
    if name == "input":
        found = _input_bottleneck(reading.pipeline)
        return replace(found, evidence=(*lines, *found.evidence))
    verdict: Verdict = "startup" if name == "startup" else "transfer"
    return Finding(verdict, round(0.5 + groups[name] * 0.45, 2), lines)


def _judge_host(reading: Reading) -> Finding:
    """Judge a trace without devices by how long the loop waited for input."""
    wait = reading.input_wait_fraction
    if wait is None:
        return Finding("unknown", 0.0, ("the trace has neither devices nor an input pipeline",))
    line = f"the loop waited {wait:.1%} of its time for input"
    if wait < thresholds().starved_wait:
        return Finding("device", 0.9 if wait < thresholds().device_wait else 0.5, (line,))
    found = _input_bottleneck(reading.pipeline)
    return replace(found, evidence=(line, *found.evidence))


def _input_bottleneck(pipeline: InputPipeline | None) -> Finding:
    """Why the input pipeline is slow, as far as a trace without CPU times can tell."""
    if pipeline is None or not any(stage.work_ps for stage in pipeline.stages):
        return Finding(
            "unknown", 0.0, ("the trace has no events of the input pipeline: measure it",)
        )
    wall = max(1, pipeline.last_ps - pipeline.first_ps)
    in_flight = pipeline.threads_while_waiting
    operations = by_operation(pipeline.stages)
    heaviest = max(range(len(pipeline.stages)), key=lambda i: pipeline.stages[i].work_ps)
    some = ", ".join(f"{name} {share:.0%}" for name, share in list(operations.items())[:4])
    lines = [
        f"while the loop waited, {in_flight:.1f} threads worked at a time"
        + (f": {some}" if some else "")
    ]
    reads = sum(share for name, share in operations.items() if name.startswith(READS))
    python = sum(share for name, share in operations.items() if name in PYTHON)
    if python >= DECISIVE:
        lines.append(
            "most work is in Python functions: a trace does not show if they wait or hold the lock"
        )
        return Finding("unknown", 0.0, tuple(lines), heaviest)
    if reads >= DECISIVE:
        return Finding("io", 0.6, (*lines, f"{reads:.0%} of the work is reading"), heaviest)
    if serial := _serial(pipeline, wall):
        return serial
    if pipeline.vcpus and in_flight >= thresholds().busy * pipeline.vcpus:
        lines.append(f"the vCPUs that the runtime uses ({pipeline.vcpus}) are all busy")
        return Finding("vcpu", 0.7, tuple(lines), heaviest)
    lines.append("that is not enough to find the bottleneck: measure the pipeline")
    return Finding("unknown", 0.0, tuple(lines), heaviest)


def _serial(pipeline: InputPipeline, wall: int) -> Finding | None:
    for index, stage in enumerate(pipeline.stages):
        active = stage.work_ps / wall
        alone = stage.settings.get("parallelism", 1) == 1
        if alone and active >= thresholds().serial_active and pipeline.vcpus != 1:
            line = f"{stage.op} works {active:.0%} of the time and runs one call at a time"
            return Finding("serial", 0.7, (line,), index)
    return None


def _busy_line(reading: Reading, idle: Idle) -> str:
    count = len(reading.devices)
    kind = reading.devices[0].accelerator or reading.devices[0].kind
    chips = f"{count} devices ({kind}) were" if count > 1 else f"the device ({kind}) was"
    return (
        f"{chips} busy {1 - idle.fraction:.1%} of {idle.window_ps / PS_PER_S:.4g} s, "
        "from the first operation to the last"
    )


def _class_lines(reading: Reading, idle: Idle) -> Sequence[str]:
    found: Sequence[IdleClass] = reading.classes_of(idle)
    parts = [
        f"{each.share_of_idle:.0%} {each.what}" for each in found if each.share_of_idle >= 0.01
    ]
    longest = max((end - start for start, end in idle.moments), default=0) / PS_PER_S
    total = length(idle.moments) / PS_PER_S
    if not parts:
        return ()
    return (
        f"all devices were idle for {total:.3g} s, at most {longest:.3g} s at a time; idle time by "
        "cause: " + "; ".join(parts),
    )
