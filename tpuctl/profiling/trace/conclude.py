"""Draw the conclusions from one trace: the same document that a measurement gives. Pure."""

import datetime
import statistics

import tpuctl
from tpuctl.errors import InvalidInputError
from tpuctl.profiling.case import Finding
from tpuctl.profiling.models import Advice, Profile, Stage, StepTimes, Vcpus, Window
from tpuctl.profiling.trace.intervals import Interval
from tpuctl.profiling.trace.reading import Reading, describe, missing
from tpuctl.profiling.trace.stages import InputPipeline, StageWork
from tpuctl.profiling.trace.verdict import headline, judge
from tpuctl.profiling.trace.xspace import PS_PER_S

METHOD = "elapsed on its threads, followed from stage to operation"
ELAPSED_ONLY = "a trace has elapsed times, not CPU times; tpuctl profile run measures those"
NO_DEVICE = "this trace has no device in it"
# Below this share of the idle time a cause is not worth advice.
WORTH_ADVICE = 0.2


def build_profile(reading: Reading, *, target: str) -> Profile:
    """Draw the conclusions from what was read. Pure except for the date.

    Raises InvalidInputError if the trace is empty.
    """
    window, pipeline = reading.window, reading.pipeline
    if window is None:
        raise InvalidInputError(
            f"The trace {reading.file} is empty: it has no device, no step and no input pipeline.",
            hint="Trace while the training runs, for a few steps.",
        )
    finding = judge(reading)
    idle = reading.idle.fraction if reading.idle else None
    on_tpu = any(each.kind == "TPU" for each in reading.devices)
    return Profile(
        kind="trace",
        target=target,
        batch_size=pipeline.batch_size if pipeline else None,
        steps=len(reading.steps.whole),
        window=_window(reading, window),
        step_ms=_step_times(reading.steps.durations_ms),
        pipeline_examples_per_s=_examples_per_s(pipeline),
        input_wait_fraction=reading.input_wait_fraction,
        device_idle_fraction=idle,
        mxu_idle_fraction=idle if on_tpu else None,
        mxu_utilization=reading.mxu_utilization,
        why_no_device=None if reading.devices else NO_DEVICE,
        verdict=finding.verdict,
        confidence=finding.confidence,
        headline=headline(reading, finding),
        evidence=finding.evidence,
        stages=_stages(pipeline, finding) if pipeline else (),
        vcpus=Vcpus(pipeline.vcpus if pipeline else None, why_null=ELAPSED_ONLY),
        advice=_advice(reading, finding),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        tpuctl_version=tpuctl.__version__,
        notes=missing(reading),
        trace=describe(reading),
    )


def _window(reading: Reading, window: Interval) -> Window:
    what = (
        "from the first operation on any device to the last"
        if reading.idle
        else "whole steps"
        if reading.steps.whole
        else "from the first event of the input pipeline to the last"
    )
    return Window(window[0] / PS_PER_S, window[1] / PS_PER_S, what)


def _step_times(durations_ms: list[float]) -> StepTimes | None:
    if not durations_ms:
        return None
    ranked = sorted(durations_ms)
    return StepTimes(
        statistics.fmean(ranked),
        statistics.median(ranked),
        ranked[min(len(ranked) - 1, round(0.95 * (len(ranked) - 1)))],
    )


def _examples_per_s(pipeline: InputPipeline | None) -> float | None:
    """Examples per second out of the pipeline, if the trace has the batch size."""
    if not pipeline or not pipeline.batch_size or len(pipeline.root) < 2:
        return None
    wall_s = (pipeline.root[-1][1] - pipeline.root[0][1]) / PS_PER_S
    return (len(pipeline.root) - 1) * pipeline.batch_size / wall_s if wall_s > 0 else None


def _stages(pipeline: InputPipeline, finding: Finding) -> tuple[Stage, ...]:
    total = sum(stage.work_ps for stage in pipeline.stages) + pipeline.unlinked_ps
    wall = max(1, pipeline.last_ps - pipeline.first_ps)
    examples_each = _examples_per_element(pipeline)
    return tuple(
        _stage(index, stage, total, wall, examples, index == finding.bottleneck)
        for index, (stage, examples) in enumerate(zip(pipeline.stages, examples_each, strict=True))
    )


def _stage(
    index: int, stage: StageWork, total: int, wall: int, per_element: int, is_bottleneck: bool
) -> Stage:
    examples = (stage.elements or stage.calls) * per_element
    work_ms = stage.work_ps / 1e9 / examples if examples else 0.0
    calls = stage.settings.get("parallelism")
    return Stage(
        index=index,
        name=_name(stage),
        op=stage.op,
        cpu_ms_per_example=work_ms,
        cpu_ms_low=work_ms,
        cpu_ms_high=work_ms,
        share_of_cpu=stage.work_ps / total if total else 0.0,
        active_ms_per_example=work_ms,
        calls_in_flight=stage.work_ps / wall,
        parallelism=calls if isinstance(calls, int) and calls > 0 else None,
        method=METHOD,
        is_bottleneck=is_bottleneck,
        runs_python=any("PyFunc" in name for name in stage.operations),
        is_random=any("Random" in name for name in stage.operations),
        decodes_jpeg=any(
            name.startswith(("DecodeJpeg", "DecodeImage")) for name in stage.operations
        ),
    )


def _name(stage: StageWork) -> str:
    """The main operation of the stage; the trace does not have the name of its function."""
    top = next((name for name, _ in stage.operations.most_common(1)), stage.op)
    return f"{top}, batch" if top != stage.op and "Batch" in stage.op else top


def _examples_per_element(pipeline: InputPipeline) -> list[int]:
    """Examples in an element of each stage: one before the batch, then the batch size."""
    sizes, size = [], 1
    for stage in pipeline.stages:
        given = stage.settings.get("batch_size")
        size = given if isinstance(given, int) and given > 0 else size
        sizes.append(size)
    return sizes


def _advice(reading: Reading, finding: Finding) -> tuple[Advice, ...]:
    """What to do next; a trace predicts nothing, so this has no predictions."""
    found = reading.classes_of(reading.idle) if reading.idle else ()
    shares = {each.code: each.share_of_idle for each in found}
    worth = reading.idle is not None and reading.idle.fraction >= 0.05
    advice = []
    if finding.bottleneck is not None:
        advice.append(
            Advice(
                code="measure",
                what="Measure the input pipeline to find out which resource it lacks and how much.",
                change="tpuctl profile run TARGET --device-step-ms MS",
            )
        )
    if worth and shares.get("compile", 0.0) >= WORTH_ADVICE:
        advice.append(
            Advice(
                code="compilation_cache",
                what="Keep compiled programs between runs.",
                change="jax.config.update('jax_compilation_cache_dir', DIR)",
            )
        )
    if worth and shares.get("to_device", 0.0) + shares.get("dma_map", 0.0) >= WORTH_ADVICE:
        advice.append(
            Advice(
                code="fewer_bytes",
                what="Send fewer bytes to the device, and send them ahead of time.",
                change="keep images uint8 until they are on the device and convert them there; "
                "copy the next batch while this one computes",
            )
        )
    return tuple(advice)
