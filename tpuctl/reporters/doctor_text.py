"""A diagnosis as text for a terminal."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tpuctl.diagnosis.report import Diagnosis, Problem
from tpuctl.reporters.doctor import hardware_line, is_well, start_code, start_line, state_line
from tpuctl.units import format_bytes, format_duration

_STYLE = {"blocking": "bold red", "warning": "yellow", "note": "cyan"}
_MARK = {"blocking": "✗", "warning": "!", "note": "i"}


def render(diagnosis: Diagnosis) -> Group:
    """Show where we are, what is wrong with evidence and fix, and how to start."""
    parts: list[RenderableType] = [_summary(diagnosis), Text()]
    parts += [block for problem in diagnosis.problems for block in _problem(problem)]
    if is_well(diagnosis):
        parts += [Text("Nothing is wrong.", style="green"), Text()]
    parts.append(Text(start_line(diagnosis)))
    # Neither wrapped nor indented, so that it can be copied.
    code = "\n" + start_code(diagnosis)
    parts.append(Text(code, style="green", no_wrap=True, overflow="ignore"))
    parts += _trials(diagnosis)
    if diagnosis.recorded_to:
        parts += [Text(), Text(f"Recorded, without secrets, in {diagnosis.recorded_to}.")]
    return Group(*parts)


def _summary(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    host = diagnosis.host
    known = [
        f"{host.vcpus} vCPUs" if host.vcpus else "",
        f"{format_bytes(host.memory_bytes)} memory" if host.memory_bytes else "",
        f"{format_bytes(host.disk_free_bytes)} disk free" if host.disk_free_bytes else "",
        f"Python {host.python}" if host.python else "",
    ]
    strategies = (f"{c.framework} {c.strategy}" for c in diagnosis.strategies)
    answers = diagnosis.answers
    where = diagnosis.runtime + (" (recorded)" if diagnosis.is_replay else "")
    host_line = ", ".join(part for part in known if part) or "unknown"
    rows: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("where", where, answers.platform),
        ("accelerator", hardware_line(diagnosis), answers.hardware),
        ("frameworks", " · ".join(strategies), ()),
        ("state", state_line(diagnosis), ()),
        ("host", host_line, ()),
    )
    for name, value, because in rows:
        table.add_row(name, Text(value))
        if because:
            table.add_row("", Text("; ".join(because), style="dim"))
    return table


def _problem(problem: Problem) -> list[RenderableType]:
    style = _STYLE[problem.severity]
    head = Text(f"{_MARK[problem.severity]} {problem.code} ", style=style)
    head.append(problem.summary, style="bold")
    lines = [Text(line, style="dim") for line in problem.evidence]
    lines.append(Text(f"→ {problem.fix}"))
    if problem.fix_command:
        command = f"  {problem.fix_command}"
        lines.append(Text(command, style="green", no_wrap=True, overflow="ignore"))
    return [head, *(Padding(line, (0, 0, 0, 2)) for line in lines), Text()]


def _trials(diagnosis: Diagnosis) -> list[RenderableType]:
    lines: list[RenderableType] = [Text()]
    if diagnosis.repairs == ():
        lines.append(Text("Nothing here can be mended safely by tpuctl itself."))
    for repair in diagnosis.repairs or ():
        went = repair.error or ("the problem is gone" if repair.verified else "it is still there")
        lines.append(Text(f"{repair.code}: {repair.what}: {went}. Undo: {repair.undo}"))
    if deep := diagnosis.deep:
        names = ", ".join(deep.devices)
        head = deep.error or f"{len(deep.devices)} device(s) multiplied correctly: {names}"
        lines.append(Text(f"Trial with {deep.framework}, {format_duration(deep.seconds)}: {head}"))
        lines += [Text(f"  {match.code} {match.title} → {match.fix}") for match in deep.matches]
    if test := diagnosis.numerics:
        where = f"{test.framework} on {test.device or 'nothing'}"
        lines.append(Text(f"Matrix test with {where}: {test.error or test.explanation}"))
        lines += [
            Text(f"  {e.precision:8} {e.result:4} largest error {e.max_abs_error:.2g}")
            for e in test.errors
        ]
    return lines if len(lines) > 1 else []
