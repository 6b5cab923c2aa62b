"""A profile as one HTML file: verdict, figures, stages, evidence, advice, what was left out."""

from tpuctl.profiling.models import Advice, Profile, Stage
from tpuctl.profiling.trace.models import TraceDetail
from tpuctl.reporters import html, profile_deep, profile_trace, profile_whatif
from tpuctl.reporters.profile import predicted
from tpuctl.units import format_fraction

# Share of the whole, kind, what it is.
Piece = tuple[float, str, str]
COLUMNS = (
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


def page(profile: Profile) -> str:
    """Write the whole report."""
    what_if = profile_whatif.section(profile)
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
        script=profile_whatif.SCRIPT if "data-say" in what_if else "",
    )


def _measured(profile: Profile) -> list[str]:
    return [html.figures(_figures(profile)), *_loop(profile)]


def _loop(profile: Profile) -> list[str]:
    """A step of the training loop, drawn to scale: the wait for input, then the device."""
    shown = loop_pieces(profile)
    if not shown:
        return []
    legend = "; ".join(says for _, _, says in shown)
    return [html.section("An average step", html.strip(shown), html.paragraph(legend, css="soft"))]


def loop_pieces(profile: Profile) -> list[Piece]:
    """Divide an average step into waiting, computing and neither; nothing without a device."""
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
    """What only a trace shows: figures, the timeline, idle time by class, the longest gaps."""
    table = html.table(("", ""), profile_trace.figures(profile, trace))
    parts = [html.section("Figures", table)]
    if trace.timeline:
        parts.append(html.section("Timeline", html.strip(pieces(trace)), _legend(trace)))
    if trace.idle:
        bars = (
            (each.what, each.share_of_idle, f"{each.share_of_idle:.1%}, {each.idle_s:.3g} s", False)
            for each in trace.idle
        )
        gaps = html.bullets(profile_trace.gaps(trace))
        parts.append(
            html.section(f"Idle time: {trace.idle_s:.3g} s", html.bars(bars, wide=True), gaps)
        )
    return parts


def pieces(trace: TraceDetail) -> list[Piece]:
    """Divide the window of a trace into busy and idle stretches; nothing without devices."""
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


def _legend(trace: TraceDetail) -> str:
    start_s, end_s = trace.timeline[0].start_s, trace.timeline[-1].end_s
    return html.paragraph(
        f"{start_s:.4g} s to {end_s:.4g} s of the capture. Blue: devices busy; orange: idle while "
        "the host did what hovering tells; grey: idle and nothing was recorded.",
        css="soft",
    )


def _stages(profile: Profile) -> list[str]:
    if not profile.stages and profile.trace:
        return []
    return [html.section("Stages", html.bars(_bars(profile)), html.table(COLUMNS, _rows(profile)))]


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
        ("MXU idle", format_fraction(profile.mxu_idle_fraction)),
        ("vCPUs there", f"{profile.vcpus.available:g}"),
        ("vCPUs needed", "not said" if needed is None else f"{needed:.3g}"),
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


def _rows(profile: Profile) -> list[tuple[str, ...]]:
    return [_row(stage) for stage in profile.stages]


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
        profile_deep.operations(stage),
        stage.location or "",
        stage.method,
    )


def _windows(profile: Profile) -> list[str]:
    vcpus, length_s = profile.vcpus, profile.window.end_s - profile.window.start_s
    lines = [f"Window: {profile.steps:,} steps in {length_s:.1f} s, {profile.window.what}."]
    if profile.device:
        lines.append(f"Device: {profile.device.step_ms:.4g} ms per step, {profile.device.source}.")
    if vcpus.needed_to_saturate is None:
        lines.append(f"vCPUs needed are not said: {vcpus.why_null}.")
    else:
        lines.append(
            f"vCPUs needed: {vcpus.needed_to_saturate:.3g} ({vcpus.low:.3g} to {vcpus.high:.3g}); "
            f"{vcpus.used:.2f} of {vcpus.available:g} were used."
        )
    if profile.mxu_utilization is None:
        lines.append("MXU utilization was not collected.")
    if profile.overhead_fraction is not None:
        lines.append(f"Measuring took {profile.overhead_fraction:.1%} of the CPU time on top.")
    if profile.deep:
        lines.append(f"Host trace: {profile_deep.taken(profile.deep)}.")
    return lines


def _advice(advice: tuple[Advice, ...]) -> list[str]:
    if not advice:
        return []
    parts = (
        html.advice(f"{each.code}: {each.what}{predicted(each)}", each.change) for each in advice
    )
    return [html.section("Advice", *parts)]


def _left_out(profile: Profile) -> list[str]:
    if not profile.notes:
        return []
    left_out = profile.input.left_out if profile.input else ()
    files = (f"{path}: {reason}" for path, reason in left_out)
    return [html.section("Left out", html.bullets(profile.notes), html.bullets(files))]
