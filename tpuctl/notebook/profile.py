"""A profile as an object that displays itself."""

import html
import io
from dataclasses import dataclass

from tpuctl.pipeline.models import Profile


@dataclass(frozen=True, repr=False)
class Card:
    """The report of a profile in a notebook, and as text everywhere else."""

    profile: Profile

    def __repr__(self) -> str:
        from rich.console import Console

        from tpuctl.reporters.profile import text

        paper = io.StringIO()
        # Inside a kernel rich would otherwise display at once instead of writing.
        console = Console(file=paper, width=100, color_system=None, force_jupyter=False)
        console.print(text(self.profile))
        return "\n".join(line.rstrip() for line in paper.getvalue().splitlines())

    def _repr_html_(self) -> str:
        """The page in a frame, so that its style and its script stay its own."""
        from tpuctl.reporters.profile_html import page

        inside = html.escape(page(self.profile), quote=True)
        return f'<iframe srcdoc="{inside}" width="100%" height="640" sandbox="allow-scripts">' + (
            "</iframe>"
        )
