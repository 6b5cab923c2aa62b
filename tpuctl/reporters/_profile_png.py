"""A profile as a picture for a chat or a slide: the finding, a bar for each stage, the timeline."""

import io
import textwrap

from PIL import Image, ImageDraw, ImageFont

from tpuctl.profiling.models import Profile
from tpuctl.reporters.profile_html import step_pieces, timeline_pieces

WIDTH, MARGIN, LINE = 1000, 40, 34
LABEL, VALUE = 330, 150
MOST_BARS = 12
TITLE_CHARACTERS = 62
INK, SOFT, PAPER, TRACK = "#1d2330", "#667085", "#ffffff", "#f4f6fa"
COLOURS = {"busy": "#2f6fed", "wait": "#d9480f", "none": "#98a2b3"}

Bar = tuple[str, float, str, bool]


def profile_png(profile: Profile) -> bytes:
    """Draw the profile as a PNG."""
    title = textwrap.wrap(profile.headline, TITLE_CHARACTERS)
    bars = _bars(profile)
    strip = timeline_pieces(profile.trace) if profile.trace else step_pieces(profile)
    height = 2 * MARGIN + LINE * (len(title) + len(bars) + 3) + (2 * LINE if strip else 0)
    image = Image.new("RGB", (WIDTH, height), PAPER)
    draw = ImageDraw.Draw(image)
    y = MARGIN
    for line in title:
        draw.text((MARGIN, y), line, INK, _font(26))
        y += LINE
    draw.text((MARGIN, y), f"{profile.target} ({profile.kind})"[:100], SOFT, _font(16))
    y += 2 * LINE
    if strip:
        _draw_strip(draw, y, strip)
        y += 2 * LINE
    for bar in bars:
        _draw_bar(draw, y, bar)
        y += LINE
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _bars(profile: Profile) -> list[Bar]:
    """The stages, else the idle time; the largest where there are too many."""
    if profile.stages:
        rows = [
            (each.name, each.share_of_cpu, f"{each.cpu_ms_per_example:.3g} ms", each.is_bottleneck)
            for each in profile.stages
        ]
        least = sorted((row[1] for row in rows), reverse=True)[:MOST_BARS][-1]
        return [row for row in rows if row[1] >= least]
    idle = profile.trace.idle if profile.trace else ()
    return [
        (each.what, each.share_of_idle, f"{each.idle_s:.3g} s", False) for each in idle[:MOST_BARS]
    ]


def _draw_strip(draw: ImageDraw.ImageDraw, y: int, strip: list[tuple[float, str, str]]) -> None:
    x, width = float(MARGIN), WIDTH - 2 * MARGIN
    for share, kind, _ in strip:
        draw.rectangle((x, y, x + share * width, y + LINE), COLOURS[kind])
        x += share * width


def _draw_bar(draw: ImageDraw.ImageDraw, y: int, bar: Bar) -> None:
    label, share, value, is_hot = bar
    left, right = MARGIN + LABEL, WIDTH - MARGIN - VALUE
    end = left + max(0.0, min(1.0, share)) * (right - left)
    draw.text((MARGIN, y), textwrap.shorten(label, 42, placeholder="…"), INK, _font(16))
    draw.rectangle((left, y + 2, right, y + 18), TRACK)
    draw.rectangle((left, y + 2, end, y + 18), COLOURS["wait" if is_hot else "busy"])
    draw.text((right + 12, y), f"{share:.1%}, {value}", INK, _font(16))


def _font(size: int) -> "ImageFont.FreeTypeFont | ImageFont.ImageFont":
    return ImageFont.load_default(size)
