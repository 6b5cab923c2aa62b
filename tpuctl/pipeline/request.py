"""What the measuring process is asked to do."""

from dataclasses import dataclass

from tpuctl.pipeline.targets import Target

DEFAULT_SECONDS = 10.0
LONGEST_WAIT_S = 120.0


@dataclass(frozen=True)
class Request:
    """One profile to take. `wait_limit_s` is the longest that a batch may take to come."""

    target: Target
    batch_size: int
    image_size: int
    seconds: float
    steps: int | None
    device_step_ms: float | None
    wait_limit_s: float
