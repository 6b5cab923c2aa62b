"""Limits for CI: a profile fails when one of its figures passes what somebody allowed."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpuctl.errors import UsageError
from tpuctl.pipeline.models import Profile

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_LIMIT = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*(%?)\s*")
FIGURES: dict[str, Callable[[Profile], float | None]] = {
    "stall": lambda profile: profile.input_wait_fraction,
    "idle": lambda profile: profile.device_idle_fraction,
    "mxu_idle": lambda profile: profile.mxu_idle_fraction,
    "mxu": lambda profile: profile.mxu_utilization,
    "step_ms": lambda profile: profile.step_ms.p50 if profile.step_ms else None,
    "examples_per_s": lambda profile: profile.pipeline_examples_per_s,
    "vcpus": lambda profile: profile.vcpus.needed_to_saturate,
}


@dataclass(frozen=True)
class Limit:
    """A condition under which a profile fails, such as `stall>0.1`."""

    text: str
    figure: str
    sign: str
    value: float

    def complaint(self, profile: Profile) -> str | None:
        """Say why a profile fails; a figure that is not known cannot pass."""
        found = FIGURES[self.figure](profile)
        if found is None:
            return (
                f"{self.figure} is not known for {profile.target}, so {self.text} cannot be judged."
            )
        if _COMPARE[self.sign](found, self.value):
            return f"{self.figure} is {found:.4g} for {profile.target}: fails by {self.text}."
        return None


def parse_limits(texts: Sequence[str] | None) -> tuple[Limit, ...]:
    """Read conditions such as `stall>0.1` or `idle >= 20%`; raises UsageError for anything else."""
    return tuple(map(_parse, texts or ()))


def check(profile: Profile, limits: Sequence[Limit]) -> Profile:
    """Hold a profile against limits; what it fails by is in its `failures`."""
    complaints = (limit.complaint(profile) for limit in limits)
    return replace(profile, unmet=tuple(filter(None, complaints)))


def _parse(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if not match or match[1] not in FIGURES:
        raise UsageError(
            f"--fail-if {text!r} is not a condition.",
            hint=f"Write it like 'stall>0.1'; there are {', '.join(FIGURES)}.",
        )
    value = float(match[3]) / (100 if match[4] else 1)
    return Limit(text.strip(), match[1], match[2], value)
