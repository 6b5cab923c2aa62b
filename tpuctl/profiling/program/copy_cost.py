"""What the batches of a program cost alone: measured once it has ended, so as not to slow it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.profiling.align import notable_batches
from tpuctl.profiling.models import CopyingStage, Measurement, NodeCost
from tpuctl.usercode.child import QUIET, python_path

MODULE = "tpuctl.profiling.program._copying_child"
LIMIT_S = 60.0


@dataclass(frozen=True)
class CopyingRequest:
    """The accounts of a pipeline, and what its batches were made with."""

    nodes: tuple[NodeCost, ...]
    threads: int
    deterministic: bool | None


def with_copying(measured: Measurement) -> Measurement:
    """Measure what the batches cost, in a process of the program's own Python.

    Where that fails they keep the time that the runtime gives them.
    """
    nodes = measured.phases[0].nodes
    if measured.kind != "tf.data" or not any(notable_batches(nodes)):
        return measured
    request = CopyingRequest(
        nodes,
        measured.threadpool_size or len(os.sched_getaffinity(0)),
        measured.settings.get("deterministic"),
    )
    return replace(measured, copying=tuple(_ask(measured.python or sys.executable, request)))


def _ask(python: str, request: CopyingRequest) -> Iterator[CopyingStage]:
    try:
        done = subprocess.run(
            [python, "-m", MODULE],
            input=json.dumps(to_plain(request)).encode(),
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
            env={**os.environ, **QUIET, "PYTHONPATH": python_path()},
        )
        # What a library prints at its import comes before.
        answer: Any = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return
    for each in answer:
        yield from_plain(CopyingStage, each)
