"""Results that show themselves: a card in a notebook, a line in a shell, the report in print()."""

from __future__ import annotations

import io
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpuctl.outcome import Outcome
from tpuctl.printable import printable, printable_result
from tpuctl.reporters import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.text import Text

# The command of a result, and the function that writes its report.
_SHOWN = {
    "cloud.create.Created": ("create", "changes.render_created"),
    "cloud.create.NotCreated": ("create", "changes.render_created"),
    "cloud.delete.DeleteResult": ("delete", "changes.render_deletion"),
    "cloud.gc.GcResult": ("gc", "changes.render_leftovers"),
    "cloud.list.TpuList": ("list", "tpus.render_tpus"),
    "cloud.plan.CreatePlan": ("create", "changes.render_create_plan"),
    "providers.migrate.Migration": ("migrate", "changes.render_migration"),
    "cloud.quotas.QuotaTable": ("quota", "types.render_quotas"),
    "cloud.tpu.QueuedTpu": ("show", "tpus.render_tpu"),
    "cloud.tpu.Tpu": ("show", "tpus.render_tpu"),
    "cloud.wait.WaitResult": ("wait", "tpus.render_waited"),
    "compile.models.Comparison": ("fit", "fit.render_fit"),
    "compile.models.Fit": ("fit", "fit.render_fit"),
    "datasets.models.CacheResult": ("data cache", "data.render_cached"),
    "datasets.models.CopyResult": ("data cache", "data.render_cached"),
    "datasets.models.Description": ("data show", "data.render_description"),
    "datasets.models.PresizeResult": ("data presize", "data.render_presized"),
    "datasets.models.VerifyResult": ("data verify", "data.render_verified"),
    "datasets.serve.Service": ("data serve", "data.render_service"),
    "demo.demo.DemoResult": ("demo", "practice.render_demo"),
    "diagnosis.explain.Explanation": ("explain", "machine.render_explanation"),
    "diagnosis.report.Diagnosis": ("doctor", "machine.render_diagnosis"),
    "emulator.process.Started": ("emulator start", "practice.render_emulator_started"),
    "emulator.process.Status": ("emulator status", "practice.render_emulator_status"),
    "emulator.process.Stopped": ("emulator stop", "practice.render_emulator_stopped"),
    "hardware.types.AcceleratorType": ("types", "types.render_types"),
    "hardware.types.TypeTable": ("types", "types.render_types"),
    "linting.models.Linting": ("lint", "lint.render_lint"),
    "profiling.compare.Comparison": ("profile diff", "profile.render_profile_diff"),
    "profiling.models.Profile": ("profile", "profile.render_profile"),
    "providers.check.ProviderCheck": ("doctor", "tpus.render_check"),
    "providers.combined.AutoPlan": ("launch", "training.render_launch"),
    "providers.combined.Offers": ("offers", "tpus.render_offers"),
    "providers.gke.follow.ClusterRun": ("launch", "training.render_launch"),
    "providers.gke.follow.StartedClusterRun": ("launch", "training.render_launch"),
    "providers.gke.runs.ClusterPlan": ("launch", "training.render_launch"),
    "providers.kaggle.follow.HostedRun": ("launch", "training.render_launch"),
    "providers.kaggle.follow.StartedRun": ("launch", "training.render_launch"),
    "providers.kaggle.runs.KagglePlan": ("launch", "training.render_launch"),
    "providers.port.HostedPlan": ("create", "changes.render_create_plan"),
    "remote.copy_plan.CopyPreview": ("cp", "workers.render_copied"),
    "remote.copy_plan.CopyResults": ("cp", "workers.render_copied"),
    "remote.free.Holders": ("free", "workers.render_held"),
    "remote.jobs.Jobs": ("logs", "workers.render_jobs"),
    "remote.jobs.StoppedJob": ("stop", "workers.render_stopped_job"),
    "remote.results.Results": ("run", "workers.render_run"),
    "remote.ssh.Shell": ("ssh", "workers.render_shell"),
    "remote.top.Usage": ("top", "workers.render_usage"),
    "settings.Settings": ("config", "machine.render_settings"),
    "supervise.messages.WatchResult": ("watch", "changes.render_watched"),
    "supervise.plan.WatchPlan": ("watch", "changes.render_watch_plan"),
    "supervise.relay.RelayPlan": ("watch", "changes.render_relay_plan"),
    "supervise.relay.RelayResult": ("watch", "changes.render_relay"),
    "training.bench.Bench": ("bench", "training.render_bench"),
    "training.bench.Comparison": ("bench compare", "training.render_bench_comparison"),
    "training.catalog.Catalog": ("templates list", "training.render_templates"),
    "training.catalog.Template": ("templates show", "training.render_template"),
    "training.catalog.Written": ("templates new", "training.render_written_template"),
    "training.plan.LaunchPlan": ("launch", "training.render_launch"),
    "training.run.Training": ("launch", "training.render_launch"),
    "training.strategies.Strategy": ("strategy", "training.render_strategy"),
}


