"""Building blocks of HTML reports: one file, no network requests, all text escaped."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def page(title: str, *sections: str, script: str = "") -> str:
    """Join sections into one self-contained document.

    `script` is the name of a file of ours; nothing else may run, nor anything be fetched, whatever
    a file name in the data says: the page carries the checksum of the one script it may run.
    """
    style, code = _resource("report.css"), _resource(script) if script else ""
    allowed = f" script-src 'sha256-{_checksum(code)}';" if code else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none';{allowed} style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main>"
        f"{f'<script>{code}</script>' if code else ''}</body></html>\n"
    )


def _resource(name: str) -> str:
    return files("tpuctl.reporters").joinpath(name).read_text(encoding="utf-8")


def _checksum(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def title(text: str) -> str:
    """Write the main heading."""
    return f"<h1>{escape(text)}</h1>"


def section(heading: str, *parts: str) -> str:
    """Write a section with its heading."""
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def paragraph(text: str, *, css: str = "") -> str:
    """Write a paragraph of plain text."""
    return f'<p class="{css}">{escape(text)}</p>' if css else f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """Write a command or snippet to copy."""
    return f"<pre><code>{escape(text)}</code></pre>"


def advice(what: str, change: str) -> str:
    """Write a piece of advice, and the command or line of code for it."""
    return paragraph(what) + paragraph(f"→ {change}", css="change")


def bullets(items: Iterable[str]) -> str:
    """Write a list, or nothing if it is empty."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; cells that start with a digit are aligned as numbers."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(rows: Iterable[tuple[str, float, str, bool]], *, wide: bool = False) -> str:
    """Draw horizontal bars from label, share of one, text beside it, and whether to highlight it.

    `wide` leaves room for labels that are sentences.
    """
    lines = "".join(
        f'<div class="bar{" hot" if hot else ""}"><span>{escape(label)}</span>'
        f'<i style="--share:{min(max(share, 0.0), 1.0):.4f}"></i><b>{escape(value)}</b></div>'
        for label, share, value, hot in rows
    )
    return f'<div class="bars{" wide" if wide else ""}">{lines}</div>'


def strip(pieces: Iterable[tuple[float, str, str]]) -> str:
    """Draw a timeline from share of the whole, kind of piece (a style) and tooltip."""
    parts = "".join(
        f'<i class="{escape(kind)}" style="--share:{share:.5f}" title="{escape(says)}"></i>'
        for share, kind, says in pieces
    )
    return f'<div class="strip">{parts}</div>'


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Show large numbers with their names."""
    cells = "".join(
        f"<div><strong>{escape(value)}</strong><span>{escape(name)}</span></div>"
        for name, value in pairs
    )
    return f'<div class="figures">{cells}</div>'


def image(png_base64: str, alternative: str) -> str:
    """Embed a PNG."""
    return f'<img alt="{escape(alternative)}" src="data:image/png;base64,{png_base64}">'


def _cell(text: str) -> str:
    number = text[:1].isdigit() or (text[:1] in "+-$" and text[1:2].isdigit())
    return f'<td class="number">{escape(text)}</td>' if number else f"<td>{escape(text)}</td>"
