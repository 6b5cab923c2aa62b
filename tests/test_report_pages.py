"""Reports as pages in a real browser: wide and narrow, light and dark, printed, by keyboard."""

import base64
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import hostile
from tests.browser import Page, chromium
from tests.pipeline_cases import measurement, profile, starving
from tests.report_cases import cases, set_screen
from tests.waiting import wait_until
from tpuctl.demo.demo import DemoResult
from tpuctl.profiling.compare import diff
from tpuctl.reporters import html
from tpuctl.reporters.pages import page
from tpuctl.reporters.practice import demo_page
from tpuctl.reporters.profile_html import batch_times

NAMES = (
    "profile", "no-device", "trace", "diff", "bench", "bench-compare", "fit", "fit-compare",
    "data", "presize",
)  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, result in cases(folder).items():
        (folder / f"{name}.html").write_text(page(result), encoding="utf-8")
    return {path.stem: path for path in folder.glob("*.html")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        opened.open("about:blank")
        yield opened


def shown(browser: Page, path: Path, width: int = 1280, scheme: str = "light") -> Page:
    set_screen(browser, width, scheme)
    browser.open(path.as_uri(), again=True)
    return browser


def test_every_case_is_tried(pages: dict[str, Path]) -> None:
    assert set(pages) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_one_small_file_without_a_path_of_this_machine(
    pages: dict[str, Path], name: str
) -> None:
    text = pages[name].read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert str(pages[name].parent) not in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    first, *rest = re.findall(r"<h([12])>([^<]*)", text)
    assert first[0] == "1"
    assert first[1]
    order = [heading for level, heading in rest if level == "2"]
    assert order == [h for h in ("Evidence", "What to do", "Details") if h in order]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/photos", "photos"),
        ("--data=/home/ann/photos/cat.jpg:12", "--data=cat.jpg:12"),
        ("gs://bucket/photos/a.jpg", "gs://bucket/photos/a.jpg"),
        ("120 examples/s, 1/2, and/or", "120 examples/s, 1/2, and/or"),
        ("photos/cats ./a/b ../c/d", "photos/cats ./a/b ../c/d"),
        (f"{Path.home()}/clients/acme/photos (photos)", "photos (photos)"),
        ("PATH=/usr/bin:/opt/x/bin", "PATH=bin:bin"),
    ],
)
def test_a_path_is_cut_to_its_last_part(text: str, shown: str) -> None:
    assert html.without_folders(text) == shown


def test_a_table_has_no_empty_column_and_numbers_line_up() -> None:
    made = html.table(("stage", "", "ms", "where"), [("a", "", "1.5", ""), ("b", "", "-", "")])
    assert made.count("<th ") + made.count("<th>") == 2 + 2
    assert made.count("class=number") == 3
    assert "where" not in made


def test_a_chart_is_a_table_where_no_script_runs() -> None:
    made = html.chart("Time", ["a", "b"], {"x": [1.0, None], "y": [0.25, 1234.5]}, unit="ms")
    assert "<details class=data open>" in made
    assert 'aria-label="Time: a: x 1 ms, y 0.25 ms; b: y 1,234 ms"' in made
    assert made.count("<td") == 5


AXE = """(async () => (await axe.run(RULES)).violations
  .filter((found) => ["serious", "critical"].includes(found.impact))
  .map((found) => found.id + ": " + found.nodes[0].html))()"""


