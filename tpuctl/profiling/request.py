"""A request to `profile run`: the TARGET and its options."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuctl.datasets.locations import bucket_of
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.profiling.inputs import is_shard_folder
from tpuctl.profiling.whatif import Change
from tpuctl.progress import OnProgress, silent
from tpuctl.usercode.function import Function, parse_function
from tpuctl.usercode.function import try_alone as try_function_alone

SUPPORTED = (
    "a folder of images, a folder or gs:// address of tpuctl shards, module:function or "
    "path.py:function"
)
DEFAULT_SECONDS = 10.0
# Shuffle buffers and first reads from a bucket take a minute; longer waits mean that it is stuck.
LONGEST_WAIT_S = 120.0
# A function may first import a framework, on a busy machine.
LEAST_WAIT_S = 30.0


@dataclass(frozen=True)
class Target:
    """A folder, or a function in a module or in a file."""

    kind: Literal["photos", "shards", "function"]
    place: str
    function: str | None = None


@dataclass(frozen=True)
class Request:
    """One measurement. `wait_limit_s` is the longest that a batch may take.

    With `keeps_batch_size`, a function's own default for its `batch_size` holds.

    `change` is applied to the user's pipeline while it is built. Host traces, if any, go to
    `trace_folder`.
    """

    target: Target
    batch_size: int
    image_size: int
    seconds: float
    steps: int | None
    device_step_ms: float | None
    wait_limit_s: float
    change: Change | None = None
    keeps_batch_size: bool = False
    trace_folder: str | None = None


def parse_target(text: str, *, on_progress: OnProgress = silent) -> Target:
    """Find out what to profile; shards in a bucket are first copied to this machine.

    Raises NotFoundError or InvalidInputError with the supported targets, and the errors of
    `copy_data_set`.
    """
    if address := bucket_of(text):
        from tpuctl.datasets.local_copies import copy_data_set

        return Target("shards", copy_data_set(address, on_progress=on_progress).path)
    path = Path(text)
    if text and path.is_dir():
        return Target("shards" if is_shard_folder(path) else "photos", str(path.resolve()))
    if function := parse_function(text):
        return Target("function", function.place, function.name)
    if path.is_file():
        hint = (
            f"Name the function that returns the data set: {text}:function"
            if path.suffix == ".py"
            else None
        )
        raise InvalidInputError(f"{text} is a file; profile run takes {SUPPORTED}.", hint=hint)
    hint = f"profile run takes {SUPPORTED}."
    if program := shutil.which(text):
        hint = f"To profile the program: tpuctl profile run -- {shlex.quote(program)}"
    raise NotFoundError(f"Nothing to profile at {text!r}.", hint=hint)


def try_alone(target: Target, *, iterate: bool = False) -> str | None:
    """The command that runs the user's function without tpuctl, to show all of its output."""
    if target.function is None:
        return None
    then = "list(zip({}, range(1000)))" if iterate else "{}"
    return try_function_alone(Function(target.place, target.function), then)
