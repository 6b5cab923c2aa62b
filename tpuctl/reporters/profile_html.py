"""A profile as one HTML file: verdict, figures, stages, evidence, advice, what was left out."""

from tpuctl.pipeline.models import Advice, Profile, Stage
from tpuctl.reporters import html
from tpuctl.reporters.profile import predicted
from tpuctl.units import format_fraction

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
    "where",
    "method",
)


def page(profile: Profile) -> str:
    """Write the whole report."""
    return html.page(
        f"Input pipeline of {profile.target}",
        html.title(profile.headline),
        html.paragraph(_what_was_measured(profile), css="soft"),
        html.figures(_figures(profile)),
        html.section("Stages", html.bars(_bars(profile)), html.table(COLUMNS, _rows(profile))),
        html.section("Evidence", html.bullets((*profile.evidence, *_windows(profile)))),
        *_advice(profile.advice),
        *_left_out(profile),
    )


def _what_was_measured(profile: Profile) -> str:
    sure = "" if profile.verdict == "unknown" else f", confidence {profile.confidence:.2g}"
    return (
        f"{profile.target} ({profile.kind}), batch {profile.batch_size:,}; verdict "
        f"{profile.verdict}{sure}; measured {profile.created} on {profile.host.cpu_model} with "
        f"TensorFlow {profile.host.tensorflow} by tpuctl {profile.tpuctl_version}"
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
    rest = profile.residual
    stages = [
        (each.name, each.share_of_cpu, f"{each.cpu_ms_per_example:.3g} ms", each.is_bottleneck)
        for each in profile.stages
    ]
    spare = ("(not in a stage)", rest.share_of_cpu, f"{rest.cpu_ms_per_example:.3g} ms", False)
    return [*stages, spare]


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
    lines.append("MXU utilization was not collected.")
    lines.append(f"Measuring took {profile.overhead_fraction:.1%} of the CPU time on top.")
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
    files = (f"{path}: {reason}" for path, reason in profile.input.left_out)
    return [html.section("Left out", html.bullets(profile.notes), html.bullets(files))]
