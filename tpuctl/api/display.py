"""Results that display themselves: HTML in a notebook, text everywhere else."""

import base64
import html
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.diagnosis.report import Diagnosis
from tpuctl.printable import printable_result
from tpuctl.reporters import layout

if TYPE_CHECKING:
    from tpuctl.datasets.models import Description
    from tpuctl.profiling.models import Profile


@dataclass(frozen=True, repr=False)
class Report(Diagnosis):
    """A diagnosis, shown as a card."""

    def __repr__(self) -> str:
        from tpuctl.reporters.machine import render_diagnosis

        return as_text(render_diagnosis(printable_result(self)))

    def _repr_html_(self) -> str:
        from tpuctl.reporters.machine import diagnosis_card

        return diagnosis_card(self)


@dataclass(frozen=True, repr=False)
class ProfileReport:
    """A profile, shown as its HTML page."""

    profile: "Profile"

    def __repr__(self) -> str:
        from tpuctl.reporters.profile import render_profile

        return as_text(render_profile(printable_result(self.profile)))

    def _repr_html_(self) -> str:
        from tpuctl.reporters.profile_html import profile_page

        # In a frame, the page's style and script do not touch the notebook.
        page = html.escape(profile_page(self.profile), quote=True)
        frame = 'width="100%" height="640" sandbox="allow-scripts"'
        return f'<iframe srcdoc="{page}" {frame}></iframe>'


@dataclass(frozen=True, repr=False)
class DataSetReport:
    """The description of a data set, shown with its contact sheet."""

    description: "Description"
    sheet_png: bytes

    def __repr__(self) -> str:
        from tpuctl.reporters.data import render_description

        return as_text(render_description(printable_result(self.description)))

    def _repr_html_(self) -> str:
        sheet = base64.b64encode(self.sheet_png).decode()
        image = f'<img src="data:image/png;base64,{sheet}" alt="contact sheet">'
        return f"<pre>{html.escape(repr(self))}</pre>{image}"


def as_text(report: Any) -> str:
    """Lay out a report as plain text of 100 columns."""
    out = io.StringIO()
    # Inside a kernel rich would otherwise display at once instead of writing.
    console = layout.console(file=out, width=100, color_system=None, force_jupyter=False)
    console.print(layout.Printable(report))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
