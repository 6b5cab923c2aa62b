"""A diagnosis as a compact card of HTML: no script, no style sheet, nothing from outside."""

from html import escape

from tpuctl.diagnosis.report import Diagnosis, Problem
from tpuctl.reporters.doctor import hardware_line, start_code, start_line, state_line

_COLOUR = {"blocking": "#c5221f", "warning": "#b06000", "note": "#1967d2"}
_CARD = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:760px;"
    "border:1px solid rgba(128,128,128,.4);border-radius:8px;padding:10px 14px"
)
_CODE = (
    "font-family:ui-monospace,monospace;font-size:12px;background:rgba(128,128,128,.12);"
    "border-radius:4px"
)


def card(diagnosis: Diagnosis) -> str:
    """Show a diagnosis in a notebook."""
    rows = (
        ("where", diagnosis.runtime + (" (recorded)" if diagnosis.is_replay else "")),
        ("accelerator", hardware_line(diagnosis)),
        ("state", state_line(diagnosis)),
        ("frameworks", " · ".join(f"{c.framework} {c.strategy}" for c in diagnosis.strategies)),
        *_trials(diagnosis),
    )
    table = "".join(
        f'<tr><th style="text-align:left;padding:0 12px 0 0;vertical-align:top">{escape(name)}'
        f'</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div class="tpuctl-doctor" style="{_CARD}"><b>tpuctl doctor</b> {_verdict(diagnosis)}'
        f'<table style="margin:6px 0;border-collapse:collapse">{table}</table>'
        + "".join(map(_problem, diagnosis.problems))
        + _evidence(diagnosis)
        + f'<div>{escape(start_line(diagnosis))}</div><pre style="{_CODE};padding:8px;'
        f'margin:4px 0 0;white-space:pre;overflow-x:auto">{escape(start_code(diagnosis))}</pre>'
        "</div>"
    )


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.blocking:
        return (
            f'<span style="color:{_COLOUR["blocking"]}">✗ something blocks the accelerator</span>'
        )
    serious = [problem for problem in diagnosis.problems if problem.severity == "warning"]
    if serious:
        return f'<span style="color:{_COLOUR["warning"]}">! {len(serious)} warning(s)</span>'
    if diagnosis.recommended.strategy == "not-installed":
        return f'<span style="color:{_COLOUR["warning"]}">! no framework to start with</span>'
    return '<span style="color:#188038">✓ nothing is wrong</span>'


def _problem(problem: Problem) -> str:
    evidence = "<br>".join(map(escape, problem.evidence))
    command = ""
    if problem.fix_command:
        command = f'<br><code style="{_CODE};padding:1px 4px">{escape(problem.fix_command)}</code>'
    return (
        f'<details style="margin:3px 0"><summary><b style="color:{_COLOUR[problem.severity]}">'
        f"{escape(problem.code)}</b> {escape(problem.summary)}</summary>"
        f'<div style="margin:2px 0 4px 18px"><span style="opacity:.75">{evidence}</span><br>'
        f"→ {escape(problem.fix)}{command}</div></details>"
    )


def _evidence(diagnosis: Diagnosis) -> str:
    lines = "<br>".join(map(escape, diagnosis.evidence))
    return (
        '<details style="margin:3px 0 8px"><summary>evidence</summary>'
        f'<div style="margin-left:18px;opacity:.75">{lines}</div></details>'
    )


def _trials(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    rows = []
    if deep := diagnosis.deep:
        rows.append(("trial", deep.error or f"{len(deep.devices)} device(s) multiplied correctly"))
    if test := diagnosis.numerics:
        errors = ", ".join(f"{e.result} {e.precision} {e.max_abs_error:.2g}" for e in test.errors)
        rows.append(("matrix test", test.error or f"{test.explanation} Largest errors: {errors}"))
    return rows
