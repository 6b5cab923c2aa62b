"""What a data set holds, with its contact sheet, as an object that displays itself."""

import base64
import html
from dataclasses import dataclass

from tpuctl.datasets.describe import contact_sheet, describe
from tpuctl.datasets.models import Description
from tpuctl.notebook.paper import as_text


@dataclass(frozen=True, repr=False)
class Shown:
    """The description of a data set; in a notebook the pictures of its contact sheet below it."""

    description: Description
    sheet_png: bytes

    def __repr__(self) -> str:
        from tpuctl.reporters.data import show

        return as_text(show(self.description))

    def _repr_html_(self) -> str:
        sheet = base64.b64encode(self.sheet_png).decode()
        image = f'<img src="data:image/png;base64,{sheet}" alt="contact sheet">'
        return f"<pre>{html.escape(repr(self))}</pre>{image}"


def show_data_set(dst: str) -> Shown:
    """Describe a data set and draw its contact sheet."""
    return Shown(describe(dst), contact_sheet(dst))
