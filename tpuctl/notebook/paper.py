"""A report as plain text, for whatever shows no HTML."""

import io
from typing import Any


def as_text(report: Any) -> str:
    """Lay out what rich can print for 100 columns, without colours."""
    from rich.console import Console

    paper = io.StringIO()
    # Inside a kernel rich would otherwise display at once instead of writing.
    Console(file=paper, width=100, color_system=None, force_jupyter=False).print(report)
    return "\n".join(line.rstrip() for line in paper.getvalue().splitlines())
