"""Diagnoses, explained errors and settings as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.reporters import layout
from tpuctl.training.snippets import install_line
from tpuctl.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from tpuctl.diagnosis.explain import Explanation, WorkerLog
    from tpuctl.diagnosis.report import Diagnosis, OwnNotebook, Problem
    from tpuctl.settings import Settings

_MARKS = {"blocking": ("✗", "bold red"), "warning": ("!", "yellow"), "note": ("i", "cyan")}


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Show where we are, each problem with its evidence and fix, and the code to start with."""
    parts: list[RenderableType] = [_summary(diagnosis), ""]
    for problem in diagnosis.problems:
        parts += [*_problem(problem), ""]
    if not diagnosis.problems and _has_framework(diagnosis):
        parts += [layout.text("No problems found.", "green"), ""]
    if notebook := diagnosis.own_notebook:
        parts += [layout.text(_notebook_line(notebook)), ""]
    # The code is neither wrapped nor indented, so that it can be copied.
    best = diagnosis.recommended
    if _has_framework(diagnosis):
        start = f"Start with {best.framework} ({best.strategy}): {best.because}"
        code = best.snippet.rstrip()
    else:
        start = f"{best.because[0].upper()}{best.because[1:]} here. Install one, such as JAX:"
        code = install_line(diagnosis.accelerator)
    parts += [layout.text(start), "", layout.command(code)]
    lines = [*_repair_lines(diagnosis), *_trial_lines(diagnosis)]
    if diagnosis.recorded_to:
        lines += ["", f"Recorded to {diagnosis.recorded_to}, with secrets removed."]
    if lines:
        parts += ["", layout.text("\n".join(lines))]
    return layout.stack(*parts)


def _summary(diagnosis: Diagnosis) -> Table:
    answers = diagnosis.answers
    rows: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("where", _where(diagnosis), answers.platform),
        ("accelerator", _hardware_line(diagnosis), answers.hardware),
        ("frameworks", " · ".join(f"{s.framework} {s.strategy}" for s in diagnosis.strategies), ()),
        ("state", _state_line(diagnosis), ()),
        ("host", _host_line(diagnosis), ()),
    )
    table = layout.facts(())
    for name, value, because in rows:
        if not value:
            continue
        table.add_row(name, layout.text(value))
        if because:
            table.add_row("", layout.text("; ".join(because), "dim"))
    return table


def _where(diagnosis: Diagnosis) -> str:
    return diagnosis.runtime + (" (recorded)" if diagnosis.is_replay else "")


def _host_line(diagnosis: Diagnosis) -> str:
    host = diagnosis.host
    known = [
        f"{host.vcpus} vCPUs" if host.vcpus else "",
        f"{format_bytes(host.memory_bytes)} memory" if host.memory_bytes else "",
        f"{format_bytes(host.disk_free_bytes)} disk free" if host.disk_free_bytes else "",
        f"Python {host.python}" if host.python else "",
    ]
    return ", ".join(filter(None, known)) or "unknown"


def _hardware_line(diagnosis: Diagnosis) -> str:
    """Describe the accelerator in one line."""
    if diagnosis.accelerator == "tpu":
        name = f"TPU {diagnosis.generation or 'v2 or v3'}"
        line = f"{name}: {diagnosis.chips} chips, {diagnosis.devices} devices"
        line += f" here{_place(diagnosis)}" if diagnosis.hosts > 1 else ""
        return line + ("" if diagnosis.usable else "; this process cannot open them")
    if diagnosis.accelerator == "tpu-remote":
        return f"TPU {diagnosis.generation or ''} on another machine".replace("  ", " ")
    if diagnosis.accelerator == "gpu":
        names = ", ".join(diagnosis.gpu_names) or "name unknown"
        return f"{diagnosis.gpus} GPU ({names}){_place(diagnosis)}"
    return f"none{_place(diagnosis)}"


def _place(diagnosis: Diagnosis) -> str:
    """Say which of several hosts this is, and in how many slices they are."""
    if diagnosis.hosts == 1:
        return ""
    number = "one" if diagnosis.worker is None else f"worker {diagnosis.worker}"
    slices = f" in {diagnosis.slices} slices" if diagnosis.slices > 1 else ""
    return f"; {number} of {diagnosis.hosts} hosts{slices}"


def _state_line(diagnosis: Diagnosis) -> str:
    """Say which processes hold the accelerator."""
    if diagnosis.free is None:
        return ""
    unseen = diagnosis.uninspected_processes
    note = f" ({unseen} processes could not be inspected)" if unseen else ""
    if diagnosis.free:
        return f"free, as far as can be seen{note}"
    holders = (
        f"pid {h.pid} {h.command or ''}{' (this notebook)' if h.is_this_notebook else ''}".strip()
        for h in diagnosis.holders
    )
    return f"held by {'; '.join(holders)}{note}"


def _notebook_line(notebook: OwnNotebook) -> str:
    """Name the worst finding in the notebook that doctor runs in."""
    if notebook.path is None:
        return f"This notebook was not checked: {notebook.why_null}"
    if not notebook.findings:
        return f"This notebook ({notebook.path}): no findings."
    more = f" ({notebook.findings} findings: tpuctl lint {notebook.path})"
    place = f"cell {notebook.cell}, line {notebook.line}" if notebook.cell else notebook.path
    return f"This notebook, {place}: {notebook.code} {notebook.message}{more}"


def _has_framework(diagnosis: Diagnosis) -> bool:
    return diagnosis.recommended.strategy != "not-installed"


