"""Compare two profiles."""

from dataclasses import dataclass

from tpuctl.outcome import Outcome
from tpuctl.profiling.models import Profile


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
    """The profile in one column."""

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
    rows = (
        _row("examples/s", "examples/s", a.pipeline_examples_per_s, b.pipeline_examples_per_s, 1),
        _row("CPU per example", "ms", a.cpu_ms_per_example, b.cpu_ms_per_example, -1),
        _row("input wait", "fraction", a.input_wait_fraction, b.input_wait_fraction, -1),
        _row("MXU idle", "fraction", a.mxu_idle_fraction, b.mxu_idle_fraction, -1),
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
    return Row(name, unit, before, after, ratio, good * (after - before) > 0)


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
    """The machines of the two, as far as both are known."""
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
