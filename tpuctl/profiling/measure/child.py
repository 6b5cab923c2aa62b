"""The measuring process: `python -m tpuctl.profiling.measure.child FD`.

Pipelines with Python functions can hang the interpreter at exit, so this process sends its result
through the descriptor and exits without clean-up. It ends with its parent.
"""

import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from tpuctl.codec import from_plain, to_plain
from tpuctl.errors import MissingExtraError, TargetError, TpuctlError
from tpuctl.profiling.align import loses_iterators
from tpuctl.profiling.attribution import UNCLAIMED
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.frameworks.stacks import sampling_notes
from tpuctl.profiling.measure import signals
from tpuctl.profiling.measure.loop import BatchReader, Limit, Recorder, steps_to_fill
from tpuctl.profiling.measure.probe import Sampler
from tpuctl.profiling.measure.sources import open_source
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.request import Request, try_alone
from tpuctl.profiling.trace.models import Deep
from tpuctl.profiling.windows import IsolatedStage, Phase
from tpuctl.usercode.child import Channel
from tpuctl.usercode.scratch import scratch_folder

# Stages are isolated if this share of their active time is neither CPU nor waiting for a vCPU.
BLOCKED_SHARE = 0.3
# Per part of the pipeline: a dozen stages must not take longer than the measurement itself.
ISOLATE_S = 1.2
# Handing an element to another thread takes up to some 0.1 ms of CPU time.
SMALL_S, LEAST_BUSY = 1e-3, 0.3
TRACEABLE = ("tf.data", "photos", "shards")


def measure(request: Request, channel: Channel) -> Measurement:
    """Open the target and measure it: without a device, then with one if there is one."""
    sampler = Sampler(channel.beat)
    with scratch_folder("tpuctl-profile-") as scratch:
        try:
            source = open_source(
                request, str(scratch.path), imported=lambda: channel.enter("building the pipeline")
            )
        except ImportError as error:
            raise MissingExtraError(
                "Profiling an input pipeline", extra="tf", module=error.name or "tensorflow"
            ) from error
        measured = _measure(source, request, sampler, channel)
        notes = (*measured.input.notes, *sampling_notes(str(scratch.path)))
        return replace(measured, input=replace(measured.input, notes=notes))


def _measure(source: Source, request: Request, sampler: Sampler, channel: Channel) -> Measurement:
    reader = BatchReader(source, batch_size=request.batch_size)
    recorder = Recorder(reader, sampler)
    channel.waiting_since = lambda: reader.waiting_since
    channel.enter("waiting for the first batch")
    start = time.perf_counter()
    batch_size = reader.step()
    first_batch_s = time.perf_counter() - start
    phases = _phases(request, recorder, channel)
    deep, files = _trace(source, request, recorder, channel)
    isolated = _isolate(source, phases[0], recorder, channel)
    channel.enter("measuring the cost of copying")
    copying = source.copying(phases[0].nodes)
    halved = None if request.change else _halve(source, phases[0], recorder, channel)
    found = replace(source.input, examples=source.input.examples or reader.epoch_examples)
    if not source.batched:
        note = f"The pipeline does not batch: {request.batch_size:,} of its elements make one step."
        found = replace(found, notes=(*found.notes, note))
    return Measurement(
        kind=source.kind,
        batch_size=batch_size,
        chain=source.chain,
        phases=phases,
        isolated=isolated,
        first_batch_s=first_batch_s,
        threadpool_size=source.threadpool_size,
        host=signals.describe_host(str(source.settings.get("tensorflow", ""))),
        input=found,
        settings=source.settings,
        lanes=source.lanes,
        runs_ahead=source.runs_ahead,
        deep=deep,
        trace_files=files,
        copying=copying,
        halved=halved,
    )


def _trace(
    source: Source, request: Request, recorder: Recorder, channel: Channel
) -> tuple[Deep | None, tuple[str, ...]]:
    """Trace the pipeline without a device, if requested."""
    if request.trace_folder is None:
        return None, ()
    if source.kind not in TRACEABLE:
        return Deep(missing=f"the pipeline has no tf.data operations ({source.kind})."), ()
    from tpuctl.profiling.frameworks._tf import TensorFlowProfiler
    from tpuctl.profiling.measure.host_trace import capture

    channel.enter("tracing the host")
    return capture(
        lambda seconds: recorder.record(Limit(seconds, least_steps=1), None),
        lambda: recorder.settle(None),
        TensorFlowProfiler(),
        Path(request.trace_folder),
    )


def _phases(request: Request, recorder: Recorder, channel: Channel) -> tuple[Phase, ...]:
    device_s = None if request.device_step_ms is None else request.device_step_ms / 1000
    share_s = request.seconds if device_s is None else request.seconds / 2
    channel.enter("settling")
    recorder.settle(None)
    channel.enter("measuring the pipeline's maximum rate")
    free_steps = request.steps if device_s is None else None
    phases = [recorder.record(Limit(share_s, free_steps), None)]
    if device_s is not None:
        channel.enter("settling")
        batch_s = phases[0].wall_s / max(1, phases[0].steps)
        recorder.settle(device_s, least_steps=steps_to_fill(batch_s, device_s))
        channel.enter("measuring with a device")
        phases.append(recorder.record(Limit(share_s, request.steps), device_s))
    return tuple(phases)


def _isolate(
    source: Source, phase: Phase, recorder: Recorder, channel: Channel
) -> tuple[IsolatedStage, ...]:
    """Measure ever longer parts of the pipeline if its model is about waiting, or misses much."""
    active_s = sum(node.active_s for node in phase.nodes)
    ran_s = phase.signals.cpu_s - phase.signals.tool_cpu_s - phase.signals.consumer_cpu_s
    explained_s = phase.signals.cpu_s + (phase.signals.delayed_s or 0.0)
    is_known = 1 - explained_s / (active_s or 1.0) < BLOCKED_SHARE
    is_complete = active_s >= (1 - UNCLAIMED) * ran_s and not loses_iterators(phase.nodes)
    if not active_s or (is_known and is_complete):
        return ()
    channel.enter("measuring stage by stage")
    return source.isolate(ISOLATE_S, cpu_s=lambda: signals.process_cpu_s() - recorder.tool_cpu_s)


def _halve(source: Source, phase: Phase, recorder: Recorder, channel: Channel) -> Phase | None:
    """Measure with half of the vCPUs whether the others do more than hand small elements on."""
    cpus, elements = signals.usable_cpus(), max((n.elements for n in phase.nodes), default=0)
    found = phase.signals
    is_busy = found.cpu_s >= LEAST_BUSY * found.wall_s * found.vcpus_usable
    is_small = found.cpu_s < SMALL_S * elements
    if sys.platform != "linux" or len(cpus) < 2 or not (is_busy and is_small):
        return None
    channel.enter("measuring with half of the vCPUs")
    with signals.running_on(cpus[: len(cpus) // 2]):
        recorder.settle(None)
        return recorder.record(Limit(ISOLATE_S), None)


def main() -> None:
    """Measure what the request says and send the result."""
    channel = Channel(int(sys.argv[1]))
    channel.beat()
    request = from_plain(Request, next(channel.requests()))
    try:
        channel.send(result=to_plain(measure(request, channel)))
    except TpuctlError as error:
        traceback.print_exc()
        hint = error.hint
        if hint is None and isinstance(error, TargetError):
            hint = try_alone(request.target, iterate=True)
        channel.send(error=error.code, message=str(error), hint=hint)
    except BaseException as error:
        traceback.print_exc()
        channel.send(error="bug", message=f"{type(error).__name__}: {error}", hint=None)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