def _problem(problem: Problem) -> Iterator[RenderableType]:
    mark, style = _MARKS[problem.severity]
    yield layout.text(f"{mark} {problem.code} ", style).append(problem.summary, "bold")
    lines = [layout.text(line, "dim") for line in problem.evidence]
    lines.append(layout.text(f"→ {problem.fix}"))
    if problem.fix_command:
        lines.append(layout.command(f"  {problem.fix_command}"))
    yield layout.indent(*lines)


def _repair_lines(diagnosis: Diagnosis) -> list[str]:
    if diagnosis.repairs is None:
        return []
    if not diagnosis.repairs:
        return ["None of this can be fixed automatically."]
    lines = []
    for repair in diagnosis.repairs:
        result = repair.error or ("fixed" if repair.verified else "the problem is still there")
        lines.append(f"{repair.code}: {repair.what}: {result}. Undo: {repair.undo}")
    return lines


def _trial_lines(diagnosis: Diagnosis) -> list[str]:
    lines = []
    if deep := diagnosis.deep:
        names = ", ".join(deep.devices)
        result = deep.error or f"{len(deep.devices)} device(s) multiplied correctly: {names}"
        took = format_duration(deep.seconds)
        lines.append(f"Trial with {deep.framework}, {took}: {result}")
        lines += [f"  {match.code} {match.title} → {match.fix}" for match in deep.matches]
    if test := diagnosis.numerics:
        where = f"{test.framework} on {test.device or 'no device'}"
        lines.append(f"Matrix test with {where}: {test.error or test.explanation}")
        for precision in dict.fromkeys(each.precision for each in test.errors):
            largest = max(e.max_rel_error for e in test.errors if e.precision == precision)
            lines.append(
                f"  4x4 matrices inverted and multiplied in {precision} precision: largest "
                f"relative error {largest:.2g}"
            )
    return lines


def verdict(diagnosis: Diagnosis) -> str:
    """Say in one line whether the accelerator here can be used."""
    warnings = sum(problem.severity == "warning" for problem in diagnosis.problems)
    if diagnosis.blocking:
        words = "✗ a problem blocks the accelerator"
    elif warnings:
        words = f"! {format_count(warnings, 'warning')}"
    elif not _has_framework(diagnosis):
        words = "! no framework is installed"
    else:
        words = "✓ no problems found"
    return f"{words}: {_where(diagnosis)}, accelerator: {_hardware_line(diagnosis)}"


_SHOWN_IN_FULL, _SOURCES = 5, 3


def render_explanation(explanation: Explanation) -> RenderableType:
    """Show who failed first, the best matches with their causes and fixes, and the others."""
    parts: list[RenderableType] = []
    if not explanation.matches:
        parts += ["No known failure matches this text. To examine this machine: tpuctl doctor", ""]
    if explanation.log:
        parts += [*_worker_log(explanation.log), ""]
    if explanation.advice:
        parts += [
            layout.text("The message says what to do: ", "bold").append(explanation.advice),
            "",
        ]
    for match in explanation.matches[:_SHOWN_IN_FULL]:
        lines = [layout.text(match.cause), layout.text(f"→ {match.fix}")]
        if match.fix_command:
            lines.append(layout.command(f"  {match.fix_command}"))
        where = f"line {match.line:,}; " if match.line else ""
        named = match.source.split("; ")
        more = f"; {len(named) - _SOURCES} more in --json" if len(named) > _SOURCES else ""
        shown = "; ".join(named[:_SOURCES])
        lines.append(layout.text(f"{where}confidence {match.confidence}; {shown}{more}", "dim"))
        head = layout.text(f"{match.code}  ", "bold yellow").append(match.title, "bold")
        parts += [head, layout.indent(*lines), ""]
    for match in explanation.matches[_SHOWN_IN_FULL:]:
        parts.append(layout.text(f"also {match.code}, line {match.line:,}: {match.title}", "dim"))
    if explanation.similar:
        parts += _similar(explanation)
    return layout.stack(*(parts[:-1] if parts[-1] == "" else parts))


def _similar(explanation: Explanation) -> Iterator[RenderableType]:
    """List the other causes to rule out, each with what is true if it is the one."""
    if explanation.status == "ok":
        yield "Other causes to rule out:"
    else:
        yield "Known failures with similar words (perhaps none of them is the cause):"
    for each in explanation.similar:
        title = layout.text(f"tpuctl explain {each.code}  {each.title}")
        cause = [layout.text(each.cause, "dim")] if explanation.status == "ok" else []
        yield layout.indent(title, *map(layout.indent, cause))


def _worker_log(log: WorkerLog) -> Iterator[RenderableType]:
    first = log.first
    time = f" at {first.time}" if first.time else ""
    head = f"{_worker(first.worker)} failed first of {log.workers}{time}, line {first.line:,}: "
    yield layout.text(head, "bold").append(f"{first.code} {first.title}")
    yield layout.indent(layout.text(first.text, "dim"))
    if log.suspect:
        yield layout.text(f"The others name {_worker(log.suspect)}; its own failure is not here.")
    by_code: dict[str, list[str]] = {}
    for other in log.followed:
        by_code.setdefault(f"{other.code} {other.title}", []).append(other.worker)
    for what, workers in by_code.items():
        names = ", ".join(workers[:8]) + (", …" if len(workers) > 8 else "")
        yield layout.text(f"then {len(workers)} with {what} ({names})")


def _worker(name: str) -> str:
    return f"worker {name}" if name.isdecimal() else name


def render_settings(settings: Settings) -> RenderableType:
    """Show each setting, its value and where it came from."""
    table = layout.table("setting", "value", "from", "meaning")
    for setting in settings.settings:
        table.add_row(setting.name, setting.value or "-", setting.source, setting.meaning)
    return table
