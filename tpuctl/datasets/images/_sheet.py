"""A contact sheet: thumbnails in a grid, each with its label beneath."""

import math
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw, ImageFont

from tpuctl.datasets.quarantine import readable
from tpuctl.datasets.reading import Record

_CELL, _GAP, _TEXT = 128, 8, 18
_PAPER, _INK = (255, 255, 255), (40, 40, 40)


def draw_sheet(records: Iterable[Record], count: int, classes: Sequence[str]) -> Image.Image:
    """Lay out records row by row in a grid that is nearly square."""
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    sheet = Image.new(
        "RGB",
        (_GAP + columns * (_CELL + _GAP), _GAP + rows * (_CELL + _TEXT + _GAP)),
        _PAPER,
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for index, record in enumerate(records):
        left = _GAP + index % columns * (_CELL + _GAP)
        top = _GAP + index // columns * (_CELL + _TEXT + _GAP)
        picture = Image.fromarray(record.array())
        picture.thumbnail((_CELL, _CELL), Image.Resampling.HAMMING)
        beside, above = (_CELL - picture.width) // 2, (_CELL - picture.height) // 2
        sheet.paste(picture, (left + beside, top + above))
        text = _shortened(draw, font, _caption(record, classes))
        draw.text((left, top + _CELL + 1), text, fill=_INK, font=font)
    return sheet


def _caption(record: Record, classes: Sequence[str]) -> str:
    if 0 <= record.label < len(classes):
        return readable(classes[record.label])
    return readable(record.key.rpartition("/")[2])


def _shortened(
    draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: str
) -> str:
    """Cut a caption to the width of its thumbnail."""
    if draw.textlength(text, font=font) <= _CELL:
        return text
    while text and draw.textlength(text + "…", font=font) > _CELL:
        text = text[:-1]
    return text + "…"
