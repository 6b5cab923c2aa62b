"""A profile as one HTML file: the answer, time per batch, evidence, what to do, details."""

import math
from html import escape

from tpuctl.profiling.case import CPU_REGIMES
from tpuctl.profiling.models import Profile, Stage
from tpuctl.profiling.trace.models import TraceDetail
from tpuctl.profiling.whatif import Scaling
from tpuctl.profiling.whatif import what_if as compute_what_if
from tpuctl.reporters import html, profile_trace
from tpuctl.reporters.profile import figures, prediction, stage_operations

# Share of the whole, kind, what it is.
Piece = tuple[float, str, str]
# Titles of the columns; those of the short table are marked.
_COLUMNS = (
    "*stage", "*share of CPU", "*CPU ms per example", "from", "to", "*calls in flight", "allowed",
    "*alone, examples/s", "operation", "inside", "where", "method",
)  # fmt: skip
# As many stages have a colour of their own.
_MOST_STAGES = 4
OTHER = "other"


def profile_page(profile: Profile) -> str:
    """Write the whole report."""
    trace, left_out = profile.trace, profile.input.left_out if profile.input else ()
    files = (f"{path}: {reason}" for path, reason in left_out)
    return html.report(
        "profile",
        profile.headline,
        what_was_measured(profile),
        charts=[time_chart({"input": profile})],
        evidence=[
            html.bullets(profile.evidence),
            *(_timeline(trace) if trace and trace.timeline else ()),
            stages(profile, "*"),
        ],
        to_do=[advice_steps(profile), _what_if(profile)],
        details=[
            ("How it was measured", html.table(("", ""), list(figures(profile)))),
            ("Stages in full", stages(profile)),
            ("Left out", html.bullets(profile.notes) + html.bullets(files)),
        ],
    )


def advice_steps(profile: Profile) -> str:
    """Write the advice, the most useful first."""
    return html.steps((each.what + prediction(each), each.change) for each in profile.advice)


def what_was_measured(profile: Profile) -> str:
    """Say what was measured, on which machine, and when."""
    sure = "" if profile.verdict == "unknown" else f", confidence {profile.confidence:.2g}"
    batch = f", batch {profile.batch_size:,}" if profile.batch_size else ""
    on = ""
    if host := profile.host:
        framework = f" with TensorFlow {host.tensorflow}" if host.tensorflow else ""
        on = f" on {host.vcpus} vCPUs, {host.cpu_model}{framework}"
    date = profile.created[:16].replace("T", " ")
    return (
        f"{profile.target} ({profile.kind}){batch}; verdict {profile.verdict}{sure}; "
        f"{'read' if profile.trace else 'measured'} {date}{on} by tpuctl {profile.tpuctl_version}"
    )


def time_chart(profiles: dict[str, Profile]) -> str:
    """Draw the answer of profiles under their names, on one scale."""
    rows, title, unit, hot = _bars(profiles)
    names = dict.fromkeys(name for parts in rows.values() for name in parts)
    series = {name: [parts.get(name) for parts in rows.values()] for name in names}
    first = next(iter(profiles.values()))
    note = f"Device time: {first.device.source}." if first.device else ""
    return html.chart(title, list(rows), series, unit=unit, note=note, hot=hot) if rows else ""


def profile_png(profile: Profile) -> bytes:
    """Draw the chart of the page as a PNG; raises MissingExtraError without matplotlib."""
    from tpuctl.training._plot import draw_bars, png_of

    rows, x, unit, hot = _bars({"input": profile})
    about = html.without_folders(what_was_measured(profile))
    return png_of(draw_bars(rows, x=x, unit=unit, title=profile.headline, about=about, hot=hot))


