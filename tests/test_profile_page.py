"""The profile's page in a real browser: what it computes is what Python computes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser import Page, chromium
from tests.pipeline_cases import measurement, profile, starving
from tests.test_pipeline_verdicts import CASES
from tests.test_profile_files import hostile_page
from tpuctl.profiling.whatif import what_if
from tpuctl.reporters import profile_html
from tpuctl.reporters.profile_html import SCALE

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def write(folder: Path, html: str) -> str:
    place = folder / "page.html"
    place.write_text(html, encoding="utf-8")
    return place.as_uri()


def move(page: Page, name: str, value: float) -> None:
    page.evaluate(
        f"{{ const slider = document.querySelector('input[name={name}]'); slider.value = {value};"
        " slider.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


def said(page: Page, name: str) -> float:
    return float(page.evaluate(f"document.querySelector('[data-say={name}]').textContent"))


def test_the_sliders_compute_what_python_computes(browser: Page, tmp_path: Path) -> None:
    uneven = replace(starving()[0], unevenness=0.09), starving()[1]
    result = profile(measurement(*uneven))
    assert result.batch_size
    assert result.cpu_ms_per_example
    assert result.scaling
    assert result.scaling.unevenness == 0.09
    browser.open(write(tmp_path, profile_html.profile_page(result)))
    assert result.device
    given = result.device.step_ms
    assert said(browser, "step") == pytest.approx(given, rel=1e-4)
    most = int(browser.evaluate("document.querySelector('input[name=vcpus]').max"))
    for vcpus in (1, 2, 3, most):
        for exponent in (-1.0, 0.301, 1.78, 2.5, 5.0):
            move(browser, "vcpus", vcpus)
            position = round((exponent - math.log10(given)) * SCALE)
            step_ms = given * 10 ** (position / SCALE)
            move(browser, "step", position)
            expected = what_if(
                batch_size=result.batch_size,
                cpu_ms_per_example=result.cpu_ms_per_example,
                vcpus=vcpus,
                step_ms=step_ms,
                scaling=result.scaling,
            )
            assert said(browser, "vcpus") == vcpus
            assert said(browser, "step") == pytest.approx(step_ms, rel=1e-3)
            assert said(browser, "rate") == pytest.approx(expected.examples_per_s, abs=0.06)
            assert said(browser, "idle") == pytest.approx(
                100 * expected.mxu_idle_fraction, abs=0.06
            )
            for name, share in (("least", expected.mxu_idle_low), ("most", expected.mxu_idle_high)):
                assert said(browser, name) == pytest.approx(100 * share, abs=0.06)
            assert said(browser, "needed") == pytest.approx(expected.vcpus_needed, rel=6e-3)


def test_the_page_opens_with_what_was_measured(browser: Page, tmp_path: Path) -> None:
    result = profile(measurement(*starving()))
    assert result.device
    browser.open(write(tmp_path, profile_html.profile_page(result)))
    assert said(browser, "vcpus") == result.vcpus.available
    assert said(browser, "step") == pytest.approx(result.device.step_ms, rel=0.003)
    assert said(browser, "needed") == pytest.approx(result.vcpus.needed_to_saturate, rel=0.01)
    assert math.isclose(said(browser, "idle") / 100, result.mxu_idle_fraction or 0, abs_tol=0.02)


def test_a_hostile_name_runs_nothing_in_a_real_browser(browser: Page, tmp_path: Path) -> None:
    html = hostile_page(profile(measurement(*starving())))
    attack = (
        "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
    )
    browser.open(write(tmp_path, html.replace("</main>", attack + "</main>")))
    assert browser.evaluate("document.title") != "taken"
    assert said(browser, "vcpus") == 2


def test_where_vcpus_are_not_the_limit_there_are_no_sliders(browser: Page, tmp_path: Path) -> None:
    browser.open(
        write(
            tmp_path,
            profile_html.profile_page(profile(CASES["a Python function that holds the lock"][1])),
        )
    )
    assert browser.evaluate("document.querySelectorAll('input').length") == 0
    assert "would not help" in browser.evaluate("document.body.textContent")