def findings(browser: Page, rules: str = "{}") -> list[str]:
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("needs axe-core-python")
    browser.evaluate(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")
    found: Any = browser.call(
        "Runtime.evaluate",
        expression=AXE.replace("RULES", rules),
        returnByValue=True,
        awaitPromise=True,
    )
    return list(found["result"]["value"])


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_serious(
    browser: Page, pages: dict[str, Path], name: str, scheme: str
) -> None:
    shown(browser, pages[name], 390, scheme)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    # Everything but colours is the same in the dark.
    rules = "{}" if scheme == "light" else "{runOnly: ['color-contrast']}"
    assert findings(browser, rules) == []


@pytest.mark.browser
@pytest.mark.slow
def test_axe_would_find_pale_text_and_a_picture_without_words(
    browser: Page, pages: dict[str, Path]
) -> None:
    shown(browser, pages["bench"])
    browser.evaluate(
        "document.querySelector('h1').style.color = '#ccc';"
        "document.querySelector('[role=img]').removeAttribute('aria-label')"
    )
    assert {each.partition(":")[0] for each in findings(browser)} == {
        "color-contrast", "role-img-alt",
    }  # fmt: skip


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_phone_shows_the_whole_page_and_paper_every_table(
    browser: Page, pages: dict[str, Path], name: str
) -> None:
    shown(browser, pages[name], 390)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    if name == "profile":
        table = "document.querySelector('[aria-label^=Stages]')"
        assert browser.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
    texts = "[...document.querySelectorAll('svg text, svg span')].filter((one) => one.textContent)"
    assert browser.evaluate(f"{texts}.every((one) => one.getBoundingClientRect().right <= 391)")
    thick = "[...document.querySelectorAll('.ct-bar')].map((bar) => getComputedStyle(bar))"
    assert browser.evaluate(f"{thick}.every((style) => parseInt(style.strokeWidth) >= 20)")
    set_screen(browser, 680, "dark", "print")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    # Inside a drawing, widths are in its own units, whatever it is scaled to.
    right = "one.matches('text') ? one.getBoundingClientRect().right : one.scrollWidth"
    every = "[...document.querySelectorAll('main *:not(svg *), main text')]"
    cut = f"{every}.filter((one) => ({right}) > 681)"
    # The charts are drawn again for the new width, a frame later.
    wait_until(lambda: browser.evaluate(f"{cut}.map((one) => one.outerHTML.slice(0, 80))") == [])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert (
        browser.evaluate("document.querySelectorAll('details:not(.data):not([open])').length") == 0
    )


@pytest.mark.browser
@pytest.mark.slow
def test_bars_are_on_one_scale_from_zero(browser: Page, pages: dict[str, Path]) -> None:
    shown(browser, pages["profile"])
    parts = browser.evaluate(
        "[...document.querySelectorAll('.ct-bar')].map((bar) => [bar.getAttribute('ct:value'),"
        " bar.getAttribute('x2') - bar.getAttribute('x1')].map(Number))"
    )
    scales = {round(length / value, 2) for value, length in parts if value}
    assert len(scales) == 1
    rows = batch_times({"input": profile(measurement(*starving()))})
    told = browser.evaluate(
        "[...document.querySelectorAll('text.total')].map((t) => t.textContent)"
    )
    totals = [f"{html.short(sum(row.values()))} ms" for row in rows.values()]
    assert sorted(told) == sorted(totals)
    inside = "[...document.querySelectorAll('.chart .inside')].map((t) => t.textContent + ' ms')"
    assert set(browser.evaluate(inside)).isdisjoint(totals), "a bar says the same twice"


def test_a_legend_has_whole_names(pages: dict[str, Path]) -> None:
    legend = re.search("<ul class=legend>.*?</ul>", pages["bench-compare"].read_text())
    assert legend
    assert "colab, TPU v5e, 2026-11-22: GPU, tensorflow default" in legend[0]


@pytest.mark.browser
@pytest.mark.slow
def test_the_keyboard_reaches_and_moves_everything(browser: Page, pages: dict[str, Path]) -> None:
    shown(browser, pages["profile"], 390)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    before, reached = browser.evaluate("document.querySelector('.whatif p').textContent"), set()
    for _ in range(12):
        press(browser, "Tab", 9)
        reached.add(
            browser.evaluate("document.activeElement.name || document.activeElement.tagName")
        )
        if browser.evaluate("document.activeElement.name") == "vcpus":
            press(browser, "ArrowRight", 39)
    assert {"vcpus", "step", "SUMMARY", "DIV"} <= reached
    assert browser.evaluate("document.querySelector('.whatif p').textContent") != before
    assert browser.evaluate("document.querySelector('[name=step]').ariaValueText").endswith(" ms")


def press(browser: Page, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
        )


@pytest.mark.browser
@pytest.mark.slow
def test_a_hostile_name_in_a_chart_is_text(browser: Page, tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='taken'\"></span>" + hostile.FORGED
    result = profile(measurement(*starving()))
    stages = [replace(s, name=attack) if s.is_bottleneck else s for s in result.stages]
    place = tmp_path / "page.html"
    made = page(replace(result, stages=tuple(stages)))
    # As if nothing limited what runs: the names themselves must be harmless.
    place.write_text(re.sub(r"<meta http-equiv[^>]*>", "", made), encoding="utf-8")
    shown(browser, place)
    assert browser.evaluate("document.title") != "taken"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    given = browser.evaluate("document.querySelector('[data-chart]').dataset.chart")
    assert any(part["name"].startswith("<img") for part in json.loads(given)["series"])


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_is_printed_with_its_drawing(browser: Page, pages: dict[str, Path]) -> None:
    shown(browser, pages["bench"])
    printed = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    assert browser.evaluate("document.querySelector('svg').getAttribute('viewBox')").count(" ") == 3


@pytest.mark.slow
def test_the_demo_gives_no_heading_to_no_advice() -> None:
    day: DemoResult = hostile.made(DemoResult)
    after = profile(measurement(*starving()))
    for advice in (after.advice, ()):
        changed = replace(day, before=after, diff=diff(after, after))
        shown = demo_page(replace(changed, after=replace(after, advice=advice)))
        assert ("Then, for the shards:" in shown) is bool(advice)
