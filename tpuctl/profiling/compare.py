"""Compare two profiles, and check a profile against limits (`--fail-if`)."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpuctl.errors import UsageError
from tpuctl.outcome import Outcome
from tpuctl.profiling.case import name_idle
from tpuctl.profiling.models import Profile

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
class Row:
    """One figure before and after; `ratio` is after over before."""

    name: str
    unit: str
    before: float | None
    after: float | None
    ratio: float | None
    better: bool | None


@dataclass(frozen=True)
class Side:
    """One of the two profiles."""

    target: str
    kind: str
    verdict: str
    headline: str
    created: str


@dataclass(frozen=True)
class Comparison(Outcome):
    """The differences between two profiles."""

    before: Side
    after: Side
    rows: tuple[Row, ...]
    differences: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the two are not fully comparable."""
        return self.differences


def diff(a: Profile, b: Profile) -> Comparison:
    """Compare a profile with a later one."""
    idle = "MXU idle" if b.trace else name_idle(b.device, b.host)
    rows = (
        _row("examples/s", "examples/s", a.pipeline_examples_per_s, b.pipeline_examples_per_s, 1),
        _row("CPU per example", "ms", a.cpu_ms_per_example, b.cpu_ms_per_example, -1),
        _row("input wait", "fraction", a.input_wait_fraction, b.input_wait_fraction, -1),
        _row(idle, "fraction", a.mxu_idle_fraction, b.mxu_idle_fraction, -1),
        _row("vCPUs needed", "vCPUs", a.vcpus.needed_to_saturate, b.vcpus.needed_to_saturate, -1),
        *(_trace_rows(a, b) if a.trace or b.trace else ()),
    )
    known = tuple(row for row in rows if row.before is not None or row.after is not None)
    return Comparison(_side(a), _side(b), known, _differences(a, b))


def _trace_rows(a: Profile, b: Profile) -> tuple[Row, ...]:
    """The figures that only traces have."""
    step_a, step_b = (p.step_ms.p50 if p.step_ms else None for p in (a, b))
    idle_a, idle_b = (p.trace.idle_s if p.trace and p.trace.chips else None for p in (a, b))
    return (
        _row("device idle", "fraction", a.device_idle_fraction, b.device_idle_fraction, -1),
        _row("device idle time", "s", idle_a, idle_b, -1),
        _row("step, median", "ms", step_a, step_b, -1),
        _row("MXU utilization", "fraction", a.mxu_utilization, b.mxu_utilization, 1),
    )


def _row(name: str, unit: str, before: float | None, after: float | None, good: int) -> Row:
    if before is None or after is None:
        return Row(name, unit, before, after, None, None)
    ratio = after / before if before else None
    better = None if after == before else good * (after - before) > 0
    return Row(name, unit, before, after, ratio, better)


def _side(profile: Profile) -> Side:
    return Side(profile.target, profile.kind, profile.verdict, profile.headline, profile.created)


Fact = tuple[str, object, object]


def _differences(a: Profile, b: Profile) -> tuple[str, ...]:
    step_a, step_b = (p.device.step_ms if p.device else None for p in (a, b))
    facts: tuple[Fact, ...] = (
        ("batch size", a.batch_size, b.batch_size),
        ("image size", a.image_size, b.image_size),
        ("device step in ms", step_a, step_b),
        ("usable vCPUs", a.vcpus.available, b.vcpus.available),
        *_machines(a, b),
    )
    if (a.kind == "trace") != (b.kind == "trace"):
        facts = (("source", a.kind, b.kind),)
    return tuple(
        f"The {name} differs: {_known(before)} before, {_known(after)} after."
        for name, before, after in facts
        if before != after
    )


def _known(value: object) -> object:
    return "unknown" if value is None else value


def _machines(a: Profile, b: Profile) -> tuple[Fact, ...]:
    """The machines of both profiles, if both are known."""
    if a.host and b.host:
        return (
            ("machine", a.host.name, b.host.name),
            ("CPU", a.host.cpu_model, b.host.cpu_model),
            ("TensorFlow", a.host.tensorflow, b.host.tensorflow),
        )
    if a.trace and b.trace:
        return (
            ("accelerator", a.trace.accelerator, b.trace.accelerator),
            ("number of devices", len(a.trace.chips), len(b.trace.chips)),
        )
    return ()


@dataclass(frozen=True)
class Limit:
    """A condition under which a profile fails, such as `stall>0.1`."""

    text: str
    figure: str
    sign: str
    value: float

    def failure(self, profile: Profile) -> str | None:
        """Why a profile fails, or None; an unknown figure fails."""
        found = FIGURES[self.figure](profile)
        if found is None:
            return (
                f"{self.figure} is unknown for {profile.target}, so {self.text} cannot be checked."
            )
        if _COMPARE[self.sign](found, self.value):
            return f"{self.figure} is {found:.4g} for {profile.target}, so {self.text} is true."
        return None


def parse_limits(texts: Sequence[str] | None) -> tuple[Limit, ...]:
    """Read conditions such as `stall>0.1` or `idle >= 20%`; raises UsageError for anything else."""
    return tuple(map(_parse, texts or ()))


def check(profile: Profile, limits: Sequence[Limit]) -> Profile:
    """Check a profile against limits; the exceeded ones are in its `failures`."""
    failures = (limit.failure(profile) for limit in limits)
    return replace(profile, unmet=tuple(filter(None, failures)))


def _parse(text: str) -> Limit:
    match = _LIMIT.fullmatch(text)
    if not match or match[1] not in FIGURES:
        raise UsageError(
            f"--fail-if {text!r} is not a valid condition.",
            hint=f"Write it like 'stall>0.1'; the figures are {', '.join(FIGURES)}.",
        )
    value = float(match[3]) / (100 if match[4] else 1)
    return Limit(text.strip(), match[1], match[2], value)
