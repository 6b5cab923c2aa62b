"""What only a trace shows, as text: idle time by what the host did, and the longest gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.reporters import layout
from tpuctl.units import format_duration, format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from tpuctl.profiling.models import Profile
    from tpuctl.profiling.trace.models import Gap, TraceDetail

_GAPS_SHOWN = 5
# A gap or a class with a smaller share of the idle time is not shown.
_NOTABLE = 0.005


def figures(profile: Profile, trace: TraceDetail) -> Iterator[tuple[str, str]]:
    """Yield the figures of a trace by name, in the order in which a reader asks for them."""
    devices = "no device"
    if trace.chips:
        devices = f"{trace.accelerator or 'unnamed device'} x {len(trace.chips)}"
    length_s = profile.window.end_s - profile.window.start_s
    window = f"{format_duration(length_s)}, {profile.window.what}"
    yield "trace", f"{profile.target} ({devices})"
    if profile.device_idle_fraction is not None:
        name = "MXU idle" if profile.mxu_idle_fraction is not None else "device idle"
        yield name, f"{format_fraction(profile.device_idle_fraction)} of {window}"
        if trace.steps.device_idle_fraction is not None:
            yield "idle in steps", format_fraction(trace.steps.device_idle_fraction)
    else:
        yield "device", profile.why_no_device or "not measured"
        yield "window", window
    if profile.mxu_idle_fraction is not None:
        yield "MXU used", _mxu(profile, trace)
    waited = profile.input_wait_fraction
    no_input = "unknown: no input pipeline was recorded"
    yield "input wait", no_input if waited is None else format_fraction(waited)
    if profile.pipeline_examples_per_s is not None:
        rate = f"{profile.pipeline_examples_per_s:,.0f} examples/s"
        yield "pipeline", f"{rate}, batch {profile.batch_size:,}"
    yield "steps", _steps(profile, trace)
    yield "vCPUs needed", f"unknown: {profile.vcpus.why_null}"
    if len(trace.hosts) > 1:
        parts = (f"{h.name} {format_fraction(h.device_idle_fraction)}" for h in trace.hosts)
        yield "hosts", f"idle on each: {', '.join(parts)}; shown is the one idle most"


def idle_table(trace: TraceDetail) -> Table:
    """Show what the host did while the devices were idle."""
    title = f"idle {format_duration(trace.idle_s)}"
    right = ("share", "time", "active")
    table = layout.table(title, "share", "", "time", "active", right=right)
    for column in table.columns[1:]:
        column.no_wrap = True
    for each in trace.idle:
        share = each.share_of_idle
        if share >= _NOTABLE or each.active_share >= _NOTABLE:
            time, active = format_duration(each.idle_s), f"{each.active_share:.0%}"
            table.add_row(each.what, f"{share:.1%}", layout.bar(share), time, active)
    return table


def gap_lines(trace: TraceDetail) -> list[str]:
    """Describe the longest gaps, in order of time."""
    notable = [gap for gap in trace.gaps if _length_s(gap) >= _NOTABLE * trace.idle_s]
    longest = sorted(notable, key=_length_s, reverse=True)[:_GAPS_SHOWN]
    what = {each.code: each.what for each in trace.idle}
    return [
        f"at {format_duration(gap.start_s)}, for {format_duration(_length_s(gap))}: "
        + ", ".join(what.get(code, code) for code in gap.classes)
        for gap in sorted(longest, key=lambda gap: gap.start_s)
    ]


def _length_s(gap: Gap) -> float:
    return gap.end_s - gap.start_s


def _mxu(profile: Profile, trace: TraceDetail) -> str:
    if profile.mxu_utilization is not None:
        return format_fraction(profile.mxu_utilization)
    if trace.flops_of_peak is None:
        return "not collected"
    return f"not collected; at most {format_fraction(trace.flops_of_peak)} (FLOPs of the peak)"


def _steps(profile: Profile, trace: TraceDetail) -> str:
    steps, times = trace.steps, profile.step_ms
    if times is None:
        return steps.source
    cut = f"; {steps.dropped} cut off by the capture left out" if steps.dropped else ""
    return (
        f"{steps.count:,}, median {times.p50:.4g} ms, mean {times.mean:.4g} ms, "
        f"95 % within {times.p95:.4g} ms ({steps.source}{cut})"
    )
