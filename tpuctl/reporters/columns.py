"""Tables as plain lines, for lists that may be long: a thousand rows take rich ten seconds."""

from collections.abc import Sequence

_GAP = "  "


def columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows below their titles; no line is folded, so that each can be searched for."""
    table = [titles, *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(titles))]
    return [
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
