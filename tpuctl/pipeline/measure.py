"""Take a measurement in a fresh process: start it, listen, and end it whatever happens."""

import contextlib
import importlib.util
from dataclasses import replace
from typing import Any

from tpuctl.errors import MissingExtraError
from tpuctl.pipeline.deep.linking import read_files
from tpuctl.pipeline.models import Measurement
from tpuctl.pipeline.request import Request
from tpuctl.pipeline.targets import try_alone
from tpuctl.progress import OnProgress, Progress
from tpuctl.usercode.process import start_child
from tpuctl.usercode.records import from_plain, to_plain
from tpuctl.usercode.scratch import scratch_folder

START_LIMIT_S = 180.0
PREFIX = "tpuctl-trace-"
MORE_TIME = "If it is slow and not stuck, give it more time with --seconds."


def measure(request: Request, *, on_progress: OnProgress, deep: bool = False) -> Measurement:
    """Measure a pipeline in a child process, which is gone when this returns.

    `deep` traces it as well; of the traces only what they show is left then.

    Raises what the child raised, and TargetError when it hangs or dies.
    """
    if request.target.kind == "photos" and importlib.util.find_spec("tensorflow") is None:
        raise MissingExtraError("Profiling an input pipeline", extra="tf", module="tensorflow")
    with contextlib.ExitStack() as stack:
        if deep:
            scratch = stack.enter_context(scratch_folder(PREFIX))
            request = replace(request, trace_folder=str(scratch.path))
        measured = _measured(request, on_progress)
        if measured.trace_files:
            on_progress(Progress("profile", 0, None, "", "reading the trace"))
        return read_files(measured)


def _measured(request: Request, on_progress: OnProgress) -> Measurement:
    limits_s = {"starting": START_LIMIT_S}
    with start_child("tpuctl.pipeline.child") as child:
        child.ask(to_plain(request))
        for message in child.listen(limits_s, request.wait_limit_s, more_time=MORE_TIME):
            if "result" in message:
                return from_plain(Measurement, message["result"])
            if "error" in message:
                raise child.error(message)
            on_progress(_progress(message))
        raise child.death("measuring", hint=try_alone(request.target, iterate=True))


def _progress(message: dict[str, Any]) -> Progress:
    return Progress("profile", round(message["done_s"], 1), None, "s", message["phase"])
