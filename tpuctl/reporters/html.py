"""The few pieces that every HTML report is made of; one file, no network, nothing unescaped."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def page(title: str, *sections: str) -> str:
    """Join sections into one self-contained document."""
    style = files("tpuctl.reporters").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be fetched or run, whatever a file name in the data says.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def title(text: str) -> str:
    """The finding, on top."""
    return f"<h1>{escape(text)}</h1>"


def section(heading: str, *parts: str) -> str:
    """A heading and what belongs to it."""
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def paragraph(text: str, *, css: str = "") -> str:
    """One paragraph of plain text."""
    return f'<p class="{css}">{escape(text)}</p>' if css else f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    """A command or snippet to copy."""
    return f"<pre><code>{escape(text)}</code></pre>"


def advice(what: str, change: str) -> str:
    """What would help, and the command or line of code that does it."""
    return paragraph(what) + paragraph(f"→ {change}", css="change")


def bullets(items: Iterable[str]) -> str:
    """A list of sentences; nothing for none."""
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text; cells that start with a digit are aligned as numbers."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(rows: Iterable[tuple[str, float, str, bool]]) -> str:
    """Horizontal bars: label, share of one, what to write beside it, whether to stress it."""
    lines = "".join(
        f'<div class="bar{" hot" if hot else ""}"><span>{escape(label)}</span>'
        f'<i style="--share:{min(max(share, 0.0), 1.0):.4f}"></i><b>{escape(value)}</b></div>'
        for label, share, value, hot in rows
    )
    return f'<div class="bars">{lines}</div>'


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Big numbers with what they are."""
    cells = "".join(
        f"<div><strong>{escape(value)}</strong><span>{escape(name)}</span></div>"
        for name, value in pairs
    )
    return f'<div class="figures">{cells}</div>'


def image(png_base64: str, alternative: str) -> str:
    """A PNG inside the page."""
    return f'<img alt="{escape(alternative)}" src="data:image/png;base64,{png_base64}">'


def _cell(text: str) -> str:
    number = text[:1].isdigit() or (text[:1] in "+-$" and text[1:2].isdigit())
    return f'<td class="number">{escape(text)}</td>' if number else f"<td>{escape(text)}</td>"
