"""What only a trace tells, as text: idle time by what the host did, the longest gaps."""

from rich.table import Table
from rich.text import Text

from tpuctl.profiling.models import Profile
from tpuctl.profiling.trace.models import Gap, IdleClass, TraceDetail
from tpuctl.reporters.bars import bar
from tpuctl.units import format_duration, format_fraction

GAPS_SHOWN = 5
# A gap or a class below this share of the idle time is not worth a line.
NOTABLE = 0.005
NO_INPUT = "unknown: no input pipeline was recorded"


def figures(profile: Profile, trace: TraceDetail) -> list[tuple[str, str]]:
    """Name the figures of a trace in the order that a reader asks for them."""
    rows = [("trace", f"{profile.target} ({_devices(trace)})")]
    if profile.device_idle_fraction is not None:
        name = "MXU idle" if profile.mxu_idle_fraction is not None else "device idle"
        rows.append(
            (name, f"{format_fraction(profile.device_idle_fraction)} of {_window(profile)}")
        )
        if trace.steps.device_idle_fraction is not None:
            rows.append(("in its steps", format_fraction(trace.steps.device_idle_fraction)))
    else:
        rows.append(("device", profile.why_no_device or "not measured"))
        rows.append(("window", _window(profile)))
    if profile.mxu_idle_fraction is not None:
        rows.append(("MXU used", _mxu(profile, trace)))
    waited = profile.input_wait_fraction
    rows.append(("input wait", NO_INPUT if waited is None else format_fraction(waited)))
    if profile.pipeline_examples_per_s is not None:
        rate = f"{profile.pipeline_examples_per_s:,.0f} examples/s, batch {profile.batch_size:,}"
        rows.append(("pipeline gave", rate))
    rows.append(("steps", _steps(profile, trace)))
    rows.append(("vCPUs needed", f"not said: {profile.vcpus.why_null}"))
    if len(trace.hosts) > 1:
        rows.append(("hosts", _hosts(trace)))
    return rows


def idle(trace: TraceDetail) -> Table:
    """Show to what the idle time belongs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"idle {format_duration(trace.idle_s)}", overflow="fold")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("went on in", justify="right", no_wrap=True)
    for each in trace.idle:
        if each.share_of_idle >= NOTABLE or each.active_share >= NOTABLE:
            table.add_row(*_idle_cells(each))
    return table


def gaps(trace: TraceDetail) -> list[str]:
    """Describe the longest gaps, in order of time."""
    notable = [gap for gap in trace.gaps if _length_s(gap) >= NOTABLE * trace.idle_s]
    longest = sorted(notable, key=_length_s, reverse=True)[:GAPS_SHOWN]
    what = {each.code: each.what for each in trace.idle}
    return [
        f"from {format_duration(gap.start_s)}, {format_duration(_length_s(gap))}: "
        + ", ".join(what.get(code, code) for code in gap.classes)
        for gap in sorted(longest, key=lambda gap: gap.start_s)
    ]


def _idle_cells(each: IdleClass) -> tuple[str, str, Text, str, str]:
    share = each.share_of_idle
    return (
        each.what,
        f"{share:.1%}",
        bar(share, ""),
        format_duration(each.idle_s),
        f"{each.active_share:.0%}",
    )


def _length_s(gap: Gap) -> float:
    return gap.end_s - gap.start_s


def _devices(trace: TraceDetail) -> str:
    if not trace.chips:
        return "no device"
    return f"{trace.accelerator or 'unnamed device'} x {len(trace.chips)}"


def _window(profile: Profile) -> str:
    length_s = profile.window.end_s - profile.window.start_s
    return f"{format_duration(length_s)}, {profile.window.what}"


def _mxu(profile: Profile, trace: TraceDetail) -> str:
    if profile.mxu_utilization is not None:
        return format_fraction(profile.mxu_utilization)
    if trace.flops_of_peak is None:
        return "not collected"
    return f"not collected; at most {format_fraction(trace.flops_of_peak)}: FLOPs done of the peak"


def _steps(profile: Profile, trace: TraceDetail) -> str:
    steps, times = trace.steps, profile.step_ms
    if times is None:
        return steps.source
    cut = f"; {steps.dropped} cut off by the capture left out" if steps.dropped else ""
    return (
        f"{steps.count:,}, median {times.p50:.4g} ms, mean {times.mean:.4g} ms, "
        f"95 % within {times.p95:.4g} ms ({steps.source}{cut})"
    )


def _hosts(trace: TraceDetail) -> str:
    parts = (f"{host.name} {format_fraction(host.device_idle_fraction)}" for host in trace.hosts)
    return f"idle on each: {', '.join(parts)}; the one that was idle most is shown"
