"""Building blocks of HTML reports: one file, no network requests, all text escaped."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path

# A report is shown to others: of a path on this machine it has the last part only.
_FOLDER = re.compile(r"(?<![\w.~/\\])/(?!/)(?:[^\s/:'\"<>|]+/)+(?=[^\s/])")
_COLOURS = 6
_LONGEST_LABEL = 44
_MOST_COLUMNS = 5


def report(
    command: str,
    answer: str,
    about: str,
    *,
    charts: Sequence[str] = (),
    evidence: Sequence[str] = (),
    to_do: Sequence[str] = (),
    details: Iterable[tuple[str, str]] = (),
) -> str:
    """Write a whole report: the answer and its chart, the evidence, what to do, folded details."""
    folded = "".join(
        f"<details><summary>{_text(heading)}</summary>{inside}</details>"
        for heading, inside in details
        if inside
    )
    return _page(
        answer or f"tpuctl {command}",
        f'<header><p class="command">tpuctl {_text(command)}</p><h1>{_text(answer)}</h1>'
        f"{paragraph(about, css='soft') if about else ''}</header>",
        "".join(charts),
        section("Evidence", *evidence),
        section("What to do", *to_do),
        section("Details", folded),
    )


def _page(title: str, *parts: str) -> str:
    """Join parts into one document.

    Nothing but our script may run, nor anything be fetched, whatever a file name in the data says:
    the page carries the checksum of the script.
    """
    style, code = _resource("report.css"), _resource("chartist.js") + _resource("report.js")
    checksum = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"script-src 'sha256-{checksum}'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{_text(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main><script>{code}</script></body></html>\n"
    )


def _resource(name: str) -> str:
    return files("tpuctl.reporters").joinpath(name).read_text(encoding="utf-8")


def without_folders(text: str) -> str:
    """Return a text with the last part of each absolute path, not the folders it is in."""
    # A name of a home may have a space, which ends a path.
    return _FOLDER.sub("", text.replace(f"{Path.home()}/", "/home/"))


def _text(text: str) -> str:
    return escape(without_folders(text))


def section(heading: str, *parts: str) -> str:
    """Write a section with its heading, or nothing if it is empty."""
    inside = "".join(parts)
    return f"<section><h2>{_text(heading)}</h2>{inside}</section>" if inside else ""


def paragraph(text: str, *, css: str = "") -> str:
    """Write a paragraph of plain text."""
    return f'<p class="{css}">{_text(text)}</p>' if css else f"<p>{_text(text)}</p>"


def code(text: str) -> str:
    """Write a command or snippet to copy."""
    return f"<pre><code>{_text(text)}</code></pre>"


def bullets(items: Iterable[str]) -> str:
    """Write a list, or nothing if it is empty."""
    rows = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def steps(advice: Iterable[tuple[str, str]]) -> str:
    """Write what to do in order, with the command or line of code for each."""
    rows = "".join(
        f"<li>{paragraph(what)}{code(change) if change else ''}</li>" for what, change in advice
    )
    return f'<ol class="steps">{rows}</ol>' if rows else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, name: str = "Table") -> str:
    """Write a table without its empty columns; numbers are aligned to the right.

    Without titles it lists names and values. One that is too wide scrolls.
    """
    lines = list(rows)
    kept = [at for at, _ in enumerate(header) if {line[at] for line in lines} - {"", "-"}]
    if not kept:
        return ""
    numeric = {at for at in kept[1:] if any(header) and _is_numeric([row[at] for row in lines])}
    head = "".join(_cell(header[at] and "col", header[at], at in numeric) for at in kept)
    body = "".join(
        f"<tr>{_cell('row', line[kept[0]], False)}"
        f"{''.join(_cell('', line[at], at in numeric) for at in kept[1:])}</tr>"
        for line in lines
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    if not top:
        return f'<table class="facts"><tbody>{body}</tbody></table>'
    return (
        f'<div class="scroll{" wide" if len(kept) > _MOST_COLUMNS else ""}" role="region" '
        f'tabindex="0" aria-label="{_text(name)}"><table>{top}<tbody>{body}</tbody></table></div>'
    )


def _is_numeric(cells: Sequence[str]) -> bool:
    numbers = sum(re.match(r"[-+$x]?\d", cell) is not None for cell in cells)
    return 2 * numbers > sum(cell not in ("", "-") for cell in cells)


def _cell(heads: str, text: str, is_number: bool) -> str:
    tag = f"th scope={heads}" if heads else "td"
    return f"<{tag}{' class=number' if is_number else ''}>{_text(text)}</{tag[:2]}>"


def chart(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    unit: str,
    note: str = "",
    line: bool = False,
    hot: str = "",
) -> str:
    """Draw bars, stacked if there are several series, or lines; all to one scale, from zero.

    The legend and the table below it say the same in words. `hot` is a series to highlight.
    """
    shown = [_shortened(without_folders(label)) for label in labels]
    colours = count(3)
    styles = ["c2" if hot and n == hot else "c1" if not at else f"c{min(next(colours), _COLOURS)}"
              for at, n in enumerate(series)]  # fmt: skip
    parts = [
        {"name": without_folders(name), "className": style, "data": list(values)}
        for style, (name, values) in zip(styles, series.items(), strict=True)
    ]
    given = json.dumps({"line": line, "labels": shown, "series": parts, "unit": unit})
    legend = "".join(
        f'<li class="{part["className"]}"><i></i>{_text(str(part["name"]))}</li>' for part in parts
    )
    columns = zip(*series.values(), strict=True)
    rows = [(label, *map(short, values)) for label, values in zip(labels, columns, strict=True)]
    kind = "line" if line else "bars"
    return (
        f"<figure><figcaption><b>{_text(title)}</b> {_text(note)}</figcaption>"
        f'<div class="chart {kind}" style="--rows:{len(labels)}" role="img" '
        f'aria-label="{_text(title)}: {_text(_spoken(rows, series, unit))}" '
        f'data-chart="{escape(given)}"></div>'
        f"{f'<ul class=legend>{legend}</ul>' if len(parts) > 1 else ''}"
        f"<details class=data open><summary>The chart as a table, in {_text(unit)}</summary>"
        f"{table(('', *series), rows, name=title)}</details></figure>"
    )


def _spoken(rows: Iterable[Sequence[str]], names: Iterable[str], unit: str) -> str:
    return "; ".join(
        f"{label}: "
        + ", ".join(f"{n} {value} {unit}" for n, value in zip(names, values, strict=True) if value)
        for label, *values in rows
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def short(value: float | None) -> str:
    """Write a number with three digits, or nothing if it is unknown."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def strip(pieces: Iterable[tuple[float, str, str]], name: str) -> str:
    """Draw a timeline from share of the whole, kind of piece (a style) and tooltip."""
    parts = "".join(
        f'<i class="{escape(kind)}" style="--share:{share:.5f}" title="{_text(says)}"></i>'
        for share, kind, says in pieces
    )
    return f'<div class="strip" role="img" aria-label="{_text(name)}">{parts}</div>'


def image(jpeg_base64: str, alternative: str) -> str:
    """Embed a JPEG."""
    return f'<img alt="{_text(alternative)}" src="data:image/jpeg;base64,{jpeg_base64}">'