def _bars(profiles: dict[str, Profile]) -> tuple[dict[str, dict[str, float]], str, str, str]:
    """Return the bars of the answer by part, their title and unit, and the part to highlight.

    They are the time of a batch, or where the time of a trace went, or the cost of each stage.
    """
    first = next(iter(profiles.values()))
    hot = next((stage.name for stage in first.stages if stage.is_bottleneck), "")
    if trace := first.trace:
        length_s = first.window.end_s - first.window.start_s
        bars = {"devices busy": {"busy": max(0.0, length_s - trace.idle_s)}} if trace.chips else {}
        bars |= {f"idle: {each.what}": {"idle": each.idle_s} for each in trace.idle}
        if bars:
            return bars, f"Where {length_s:.3g} seconds of the devices went", "s", "idle"
    if bars := batch_times(profiles):
        return bars, f"Milliseconds per batch of {first.batch_size:,} examples", "ms", hot
    costs = {each.name: {"CPU": each.cpu_ms_per_example} for each in first.stages}
    return costs, "Milliseconds of CPU time per example", "ms", ""


def batch_times(profiles: dict[str, Profile]) -> dict[str, dict[str, float]]:
    """Return the milliseconds that a batch takes on the device and in each pipeline, by part.

    Where vCPUs are the limit, the parts are the stages, in proportion to their CPU time. It is
    empty where the device's time is unknown.
    """
    first = next(iter(profiles.values()))
    if not first.device:
        return {}
    rows = {"device": {"device": first.device.step_ms}}
    stages = sorted(first.stages, key=lambda stage: -stage.cpu_ms_per_example)
    shown = [stage.name for stage in stages[:_MOST_STAGES]]
    for name, profile in profiles.items():
        if not profile.batch_size or not profile.pipeline_examples_per_s:
            return {}
        whole_ms = profile.batch_size / profile.pipeline_examples_per_s * 1e3
        rows[name] = {"input": whole_ms}
        if profile.verdict in CPU_REGIMES and shown:
            shares = {stage.name: stage.share_of_cpu for stage in profile.stages}
            parts = {stage: whole_ms * shares.get(stage, 0.0) for stage in shown}
            rows[name] = {**parts, OTHER: max(0.0, whole_ms - sum(parts.values()))}
    return rows


def _timeline(trace: TraceDetail) -> list[str]:
    start_s, end_s = trace.timeline[0].start_s, trace.timeline[-1].end_s
    legend = (
        f"Timeline from {start_s:.4g} s to {end_s:.4g} s of the capture. Blue: devices busy; "
        "orange: idle (hover to see what the host did); grey: idle and nothing was recorded."
    )
    gaps = profile_trace.gap_lines(trace)
    strip = html.strip(timeline_pieces(trace), f"{legend} Gaps: {'; '.join(gaps)}")
    longest = [html.paragraph("The longest gaps:"), html.bullets(gaps)] if gaps else []
    return [strip, html.paragraph(legend, css="soft"), *longest]


def timeline_pieces(trace: TraceDetail) -> list[Piece]:
    """Divide the window of a trace into busy and idle stretches; empty without devices."""
    if not trace.timeline:
        return []
    what = {each.code: each.what for each in trace.idle}
    whole = trace.timeline[-1].end_s - trace.timeline[0].start_s
    return [
        (
            (piece.end_s - piece.start_s) / whole,
            piece.what if piece.what in ("busy", "none") else "wait",
            f"{piece.start_s:.4g} to {piece.end_s:.4g} s: {what.get(piece.what, piece.what)}",
        )
        for piece in trace.timeline
    ]


def stages(profile: Profile, mark: str = "") -> str:
    """Write the table of stages: all columns, or those with a mark."""
    kept = [at for at, title in enumerate(_COLUMNS) if title.startswith(mark)]
    rows = [[row[at] for at in kept] for row in map(_row, profile.stages)]
    titles = [_COLUMNS[at].lstrip("*") for at in kept]
    return html.table(titles, rows, name=f"Stages of {profile.target}")


def _row(stage: Stage) -> tuple[str, ...]:
    alone = stage.examples_per_s_alone
    return (
        stage.name,
        f"{stage.share_of_cpu:.1%}",
        f"{stage.cpu_ms_per_example:.3g}",
        f"{stage.cpu_ms_low:.3g}",
        f"{stage.cpu_ms_high:.3g}",
        f"{stage.calls_in_flight:.2f}",
        f"{stage.parallelism or 1}",
        "" if alone is None else f"{alone:,.0f}",
        stage.op,
        stage_operations(stage),
        stage.location or "",
        stage.method,
    )


