"""What the host trace adds to a profile: what it cost, and the operations inside the stages."""

from tpuctl.profiling.models import Profile, Stage
from tpuctl.profiling.trace.models import Deep
from tpuctl.units import format_bytes, format_fraction


def taken(deep: Deep) -> str:
    """Say how long was traced, how much that gave, and what it cost."""
    if deep.missing:
        return "none"
    parts = [f"{deep.traced_s:.1f} s, {format_bytes(deep.traced_bytes)}"]
    parts.append(f"{format_fraction(deep.overhead_fraction)} of the vCPUs meanwhile")
    if deep.slowdown is not None:
        parts.append(f"{deep.slowdown:+.1%} CPU time per element{_interval(deep)}")
    if deep.run_overhead_fraction is not None:
        cost, most = map(format_fraction, (deep.run_overhead_fraction, deep.run_overhead_most))
        run = f"over {deep.profiled_s:.0f} s of profiling"
        parts.append(f"{cost} of the vCPUs {run}, at most {most}")
    if deep.linked_fraction is not None:
        parts.append(f"{format_fraction(deep.linked_fraction)} of the work linked to a stage")
    return "; ".join(parts)


def _interval(deep: Deep) -> str:
    if deep.slowdown_low is None or deep.slowdown_high is None:
        return ""
    return f" ({deep.slowdown_low:+.1%} to {deep.slowdown_high:+.1%})"


def inside(profile: Profile) -> list[str]:
    """What the stages that are worth a word mostly do, by operation."""
    shown = [stage for stage in profile.stages if stage.operations and stage.is_notable]
    return [f"{stage.name}: {operations(stage)}" for stage in shown]


def operations(stage: Stage) -> str:
    """The operations of a stage with their shares of its work."""
    return ", ".join(f"{each.name} {each.share_of_stage:.0%}" for each in stage.operations)
