"""A profile as an object that displays itself."""

import html
from dataclasses import dataclass

from tpuctl.notebook.paper import as_text
from tpuctl.profiling.models import Profile


@dataclass(frozen=True, repr=False)
class Card:
    """The report of a profile in a notebook, and as text everywhere else."""

    profile: Profile

    def __repr__(self) -> str:
        from tpuctl.reporters.profile import text

        return as_text(text(self.profile))

    def _repr_html_(self) -> str:
        """The page in a frame, so that its style and its script stay its own."""
        from tpuctl.reporters.profile_html import page

        inside = html.escape(page(self.profile), quote=True)
        return f'<iframe srcdoc="{inside}" width="100%" height="640" sandbox="allow-scripts">' + (
            "</iframe>"
        )