def command_and_report(result: Outcome) -> tuple[str, Any]:
    """Return the command of a result, and its report for a terminal; None where it has none."""
    for kind in type(result).__mro__:
        name = f"{kind.__module__.removeprefix('tpuctl.')}.{kind.__name__}"
        if name in _SHOWN:
            command, place = _SHOWN[name]
            module, _, function = place.partition(".")
            render = getattr(import_module(f"tpuctl.reporters.{module}"), function)
            return command, render(printable_result(result))
    return "", type(result).__name__


def text_of(result: Outcome, columns: int = 100) -> str:
    """Lay out the whole report as plain text."""
    return _as_text(command_and_report(result)[1], columns)


def _as_text(report: Any, columns: int = 100) -> str:
    out = io.StringIO()
    # Inside a kernel rich would otherwise display at once instead of writing.
    console = layout.console(file=out, width=columns, color_system=None, force_jupyter=False)
    console.print(layout.Printable("" if report is None else report), crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def line_of(result: Outcome) -> str:
    """Write the command and its answer in one line."""
    command, report = command_and_report(result)
    answer = answer_of(result) or next((str(p) for p in flat(report) if is_line(p) and p), "")
    words = printable(" ".join((answer.removeprefix("# ") or str(_as_text(report))).split()))
    return f"<tpuctl {command}: {words if len(words) < 200 else words[:200] + '…'}>"


def answer_of(result: Outcome) -> str:
    """Return the answer of a report that does not begin with it."""
    from tpuctl.diagnosis.report import Diagnosis
    from tpuctl.hardware.types import TypeTable
    from tpuctl.reporters.machine import verdict
    from tpuctl.settings import Settings
    from tpuctl.training.catalog import Catalog

    if isinstance(result, (TypeTable, Catalog, Settings)):
        return printable(result.in_words)
    return verdict(printable_result(result)) if isinstance(result, Diagnosis) else ""


def card(result: Outcome) -> str:
    """Write a result as compact HTML, the answer first, long parts folded.

    There is no script, style sheet, request, frame or scroll bar in it; colours are those of the
    notebook, so that it can be read on light and on dark.
    """
    from tpuctl.datasets.models import Description

    command, report = command_and_report(result)
    answer, parts = answer_of(result), [part for part in flat(report) if part != ""]
    shown = [f"<b>{escape(answer)}</b>"] if answer else []
    if not answer and parts and is_line(parts[0]):
        shown = [f'<div style="{_BOLD}">{_line(parts.pop(0))}</div>']
    while parts:
        part = parts.pop(0)
        inside = []
        while is_line(part) and parts and isinstance(parts[0], list):
            inside.append(_block(parts.pop(0)))
        if inside:
            is_open = " open" if str(part) in OPEN else ""
            summary = f"<summary>{_line(part)}</summary>"
            shown.append(
                f'<details{is_open} style="margin:3px 0">{summary}'
                f'<div style="margin:2px 0 4px 18px">{"".join(inside)}</div></details>'
            )
        else:
            shown.append(_block(part))
    if isinstance(result, Description):
        shown.append(sheet_of(result))
    name = f'<div style="opacity:.65">tpuctl {escape(command)}</div>'
    return f'<div class="tpuctl-card" style="{_CARD}">{name}{"".join(shown)}</div>'


# Parts with what to do.
OPEN = ("Advice", "Try")
BLOCKS = " █▏▎▍▌▋▊▉"
_CARD = (
    "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:860px;"
    "border:1px solid rgba(128,128,128,.4);border-radius:8px;padding:8px 14px;"
    "overflow-wrap:anywhere"
)
_CODE = (
    "font-family:ui-monospace,monospace;font-size:12px;background:rgba(128,128,128,.12);"
    "border-radius:4px;padding:6px 8px;margin:4px 0;white-space:pre-wrap;color:inherit"
)
_LONGEST_WORD = 20
_BOLD = "font-weight:600;white-space:pre-line"
# Mixed with the notebook's ink, to be read on light and on dark.
_COLOURS = {"red": "#d9534a", "yellow": "#b8791a", "green": "#2a9655", "cyan": "#2f86c9"}


def flat(report: Any) -> Iterator[Any]:
    """Yield the parts of a report: strings, texts, tables, and lists of what is indented."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if isinstance(report, str | None):
        head, _, rest = (report or "").strip("\n").partition("\n")
        yield head
        if rest:
            yield layout.command(rest)
    elif isinstance(report, Group):
        for part in report.renderables:
            yield from flat(part)
    elif isinstance(report, Padding):
        yield list(flat(report.renderable))
    elif isinstance(report, (Text, Table)):
        yield report
    else:
        console = layout.console(file=io.StringIO(), width=100)
        for part in report.__rich_console__(console, console.options):
            yield from flat(part)


def is_line(part: Any) -> bool:
    """Whether a part of a report is text that may be wrapped."""
    return isinstance(part, str) or (hasattr(part, "plain") and not part.no_wrap)


def _block(part: Any) -> str:
    if isinstance(part, list):
        return "".join(map(_block, part))
    if hasattr(part, "columns"):
        return _table(part)
    if getattr(part, "no_wrap", False):
        return f'<pre style="{_CODE}">{escape(part.plain)}</pre>'
    return f'<div style="white-space:pre-line;margin:2px 0">{_line(part)}</div>'


def _line(part: Text | str) -> str:
    """Write a text and the styles of its spans."""
    if isinstance(part, str):
        return escape(part)
    pieces, at = [], 0
    for span in sorted(part.spans, key=lambda span: span.start):
        pieces.append(escape(part.plain[at : span.start]))
        pieces.append(_css(escape(part.plain[span.start : span.end]), str(span.style)))
        at = span.end
    pieces.append(escape(part.plain[at:]))
    return _css("".join(pieces).strip(), str(part.style))


def _css(words: str, style: str) -> str:
    names = style.split()
    rules = ["font-weight:600"] if "bold" in names else []
    rules += ["opacity:.7"] if "dim" in names else []
    rules += [
        f"color:color-mix(in srgb,currentColor 45%,{_COLOURS[name]})"
        for name in names
        if name in _COLOURS
    ]
    return f'<span style="{";".join(rules)}">{words}</span>' if rules else words


def _table(table: Any) -> str:
    head = [str(column.header) for column in table.columns] if table.show_header else []
    rows = zip(*(column._cells for column in table.columns), strict=True)
    lines = [_row("th", head, table)] if any(head) else []
    lines += [_row("td", cells, table) for cells in rows]
    style = "border-collapse:collapse;margin:4px 0"
    return f'<table style="{style}">{"".join(lines)}</table>'


def _row(kind: str, cells: Iterable[Any], table: Any) -> str:
    shown = []
    for cell, column in zip(cells, table.columns, strict=True):
        style = f"text-align:{column.justify};padding:1px 12px 1px 0;vertical-align:top"
        # Only what is longer than a column, such as a path, is broken inside a word.
        if max(map(len, str(cell).split()), default=0) <= _LONGEST_WORD:
            style += ";overflow-wrap:normal"
        shown.append(f'<{kind} style="{style}">{_css(_line(cell), str(column.style))}</{kind}>')
    return f"<tr>{''.join(shown)}</tr>"


def sheet_of(description: Any) -> str:
    """Draw some records of a data set that is still there."""
    import base64

    from tpuctl.datasets.describe import contact_sheet
    from tpuctl.errors import TpuctlError
    from tpuctl.reporters import html

    try:
        picture = base64.b64encode(contact_sheet(description.path, kind="JPEG")).decode()
    except (TpuctlError, ValueError):
        return ""
    return html.image(picture, "Records of the data set")
