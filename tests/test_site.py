"""The documentation site, built for real: complete, local, and every answer within two clicks."""

import json
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag

import pytest

pytest.importorskip("material", reason="mkdocs-material is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")

from tests import pages
from tests.browser import chromium
from tests.sharing import made_once
from tests.site_sample import EVERY
from tests.waiting import wait_until
from tpuctl.diagnosis.catalogue import failures
from tpuctl.linting.models import rules
from tpuctl.settings import KEYS
from website import codes, commands, settings

ROOT = Path(__file__).parents[1]
QUESTIONS = json.loads((Path(__file__).parent / "questions.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.slow


# `make docs`, but for the pages of most failures.
SAMPLE = f"""
INHERIT: {ROOT}/mkdocs.yml
docs_dir: {ROOT}/docs
hooks: [{ROOT}/website/hooks.py, {ROOT}/tests/site_sample.py]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with a sample of the failures."""

    def make(folder: Path) -> None:
        (folder / "mkdocs.yml").write_text(SAMPLE, encoding="utf-8")
        build(folder / "mkdocs.yml", folder / "site")

    return made_once(tmp_path_factory, "site", make) / "site"


def build(config: Path, site: Path) -> None:
    """Build a site; a warning fails the build."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "-f",
        str(config),
        "-d",
        str(site),
    ]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


class Links(HTMLParser):
    """What a reader sees of a page: its text, and the links of its tabs and its own text."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.words: list[str] = []
        self.external: set[str] = set()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        names = {"script": "src", "link": "href", "img": "src", "iframe": "src"}
        if (loaded := values.get(names.get(tag, ""), "")).startswith(("http:", "https:", "//")):
            self.external.add(loaded)
        if tag == "article" or (tag == "nav" and "md-tabs" in values.get("class", "").split()):
            self._open.append(tag)
        if self._open and tag == "a" and "href" in values:
            self.links.add(values["href"])

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[-1]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if "article" in self._open:
            self.words.append(data)


@cache
def read(path: Path) -> tuple[str, set[Path], set[str]]:
    """The text of a page, the pages it links to, and what it loads from elsewhere."""
    parser, page = Links(), path.read_text(encoding="utf-8")
    # Most of 2,000 pages is the same: their header, and the navigation beside the text.
    places = ("<header", '<nav class="md-tabs"', "<main", "<article")
    header, tabs, main, article = map(page.index, places)
    assert not re.search("src=|<link", page[header:tabs] + page[main:article])
    parser.feed(page[:header] + page[tabs:main] + page[article:])
    targets = {urldefrag(link)[0] for link in parser.links if "://" not in link}
    found = {(path.parent / target).resolve() for target in targets if target}
    return (
        " ".join("".join(parser.words).split()),
        {each for each in found if each.suffix == ".html"},
        parser.external,
    )


def clicks(site: Path) -> dict[Path, int]:
    """How many clicks each page is away from the front page."""
    far, front = {(site / "index.html").resolve(): 0}, [(site / "index.html").resolve()]
    while front:
        following = []
        for page in front:
            for target in read(page)[1]:
                if target not in far and target.is_file():
                    far[target] = far[page] + 1
                    following.append(target)
        front = following
    return far


def is_answered(site: Path, page: str, words: list[str], near: dict[Path, int]) -> bool:
    """Whether a page is at most two clicks away and says all of it."""
    path = (site / f"{page}.html").resolve()
    text = read(path)[0].replace("’", "'")
    return near.get(path, 3) <= 2 and all(word in text for word in words)


def test_each_of_the_questions_is_answered_within_two_clicks(site: Path) -> None:
    assert len({each["from"] for each in QUESTIONS}) >= 20
    near = clicks(site)
    lost = [
        each["question"]
        for each in QUESTIONS
        if not is_answered(site, each["page"], each["words"], near)
    ]
    assert lost == []
    assert not is_answered(site, "kaggle", ["a text that no page has"], near)
    assert not is_answered(site, "kaggle", [], {page: far + 2 for page, far in near.items()})


def test_every_command_code_rule_and_variable_has_its_page(site: Path) -> None:
    for words, command in commands.commands():
        page = site / "reference" / "commands" / f"{commands.slug(words)}.html"
        text = read(page)[0]
        assert f"tpuctl {words}" in text
        assert all(" ".join(line.split()) in text for line in commands.examples(command)), words
        assert (site / "reference" / "json" / page.name).is_file()
    linked = {page.stem for page in read(site / "failures" / "index.html")[1]}
    assert set(failures()) <= linked
    assert {f"failures/{code}.md" for code in failures()} <= set(codes.pages())
    assert len(list((site / "failures").iterdir())) > len(failures()) / EVERY
    for code in rules():
        text = read(site / "rules" / f"{code}.html")[0]
        assert not re.search(r"\{(runtime|keras|jax|tensorflow|torch)\}", text), code
    reachable(site)


def reachable(site: Path) -> None:
    """Every page can be reached from the front page."""
    far = clicks(site)
    unreachable = {page for page in site.rglob("*.html") if page.resolve() not in far}
    assert {page.name for page in unreachable} == {"404.html"}


@pytest.mark.soak
def test_the_site_is_built_with_every_failure(tmp_path: Path) -> None:
    build(ROOT / "mkdocs.yml", tmp_path / "site")
    for code in failures():
        assert (tmp_path / "site" / "failures" / f"{code}.html").is_file()
    reachable(tmp_path / "site")


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert read(page)[2] == set(), page
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")
        )
    parser = Links()
    parser.feed('<script src="https://cdn.example/a.js"></script><link href="//fonts.example">')
    assert parser.external == {"https://cdn.example/a.js", "//fonts.example"}


@pytest.mark.browser
def test_search_and_colours_work_without_a_network(site: Path, tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", site],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
        assert address
        with chromium(tmp_path / "profile") as page:
            page.open(address[0])
            page.evaluate(
                "document.querySelector('.md-search__input').focus();"
                "document.querySelector('.md-search__input').value = 'preempted';"
                "document.querySelector('.md-search__input').dispatchEvent(new Event('keyup'));"
            )
            found = "document.querySelectorAll('.md-search-result__link').length"
            wait_until(lambda: page.evaluate(found) > 0)
            colour = "document.body.dataset.mdColorScheme"
            before = page.evaluate(colour)
            page.evaluate(
                "[...document.querySelectorAll('[name=__palette]')].find("
                "x => x.dataset.mdColorScheme != document.body.dataset.mdColorScheme).click()"
            )
            wait_until(lambda: page.evaluate(colour) != before)
            loaded = page.evaluate(
                "performance.getEntriesByType('resource').map(x => x.name).join(' ')"
            )
            assert all(each.startswith(address[0]) for each in loaded.split())
    finally:
        server.kill()
        server.communicate()


def test_every_variable_of_ours_is_on_the_page() -> None:
    found = {
        name
        for path in (ROOT / "tpuctl").rglob("*")
        if path.suffix in (".py", ".json") and path.is_file()
        for name in re.findall(r"\bTPUCTL_[A-Z][A-Z_]+[A-Z]\b", path.read_text(encoding="utf-8"))
    }
    written = {name for rows in settings.VARIABLES.values() for name in rows}
    assert found <= written | {key.variable for key in KEYS}


def test_the_picture_of_the_architecture_names_every_package() -> None:
    picture = (pages.DOCS / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "tpuctl").glob("*/__init__.py")}
    assert {name for name in packages if name not in picture} == set()
