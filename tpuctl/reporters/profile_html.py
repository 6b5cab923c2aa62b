"""A profile as one HTML file: verdict, figures, stages, sliders, evidence, advice, omissions."""

import math
from html import escape

from tpuctl.profiling.case import CPU_REGIMES, name_idle
from tpuctl.profiling.models import Advice, Profile, Stage
from tpuctl.profiling.trace.models import TraceDetail
from tpuctl.profiling.whatif import Scaling
from tpuctl.profiling.whatif import what_if as compute_what_if
from tpuctl.reporters import html, profile_trace
from tpuctl.reporters.profile import deep_summary, prediction, stage_operations
from tpuctl.units import format_fraction

# Share of the whole, kind, what it is.
Piece = tuple[float, str, str]
_COLUMNS = (
    "stage",
    "share of CPU",
    "CPU ms per example",
    "from",
    "to",
    "calls in flight",
    "allowed",
    "alone, examples/s",
    "operation",
    "inside",
    "where",
    "method",
)


def profile_page(profile: Profile) -> str:
    """Write the whole report."""
    what_if = _what_if(profile)
    return html.page(
        f"Input pipeline of {profile.target}",
        html.title(profile.headline),
        html.paragraph(_what_was_measured(profile), css="soft"),
        *(_trace(profile, profile.trace) if profile.trace else _measured(profile)),
        *_stages(profile),
        what_if,
        html.section("Evidence", html.bullets((*profile.evidence, *_windows(profile)))),
        *_advice(profile.advice),
        *_left_out(profile),
        script=_SCRIPT if "data-say" in what_if else "",
    )


def _measured(profile: Profile) -> list[str]:
    parts = [html.figures(_figures(profile))]
    if shown := step_pieces(profile):
        legend = html.paragraph("; ".join(says for _, _, says in shown), css="soft")
        parts.append(html.section("An average step", html.strip(shown), legend))
    return parts


def step_pieces(profile: Profile) -> list[Piece]:
    """Divide an average step into waiting, computing and neither; empty without a device."""
    wait, step = profile.input_wait_fraction, profile.step_ms
    if wait is None or step is None:
        return []
    busy = 1 - (profile.device_idle_fraction or 0.0)
    rest = max(0.0, 1 - wait - busy)
    parts = [
        (wait, "wait", f"waiting for input: {wait * step.mean:.4g} ms"),
        (busy, "busy", f"device busy: {busy * step.mean:.4g} ms"),
        (rest, "none", f"neither: {rest * step.mean:.4g} ms"),
    ]
    return [part for part in parts if part[0] > 0]


def _trace(profile: Profile, trace: TraceDetail) -> list[str]:
    table = html.table(("", ""), profile_trace.figures(profile, trace))
    parts = [html.section("Figures", table)]
    if trace.timeline:
        start_s, end_s = trace.timeline[0].start_s, trace.timeline[-1].end_s
        legend = (
            f"{start_s:.4g} s to {end_s:.4g} s of the capture. Blue: devices busy; orange: idle "
            "(hover to see what the host did); grey: idle and nothing was recorded."
        )
        strip = html.strip(timeline_pieces(trace))
        parts.append(html.section("Timeline", strip, html.paragraph(legend, css="soft")))
    if trace.idle:
        bars = (
            (each.what, each.share_of_idle, f"{each.share_of_idle:.1%}, {each.idle_s:.3g} s", False)
            for each in trace.idle
        )
        gaps = html.bullets(profile_trace.gap_lines(trace))
        parts.append(
            html.section(f"Idle time: {trace.idle_s:.3g} s", html.bars(bars, wide=True), gaps)
        )
    return parts


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


def _stages(profile: Profile) -> list[str]:
    if not profile.stages and profile.trace:
        return []
    return [
        html.section(
            "Stages", html.bars(_bars(profile)), html.table(_COLUMNS, map(_row, profile.stages))
        )
    ]


def _what_was_measured(profile: Profile) -> str:
    sure = "" if profile.verdict == "unknown" else f", confidence {profile.confidence:.2g}"
    batch = f", batch {profile.batch_size:,}" if profile.batch_size else ""
    on = ""
    if host := profile.host:
        framework = f" with TensorFlow {host.tensorflow}" if host.tensorflow else ""
        on = f" on {host.cpu_model}{framework}"
    return (
        f"{profile.target} ({profile.kind}){batch}; verdict {profile.verdict}{sure}; "
        f"{'read' if profile.trace else 'measured'} {profile.created}{on} "
        f"by tpuctl {profile.tpuctl_version}"
    )


