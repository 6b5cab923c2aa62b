"""Building blocks of reports in a terminal: text, tables, bars.

rich is imported when something is drawn, so that `--json` and plain lists do not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

_BAR_WIDTH = 10
_TERMINAL_COLUMNS = 80
_EIGHTHS = " ▏▎▍▌▋▊▉"
# The last column of a table is not folded into fewer characters to keep the others whole.
_LAST_COLUMN = 8


class Printable:
    """A report of which every character is safe to write to a terminal."""

    def __init__(self, report: RenderableType) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the report; sequences of rich's own are marked, and stay."""
        for piece in console.render(self._report, options):
            shown = printable(piece.text, lines=True)
            yield piece if piece.control else piece._replace(text=shown)


def console(**options: Any) -> Console:
    """Make a console that shows text as it is: brackets in it are not markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, **options)


def text(words: str, style: str = "") -> Text:
    """Make text that is shown as it is: brackets in it are not markup."""
    from rich.text import Text

    return Text(words, style)


def command(line: str) -> Text:
    """Make text that is never wrapped, so that it can be copied and pasted."""
    from rich.text import Text

    return Text(line, "green", no_wrap=True, overflow="ignore")


def stack(*parts: RenderableType) -> Group:
    """Put parts below each other."""
    from rich.console import Group

    return Group(*parts)


def indent(*parts: RenderableType) -> Padding:
    """Move parts two characters to the right; a command stays whole, which rich would cut."""
    from rich.console import Group
    from rich.padding import Padding

    class Indented(Padding):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for part in parts:
                whole = getattr(part, "no_wrap", False)
                yield command(_indented(str(part))) if whole else Padding(part, (0, 0, 0, 2))

    return Indented(parts[0] if len(parts) == 1 else Group(*parts))


def _indented(lines: str) -> str:
    return "  " + lines.replace("\n", "\n  ")


def table(*titles: str, right: Sequence[str] = (), kind: type[Table] | None = None) -> Table:
    """Start a table without lines; columns named in `right` are aligned to the right."""
    from rich.table import Table

    made = (kind or Table)(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    return made


def folded_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Lay out a table whose last column is folded at the width of the terminal.

    The others stay whole, unless that leaves the last one no room.
    """
    from rich.table import Table

    lines = [titles, *rows]
    whole = sum(2 + max(map(len, column)) for column in [*zip(*lines, strict=True)][:-1])

    class Folded(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for column in self.columns[:-1]:
                column.no_wrap = whole + _LAST_COLUMN <= options.max_width
            yield from super().__rich_console__(console, options)

    made = table(*titles, kind=Folded)
    for row in lines[1:]:
        made.add_row(*row)
    return made


def facts(rows: Iterable[tuple[str, str]], *, style: str = "bold") -> Table:
    """Lay out names and values in two columns."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style=style, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, Text(value))
    return made


def bullets(title: str, lines: Iterable[str]) -> list[RenderableType]:
    """List lines below a bold title, with an empty line before it."""
    return ["", text(title, "bold"), *(indent(text(f"- {line}")) for line in lines)]


def bar(share: float, style: str = "cyan") -> Text:
    """Draw a share of one as a horizontal bar, exact to an eighth of a character."""
    full, part = divmod(round(max(0.0, min(1.0, share)) * _BAR_WIDTH * 8), 8)
    return text(("█" * full + _EIGHTHS[part].strip()).ljust(_BAR_WIDTH), style)


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table as lines of text, one line per row however long, so that grep works.

    rich takes ten seconds for a thousand rows.
    """
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    # One space where two would be too wide for a terminal.
    gap = " " * (1 + (sum(widths) + 2 * len(widths) <= _TERMINAL_COLUMNS + 2))
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]


def list_some(words: Sequence[str], most: int = 8) -> str:
    """List the first few words, and say how many more there are."""
    more = f", and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
