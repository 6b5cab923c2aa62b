"""What the measuring process is asked to do."""

from dataclasses import dataclass

from tpuctl.pipeline.changes import Change
from tpuctl.pipeline.targets import Target

DEFAULT_SECONDS = 10.0
LONGEST_WAIT_S = 120.0
# A function may import a framework first, on a machine that others keep busy.
LEAST_WAIT_S = 30.0


@dataclass(frozen=True)
class Request:
    """One profile to take. `wait_limit_s` is the longest that a batch may take to come.

    `change` is tried on a pipeline of the user's while it is built. Traces of the host, if any, go
    to `trace_folder`.
    """

    target: Target
    batch_size: int
    image_size: int
    seconds: float
    steps: int | None
    device_step_ms: float | None
    wait_limit_s: float
    change: Change | None = None
    trace_folder: str | None = None