def _figures(profile: Profile) -> list[tuple[str, str]]:
    needed = profile.vcpus.needed_to_saturate
    device = profile.device_examples_per_s
    return [
        ("examples/s from the pipeline", f"{profile.pipeline_examples_per_s:,.0f}"),
        ("examples/s for the device", "not measured" if device is None else f"{device:,.0f}"),
        ("ms CPU per example", f"{profile.cpu_ms_per_example:.3g}"),
        ("input wait", format_fraction(profile.input_wait_fraction)),
        (name_idle(profile.device, profile.host), format_fraction(profile.mxu_idle_fraction)),
        ("vCPUs available", f"{profile.vcpus.available:g}"),
        ("vCPUs needed", "unknown" if needed is None else f"{needed:.3g}"),
    ]


def _bars(profile: Profile) -> list[tuple[str, float, str, bool]]:
    stages = [
        (each.name, each.share_of_cpu, f"{each.cpu_ms_per_example:.3g} ms", each.is_bottleneck)
        for each in profile.stages
    ]
    if rest := profile.residual:
        spare = f"{rest.cpu_ms_per_example:.3g} ms"
        stages.append(("(not in a stage)", rest.share_of_cpu, spare, False))
    return stages


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


def _windows(profile: Profile) -> list[str]:
    vcpus, length_s = profile.vcpus, profile.window.end_s - profile.window.start_s
    lines = [f"Window: {profile.steps:,} steps in {length_s:.1f} s, {profile.window.what}."]
    if profile.device:
        lines.append(f"Device: {profile.device.step_ms:.4g} ms per step, {profile.device.source}.")
    if vcpus.needed_to_saturate is None:
        lines.append(f"vCPUs needed: unknown, {vcpus.why_null}.")
    else:
        lines.append(
            f"vCPUs needed: {vcpus.needed_to_saturate:.3g} ({vcpus.low:.3g} to {vcpus.high:.3g}); "
            f"{vcpus.used:.2f} of {vcpus.available:g} were used."
        )
    if profile.mxu_utilization is None and "MXU" in name_idle(profile.device, profile.host):
        lines.append("MXU utilization was not collected.")
    if profile.overhead_fraction is not None:
        lines.append(f"Measuring added {profile.overhead_fraction:.1%} of the CPU time.")
    if profile.deep:
        lines.append(f"Host trace: {deep_summary(profile.deep)}.")
    return lines


def _advice(advice: tuple[Advice, ...]) -> list[str]:
    if not advice:
        return []
    parts = (
        html.advice(f"{each.code}: {each.what}{prediction(each)}", each.change) for each in advice
    )
    return [html.section("Advice", *parts)]


def _left_out(profile: Profile) -> list[str]:
    if not profile.notes:
        return []
    left_out = profile.input.left_out if profile.input else ()
    files = (f"{path}: {reason}" for path, reason in left_out)
    return [html.section("Left out", html.bullets(profile.notes), html.bullets(files))]


_SCRIPT = "whatif.js"
_MIN_SLIDER_VCPUS = 16
# The step-time slider moves in thousandths of a power of ten, from 0.1 ms to 100 s.
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
        return html.section("What if", html.paragraph(why, css="soft"))
    step_ms = profile.device.step_ms if profile.device else _TYPICAL_STEP_MS
    vcpus = max(1, round(profile.vcpus.available or 1))
    position = round(math.log10(step_ms) * SCALE)
    scaling = profile.scaling or Scaling(busy_vcpus=vcpus)
    shown = compute_what_if(
        batch_size=batch,
        cpu_ms_per_example=cpu_ms,
        vcpus=vcpus,
        step_ms=10 ** (position / SCALE),
        scaling=scaling,
    )
    wanted = shown.vcpus_needed if math.isfinite(shown.vcpus_needed) else vcpus
    most = max(_MIN_SLIDER_VCPUS, 2 * math.ceil(max(vcpus, wanted)))
    return html.section(
        "What if",
        f'<div class="whatif" data-batch="{batch}" data-cpu="{cpu_ms!r}" data-scale="{SCALE}"'
        + _given(scaling)
        + ">"
        + _slider("vcpus", "vCPUs of the host", "", 1, most, vcpus)
        + _slider("step", "device step", " ms", _SHORTEST * SCALE, _LONGEST * SCALE, position)
        + '<div class="bars"><div class="bar hot"><span>MXU idle</span>'
        + f'<i style="--share:{shown.mxu_idle_fraction:.4f}"></i>'
        + '<b><span data-say="idle"></span> %</b></div></div>'
        + '<p>Between <span data-say="least"></span> % and <span data-say="most"></span> % idle, '
        + 'within the uncertainty of the measurement; <span data-say="rate"></span> examples/s; '
        + 'the device would need <span data-say="needed"></span> vCPUs.</p></div>',
        html.paragraph(_basis(batch, cpu_ms, scaling), css="soft"),
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
    }
    return "".join(f' data-{name}="{value!r}"' for name, value in values.items())


def _slider(name: str, label: str, unit: str, low: int, high: int, value: int) -> str:
    return (
        f"<label><span>{escape(label)}</span>"
        f'<input type="range" name="{name}" min="{low}" max="{high}" value="{value}">'
        f'<b><span data-say="{name}"></span>{unit}</b></label>'
    )
