"""Two profiles side by side."""

from dataclasses import dataclass

from tpuctl.outcome import Outcome
from tpuctl.pipeline.models import Profile


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
    """Which profile one column is about."""

    target: str
    kind: str
    verdict: str
    headline: str
    created: str


@dataclass(frozen=True)
class Comparison(Outcome):
    """What changed from one profile to another."""

    before: Side
    after: Side
    rows: tuple[Row, ...]
    differences: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the two not quite comparable."""
        return self.differences


def diff(a: Profile, b: Profile) -> Comparison:
    """Compare a profile with a later one."""
    rows = (
        _row("examples/s", "examples/s", a.pipeline_examples_per_s, b.pipeline_examples_per_s, 1),
        _row("CPU per example", "ms", a.cpu_ms_per_example, b.cpu_ms_per_example, -1),
        _row("input wait", "fraction", a.input_wait_fraction, b.input_wait_fraction, -1),
        _row("MXU idle", "fraction", a.mxu_idle_fraction, b.mxu_idle_fraction, -1),
        _row("vCPUs needed", "vCPUs", a.vcpus.needed_to_saturate, b.vcpus.needed_to_saturate, -1),
    )
    return Comparison(_side(a), _side(b), rows, _differences(a, b))


def _row(name: str, unit: str, before: float | None, after: float | None, good: int) -> Row:
    if before is None or after is None:
        return Row(name, unit, before, after, None, None)
    ratio = after / before if before else None
    return Row(name, unit, before, after, ratio, good * (after - before) > 0)


def _side(profile: Profile) -> Side:
    return Side(profile.target, profile.kind, profile.verdict, profile.headline, profile.created)


def _differences(a: Profile, b: Profile) -> tuple[str, ...]:
    step_a, step_b = (p.device.step_ms if p.device else None for p in (a, b))
    facts = (
        ("batch size", a.batch_size, b.batch_size),
        ("image size", a.image_size, b.image_size),
        ("device step in ms", step_a, step_b),
        ("machine", a.host.name, b.host.name),
        ("CPU", a.host.cpu_model, b.host.cpu_model),
        ("usable vCPUs", a.vcpus.available, b.vcpus.available),
        ("TensorFlow", a.host.tensorflow, b.host.tensorflow),
    )
    return tuple(
        f"The {name} differs: {before} before, {after} after."
        for name, before, after in facts
        if before != after
    )
