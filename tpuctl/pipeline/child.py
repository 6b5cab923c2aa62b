"""The process that measures: `python -m tpuctl.pipeline.child REQUEST FD`.

A process of its own because pipelines with Python functions can hang the interpreter at exit: it
sends its result through the descriptor and leaves without clean-up. It dies with its parent.
"""

import json
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpuctl.errors import MissingExtraError, TargetError, TpuctlError
from tpuctl.pipeline import signals
from tpuctl.pipeline.cgroup import memory_limit_bytes
from tpuctl.pipeline.consume import Feed, Limit, Recorder
from tpuctl.pipeline.models import Host, IsolatedStage, Measurement, Phase
from tpuctl.pipeline.probe import Sampler
from tpuctl.pipeline.records import from_plain, to_plain
from tpuctl.pipeline.request import Request
from tpuctl.pipeline.targets import Target, try_alone

if TYPE_CHECKING:
    from tpuctl.pipeline._tf import Pipeline

BLOCKED_SHARE = 0.3
ISOLATE_S = 1.2


class Channel:
    """One JSON document per line to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._phase, self._since = "starting", time.perf_counter()
        self.waiting_since: Callable[[], float | None] = lambda: self._since

    def enter(self, phase: str) -> None:
        """Begin a part of the work."""
        self._phase, self._since = phase, time.perf_counter()
        self.beat()

    def beat(self) -> None:
        """Say that we live, what we do and how long we have been waiting for it."""
        since = self.waiting_since()
        waiting_s = time.perf_counter() - since if since else 0.0
        done_s = time.perf_counter() - self._since
        stuck = where_python_is() if waiting_s > 1 else None
        self.send(phase=self._phase, done_s=done_s, waiting_s=waiting_s, stuck=stuck)

    def send(self, **message: Any) -> None:
        """Send one document; without a reader there is nothing left to do."""
        line = json.dumps(message) + "\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
            except OSError:
                os._exit(1)


def where_python_is() -> str | None:
    """Find the line of the user's code that some thread is in."""
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        walker: FrameType | None = frame
        while walker is not None and ident != own:
            name = walker.f_code.co_filename
            if not any(part in name for part in ("site-packages", "tpuctl", "/lib/python", "<")):
                return f"{name}:{walker.f_lineno}"
            walker = walker.f_back
    return None


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


def die_with_parent() -> None:
    """Leave as soon as the parent has gone, however it went."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="tpuctl-parent-watch", daemon=True).start()


def main() -> None:
    """Measure what the request says and send the result."""
    die_with_parent()
    request = from_plain(Request, json.loads(sys.argv[1]))
    channel = Channel(int(sys.argv[2]))
    channel.beat()
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
