"""A profile as one HTML file that needs nothing else: no network, no scripts."""

import html

from tpuctl.pipeline.models import Advice, Profile, Stage
from tpuctl.units import format_fraction

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff;max-width:60rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .7rem .3rem 0;border-bottom:1px solid #e5e8eb}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{background:#eef1f4;width:14rem;height:1rem}
.bar i{display:block;height:1rem;background:#4a80c4}
.worst .bar i{background:#c0392b}.worst td:first-child{font-weight:600}
code{background:#f4f6f8;padding:.1rem .3rem;overflow-wrap:anywhere}
small,.dim{color:#5d6771}
@media(prefers-color-scheme:dark){body{color:#e6e9ec;background:#14171a}code,.bar{background:#262b30}
td,th{border-color:#30363c}small,.dim{color:#98a2ac}}
"""


def page(profile: Profile) -> str:
    """Write the whole report."""
    title = _escape(f"Input pipeline of {profile.target}")
    body = "\n".join(
        (
            f"<h1>{_escape(profile.headline)}</h1>",
            f"<p><code>{_escape(profile.target)}</code> <small>verdict {profile.verdict}, "
            f"confidence {profile.confidence:.2g}, measured {_escape(profile.created)} on "
            f"{_escape(profile.host.cpu_model)}, tpuctl {_escape(profile.tpuctl_version)}</small>",
            _figures(profile),
            "<h2>Stages</h2>",
            _stages(profile),
            "<h2>Evidence</h2>",
            _items(profile.evidence),
            _advice(profile.advice),
            _left_out(profile),
        )
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _figures(profile: Profile) -> str:
    vcpus = profile.vcpus
    needed = (
        f"{vcpus.needed_to_saturate:.3g} ({vcpus.low:.3g} to {vcpus.high:.3g})"
        if vcpus.needed_to_saturate is not None
        else f"not said: {vcpus.why_null}"
    )
    rows = [
        ("Pipeline gives", f"{profile.pipeline_examples_per_s:,.0f} examples/s"),
        ("CPU per example", f"{profile.cpu_ms_per_example:.3g} ms"),
        ("Input wait", format_fraction(profile.input_wait_fraction)),
        ("MXU idle", format_fraction(profile.mxu_idle_fraction)),
        ("MXU utilization", "not collected"),
        ("Window", f"{profile.steps:,} steps, {profile.window.what}"),
        ("vCPUs", f"{vcpus.available:g} available, {vcpus.used:.2f} used, needed: {needed}"),
        ("Own overhead", format_fraction(profile.overhead_fraction)),
    ]
    if profile.device:
        rate = f"{profile.device_examples_per_s or 0:,.0f} examples/s"
        step = f"{profile.device.step_ms:.4g} ms per step of {profile.batch_size:,}"
        rows.insert(1, ("Device takes", f"{rate}: {step}, {profile.device.source}"))
    cells = (f"<tr><th>{_escape(name)}<td>{_escape(value)}" for name, value in rows)
    return f"<table>{''.join(cells)}</table>"


def _stages(profile: Profile) -> str:
    rest = profile.residual
    head = (
        "<tr><th>stage<th>share of CPU<th class=n>%<th class=n>CPU ms per example"
        "<th class=n>calls<th class=n>alone, examples/s<th>where"
    )
    last = (
        f"<tr class=dim><td>(not in a stage)<td>{_bar(rest.share_of_cpu)}"
        f"<td class=n>{rest.share_of_cpu:.1%}<td class=n>{rest.cpu_ms_per_example:.3g}<td><td><td>"
    )
    return f"<table>{head}{''.join(map(_stage, profile.stages))}{last}</table>"


def _stage(stage: Stage) -> str:
    alone = "" if stage.examples_per_s_alone is None else f"{stage.examples_per_s_alone:,.0f}"
    interval = f"{stage.cpu_ms_low:.3g} to {stage.cpu_ms_high:.3g} ms, {stage.method}"
    return (
        f"<tr{' class=worst' if stage.is_bottleneck else ''}>"
        f"<td>{_escape(stage.name)}<br><small>{_escape(stage.op)}</small>"
        f"<td>{_bar(stage.share_of_cpu)}<td class=n>{stage.share_of_cpu:.1%}"
        f'<td class=n title="{_escape(interval)}">{stage.cpu_ms_per_example:.3g}'
        f"<td class=n>{stage.calls_in_flight:.1f} of {stage.parallelism or 1}"
        f"<td class=n>{alone}<td><small>{_escape(stage.location or '')}</small>"
    )


def _bar(share: float) -> str:
    return f'<div class=bar><i style="width:{max(0.0, min(1.0, share)):.1%}"></i></div>'


def _items(lines: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{_escape(line)}' for line in lines)}</ul>"


def _advice(advice: tuple[Advice, ...]) -> str:
    items = []
    for each in advice:
        rate, idle = each.predicted_examples_per_s, each.predicted_mxu_idle_fraction
        gain = "" if rate is None else f" Predicted: {rate:,.0f} examples/s"
        gain += "" if rate is None or idle is None else f", MXU idle {idle:.0%}"
        items.append(
            f"<li><b>{_escape(each.code)}</b>: {_escape(each.what)}{_escape(gain)}"
            f"<br><code>{_escape(each.change)}</code>"
        )
    return f"<h2>Advice</h2><ol>{''.join(items)}</ol>" if items else ""


def _left_out(profile: Profile) -> str:
    if not profile.notes:
        return ""
    files = "".join(
        f"<li>{_escape(path)}: {_escape(reason)}" for path, reason in profile.input.left_out
    )
    return f"<h2>Left out</h2>{_items(profile.notes)}<ul>{files}</ul>"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
