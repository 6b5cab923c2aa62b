"""What was read from one trace as a profile: the same document that a measurement gives."""

import contextlib
import datetime
import gc
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tpuctl
from tpuctl.errors import InvalidInputError
from tpuctl.profiling.case import Finding
from tpuctl.profiling.models import Advice, Profile, Stage, StepTimes, Vcpus, Window
from tpuctl.profiling.trace.files import find_capture
from tpuctl.profiling.trace.intervals import Interval
from tpuctl.profiling.trace.models import HostTrace
from tpuctl.profiling.trace.reading import Reading, describe, missing, read_trace
from tpuctl.profiling.trace.stages import InputPipeline, StageWork
from tpuctl.profiling.trace.verdict import headline, judge
from tpuctl.profiling.trace.xspace import PS_PER_S
from tpuctl.progress import OnProgress, Progress, silent

METHOD = "elapsed on its threads, followed from stage to operation"
ELAPSED_ONLY = "a trace has elapsed time in it, not CPU time; tpuctl profile run measures that"
NO_DEVICE = "this trace has no device in it"
# Less idle time than this is not worth a word of advice.
WORTH_ADVICE = 0.2


def build_profile(reading: Reading, *, target: str) -> Profile:
    """Draw the conclusions from what was read. Pure but for the date.

    Raises InvalidInputError where nothing was recorded from which there would be any.
    """
    window, pipeline = reading.window, reading.pipeline
    if window is None:
        raise InvalidInputError(
            f"{reading.file} is a trace in which nothing happened: no device, no step and no input "
            "pipeline were recorded.",
            hint="Trace while the training runs, for a few steps.",
        )
    finding = judge(reading)
    idle = reading.idle.fraction if reading.idle else None
    on_tpu = any(each.kind == "TPU" for each in reading.devices)
    return Profile(
        kind="trace",
        target=target,
        batch_size=pipeline.batch_size if pipeline else None,
        image_size=None,
        steps=len(reading.steps.whole),
        window=_window(reading, window),
        step_ms=_step_times(reading.steps.durations_ms),
        pipeline_examples_per_s=_examples_per_s(pipeline),
        device_examples_per_s=None,
        input_wait_fraction=reading.input_wait_fraction,
        device_idle_fraction=idle,
        mxu_idle_fraction=idle if on_tpu else None,
        mxu_utilization=reading.mxu_utilization,
        why_no_device=None if reading.devices else NO_DEVICE,
        device=None,
        verdict=finding.verdict,
        confidence=finding.confidence,
        headline=headline(reading, finding),
        evidence=finding.evidence,
        cpu_ms_per_example=None,
        stages=_stages(pipeline, finding) if pipeline else (),
        residual=None,
        vcpus=Vcpus(
            pipeline.vcpus if pipeline else None, None, None, None, None, why_null=ELAPSED_ONLY
        ),
        advice=_advice(reading, finding),
        overhead_fraction=None,
        first_batch_s=None,
        input=None,
        host=None,
        signals=None,
        device_signals=None,
        settings={},
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
    """Examples that came out of the pipeline, where the trace says how many are in an element."""
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
        location=None,
        examples_per_s_alone=None,
        cpu_ms_per_example=work_ms,
        cpu_ms_low=work_ms,
        cpu_ms_high=work_ms,
        share_of_cpu=stage.work_ps / total if total else 0.0,
        active_ms_per_example=work_ms,
        calls_in_flight=stage.work_ps / wall,
        parallelism=calls if isinstance(calls, int) and calls > 0 else None,
        bytes_per_example=None,
        method=METHOD,
        is_bottleneck=is_bottleneck,
        runs_python=any("PyFunc" in name for name in stage.operations),
        is_random=any("Random" in name for name in stage.operations),
        decodes_jpeg=any(
            name.startswith(("DecodeJpeg", "DecodeImage")) for name in stage.operations
        ),
    )


def _name(stage: StageWork) -> str:
    """What the stage mostly does; the trace does not have the name of its function."""
    top = next((name for name, _ in stage.operations.most_common(1)), stage.op)
    return f"{top}, batch" if top != stage.op and "Batch" in stage.op else top


