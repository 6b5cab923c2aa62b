"""Measure the cost of a program's batches alone, after the program, so as not to slow it down.

The parent runs `python -m tpuctl.profiling.program.copy_cost FD` with the program's own Python.
"""

import os
import sys
from dataclasses import dataclass, replace

from tpuctl.codec import from_plain, to_plain
from tpuctl.errors import TpuctlError
from tpuctl.profiling.align import notable_batches
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.windows import CopyingStage, NodeCost
from tpuctl.usercode.child import Channel, start_child

LIMIT_S = 60.0


@dataclass(frozen=True)
class CopyingRequest:
    """The nodes of a pipeline, and the options of its batches."""

    nodes: tuple[NodeCost, ...]
    threads: int
    deterministic: bool | None


def with_copying(measured: Measurement) -> Measurement:
    """Add the cost of a program's batches, measured in a process with the program's Python.

    If that fails, they keep the time that the runtime attributes to them.
    """
    nodes = measured.phases[0].nodes
    if measured.kind != "tf.data" or not any(notable_batches(nodes)):
        return measured
    threads = measured.threadpool_size or len(os.sched_getaffinity(0))
    request = CopyingRequest(nodes, threads, measured.settings.get("deterministic"))
    python = measured.python or sys.executable
    try:
        with start_child(__name__, python=python) as child:
            child.ask(to_plain(request))
            for message in child.listen({}, LIMIT_S, more_time=""):
                if "result" in message:
                    stages = (from_plain(CopyingStage, each) for each in message["result"])
                    return replace(measured, copying=tuple(stages))
    except (OSError, TpuctlError, ValueError):
        pass
    return measured


def main() -> None:
    """Measure, answer and exit at once: data sets may block the interpreter's exit."""
    from tpuctl.profiling.frameworks._tf_changes import copying_stages, options_with

    channel = Channel(int(sys.argv[1]))
    request = from_plain(CopyingRequest, next(channel.requests()))
    options = options_with(deterministic=request.deterministic)
    found = copying_stages(request.nodes, options, threads=request.threads)
    channel.send(result=to_plain(found))
    os._exit(0)


if __name__ == "__main__":
    main()