_MIN_SLIDER_VCPUS = 16
# The step-time slider moves in thousandths of a power of ten around what was measured, from 0.1 ms
# to 100 s.
SCALE = 1000
_SHORTEST, _LONGEST = -1, 5
_TYPICAL_STEP_MS = 100.0


def _what_if(profile: Profile) -> str:
    """Draw sliders set to what was measured, or say why they would mislead."""
    cpu_ms, batch = profile.cpu_ms_per_example, profile.batch_size
    if not cpu_ms or not batch:
        return ""
    if profile.verdict not in CPU_REGIMES:
        why = f"The verdict is {profile.verdict}: more vCPUs would not help."
        return html.paragraph(f"What if there were more vCPUs? {why}", css="soft")
    step_ms = profile.device.step_ms if profile.device else _TYPICAL_STEP_MS
    vcpus = max(1, round(profile.vcpus.available or 1))
    ends = [round((end - math.log10(step_ms)) * SCALE) for end in (_SHORTEST, _LONGEST)]
    scaling = profile.scaling or Scaling(busy_vcpus=vcpus)
    shown = compute_what_if(
        batch_size=batch,
        cpu_ms_per_example=cpu_ms,
        vcpus=vcpus,
        step_ms=step_ms,
        scaling=scaling,
    )
    wanted = shown.vcpus_needed if math.isfinite(shown.vcpus_needed) else vcpus
    most = max(_MIN_SLIDER_VCPUS, 2 * math.ceil(max(vcpus, wanted)))
    say = '<span data-say="{}"></span>'.format
    return (
        f'<div class="whatif" data-batch="{batch}" data-cpu="{cpu_ms!r}" data-step="{step_ms!r}" '
        f'data-scale="{SCALE}"'
        f"{_given(scaling)}><b>What if?</b>"
        + _slider("vcpus", "vCPUs of the host", "", 1, most, vcpus)
        + _slider("step", "device step", " ms", min(ends[0], 0), max(ends[1], 0), 0)
        + f'<i style="--share:{shown.mxu_idle_fraction:.4f}"></i><p aria-live="polite">'
        f"The MXU would be idle <b>{say('idle')} %</b> of the time ({say('least')} % to "
        f"{say('most')} %, within the uncertainty of the measurement): {say('rate')} examples/s. "
        f"To keep it busy: {say('needed')} vCPUs.</p>"
        f"{html.paragraph(_basis(batch, cpu_ms, scaling), css='soft')}</div>"
    )


def _basis(batch: int, cpu_ms: float, scaling: Scaling) -> str:
    return (
        f"{cpu_ms:.4g} ms CPU per example, batches of {batch:,}; the idle share of the MXU is "
        "1 - step x vCPUs / (batch x CPU), and more where batches come unevenly. With every "
        f"doubling of the {scaling.busy_vcpus:.2g} vCPUs that were busy, an example takes "
        f"{scaling.growth:.0%} more CPU time ({scaling.growth_low:.0%} to "
        f"{scaling.growth_high:.0%}). Other limits are not considered."
    )


def _given(scaling: Scaling) -> str:
    values = {
        "busy": scaling.busy_vcpus,
        "growth": scaling.growth,
        "growth-low": scaling.growth_low,
        "growth-high": scaling.growth_high,
        "cpu-low": scaling.cpu_low,
        "cpu-high": scaling.cpu_high,
        "unevenness": scaling.unevenness,
        "ahead": scaling.batches_ahead,
        "serial": scaling.serial_ms,
        "serial-most": max(scaling.serial_ms, scaling.serial_high_ms),
    }
    return "".join(f' data-{name}="{value!r}"' for name, value in values.items())


def _slider(name: str, label: str, unit: str, low: int, high: int, value: int) -> str:
    return (
        f"<label><span>{escape(label)}</span>"
        f'<input type="range" name="{name}" min="{low}" max="{high}" value="{value}">'
        f'<b><span data-say="{name}"></span>{unit}</b></label>'
    )