def _examples_per_element(pipeline: InputPipeline) -> list[int]:
    """Examples in an element of each stage: one below the batch, the batch size from there on."""
    sizes, size = [], 1
    for stage in pipeline.stages:
        given = stage.settings.get("batch_size")
        size = given if isinstance(given, int) and given > 0 else size
        sizes.append(size)
    return sizes


def _advice(reading: Reading, finding: Finding) -> tuple[Advice, ...]:
    """What to do next; a trace predicts nothing, so neither do these."""
    found = reading.classes_of(reading.idle) if reading.idle else ()
    shares = {each.code: each.share_of_idle for each in found}
    worth = reading.idle is not None and reading.idle.fraction >= 0.05
    advice = []
    if finding.bottleneck is not None:
        advice.append(
            _say(
                "measure",
                "Measure the input pipeline: it tells which resource is missing and how much.",
                "tpuctl profile run TARGET --device-step-ms MS",
            )
        )
    if worth and shares.get("compile", 0.0) >= WORTH_ADVICE:
        advice.append(
            _say(
                "compilation_cache",
                "Keep compiled programs from one run to the next.",
                "jax.config.update('jax_compilation_cache_dir', DIR)",
            )
        )
    if worth and shares.get("to_device", 0.0) + shares.get("dma_map", 0.0) >= WORTH_ADVICE:
        advice.append(
            _say(
                "fewer_bytes",
                "Send fewer bytes to the device, and send them ahead of time.",
                "keep images uint8 until they are on the device, cast and scale there; "
                "put the next batch on the device while this one computes",
            )
        )
    return tuple(advice)


def _say(code: str, what: str, change: str) -> Advice:
    return Advice(code, what, None, None, None, None, change)


@dataclass(frozen=True)
class _Host:
    """What one file of a capture gave, and when it was taken, where it says so."""

    name: str
    file: Path
    session: Interval | None
    profile: Profile

    @property
    def idle(self) -> float:
        """How idle its devices were; a host without any decides nothing."""
        fraction = self.profile.device_idle_fraction
        return -1.0 if fraction is None else fraction


def profile_trace(path: Path, *, on_progress: OnProgress = silent) -> Profile:
    """Read a trace, or the newest capture in a log folder, and say what kept the devices waiting.

    Of several hosts the one whose devices were idle most decides: the others wait for it. Raises
    NotFoundError and InvalidInputError; a damaged trace is read as far as it goes.
    """
    capture = find_capture(path)
    hosts: list[_Host] = []
    failed: list[InvalidInputError] = []
    for index, file in enumerate(capture.files):
        on_progress(Progress("profile", index, len(capture.files), "traces", file.name))
        try:
            hosts.append(_read(file, target=str(path)))
        except InvalidInputError as error:
            failed.append(error)
    if not hosts:
        raise failed[0]
    together, apart = _of_one_session(hosts)
    worst = max(together, key=lambda host: host.idle)
    notes = (*worst.profile.notes, *capture.notes, *map(str, failed), *_left_out(apart))
    detail = worst.profile.trace
    assert detail
    traces = tuple(
        HostTrace(host.name, host.file.name, host.profile.device_idle_fraction) for host in together
    )
    return replace(worst.profile, notes=notes, trace=replace(detail, hosts=traces))


def _read(file: Path, *, target: str) -> _Host:
    with _without_collecting():
        reading = read_trace(file)
        profile = build_profile(reading, target=target)
        return _Host(reading.name, file, reading.session, profile)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Stop the search for cycles, which halves the speed of making millions of small tuples."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _of_one_session(hosts: Sequence[_Host]) -> tuple[list[_Host], list[_Host]]:
    """Keep the traces that were taken at the same time as the latest; hand out the others too.

    Captures that begin within one second share a folder.
    """
    latest = max((host.session for host in hosts if host.session), default=None)
    together: list[_Host] = []
    apart: list[_Host] = []
    for host in hosts:
        span = host.session
        meets = not span or not latest or (span[0] < latest[1] and latest[0] < span[1])
        (together if meets else apart).append(host)
    return together, apart


def _left_out(apart: Sequence[_Host]) -> tuple[str, ...]:
    if not apart:
        return ()
    names = ", ".join(host.file.name for host in apart)
    return (f"{names}: of an earlier capture in the same folder, left out.",)
