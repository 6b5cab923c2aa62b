"""Horizontal bars for the terminal."""

from rich.text import Text

BAR_WIDTH = 10
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, style: str) -> Text:
    """Draw a share of one, exact to an eighth of a character."""
    full, part = divmod(round(max(0.0, min(1.0, share)) * BAR_WIDTH * 8), 8)
    return Text(("█" * full + EIGHTHS[part].strip()).ljust(BAR_WIDTH), style or "cyan")
