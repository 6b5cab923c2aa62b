"""The process that measures: `python -m tpuctl.pipeline.child FD`.

A process of its own because pipelines with Python functions can hang the interpreter at exit: it
sends its result through the descriptor and leaves without clean-up. It dies with its parent.
"""

import os
import platform
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING

from tpuctl.errors import MissingExtraError, TargetError, TpuctlError
from tpuctl.pipeline import signals
from tpuctl.pipeline.cgroup import memory_limit_bytes
from tpuctl.pipeline.consume import Feed, Limit, Recorder
from tpuctl.pipeline.models import Host, IsolatedStage, Measurement, Phase
from tpuctl.pipeline.probe import Sampler
from tpuctl.pipeline.request import Request
from tpuctl.pipeline.targets import Target, try_alone
from tpuctl.usercode.channel import Channel
from tpuctl.usercode.records import from_plain, to_plain

if TYPE_CHECKING:
    from tpuctl.pipeline._tf import Pipeline

BLOCKED_SHARE = 0.3
ISOLATE_S = 1.2


def measure(request: Request, channel: Channel) -> Measurement:
    """Open the target and measure it: running free, then feeding a device if there is one."""
    try:
        from tpuctl.pipeline._tf import open_pipeline
    except ImportError as error:
        raise MissingExtraError(
            "Profiling an input pipeline", extra="tf", module=error.name or "tensorflow"
        ) from error
    sampler = Sampler(channel.beat)
    channel.enter("building the pipeline")
    target = from_plain(Target, to_plain(request.target))
    pipeline = open_pipeline(target, batch_size=request.batch_size, image_size=request.image_size)
    feed = Feed(pipeline, elements_per_step=1 if pipeline.batched else request.batch_size)
    recorder = Recorder(feed, sampler)
    channel.waiting_since = lambda: feed.waiting_since
    channel.enter("waiting for the first batch")
    start = time.perf_counter()
    batch_size = feed.step()
    first_batch_s = time.perf_counter() - start
    phases = _phases(request, recorder, channel)
    isolated = _isolate(pipeline, phases[0], recorder, channel)
    return Measurement(
        kind=target.kind,
        batch_size=batch_size,
        chain=pipeline.chain,
        phases=phases,
        isolated=isolated,
        first_batch_s=first_batch_s,
        threadpool_size=pipeline.threadpool_size,
        host=host(str(pipeline.settings["tensorflow"])),
        input=pipeline.input,
        settings=pipeline.settings,
    )


def _phases(request: Request, recorder: Recorder, channel: Channel) -> tuple[Phase, ...]:
    device_s = None if request.device_step_ms is None else request.device_step_ms / 1000
    share_s = request.seconds if device_s is None else request.seconds / 2
    channel.enter("settling")
    recorder.settle(None)
    channel.enter("measuring what the pipeline can give")
    free_steps = request.steps if device_s is None else None
    phases = [recorder.record(Limit(share_s, free_steps), None)]
    if device_s is not None:
        channel.enter("settling")
        recorder.settle(device_s)
        channel.enter("measuring with a device")
        phases.append(recorder.record(Limit(share_s, request.steps), device_s))
    return tuple(phases)


def _isolate(
    pipeline: "Pipeline", phase: Phase, recorder: Recorder, channel: Channel
) -> tuple[IsolatedStage, ...]:
    """Measure ever longer parts of the pipeline where the model's time is mostly waiting."""
    active_s = sum(node.active_s for node in phase.nodes)
    explained_s = phase.signals.cpu_s + (phase.signals.run_delay_s or 0.0)
    if not active_s or 1 - explained_s / active_s < BLOCKED_SHARE:
        return ()
    channel.enter("measuring stage by stage")
    return pipeline.isolate(ISOLATE_S, cpu_s=lambda: signals.process_cpu_s() - recorder.tool_cpu_s)


def host(tensorflow: str) -> Host:
    """Describe this machine."""
    import psutil

    memory = psutil.virtual_memory()
    limit = memory_limit_bytes() or memory.total
    return Host(
        name=socket.gethostname(),
        vcpus=len(signals.usable_cpus()),
        memory_bytes=min(memory.total, limit),
        memory_available_bytes=min(memory.available, limit),
        cpu_model=_cpu_model(),
        python=platform.python_version(),
        tensorflow=tensorflow,
    )


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


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
            hint = try_alone(from_plain(Target, to_plain(request.target)), iterate=True)
        channel.send(error=error.code, message=str(error), hint=hint)
    except BaseException as error:
        traceback.print_exc()
        channel.send(error="bug", message=f"{type(error).__name__}: {error}", hint=None)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
