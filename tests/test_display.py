"""Results in Python: what they say of themselves, what they save, what `help(tpuctl)` lists."""

import inspect
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tpuctl
from tests.pipeline_cases import measurement, phase
from tests.pipeline_cases import profile as profile_of
from tests.test_bench import sweep
from tpuctl import outcome
from tpuctl.cli.contents import CONTENTS
from tpuctl.errors import UsageError
from tpuctl.hardware.types import TypeTable
from tpuctl.profiling import tpuprof
from tpuctl.profiling.models import Profile
from tpuctl.reporters import envelope

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_of(measurement(phase()))


class Words(HTMLParser):
    """The words of a page in their order, and what is folded."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.words.append(data)


def test_a_card_has_the_answer_first_and_no_frame_or_scroll_bar(profile: Profile) -> None:
    page = profile._repr_html_()
    words = Words(page)
    assert words.open == []
    assert words.words[:2] == ["tpuctl profile", profile.headline]
    for unwanted in (
        "<iframe",
        "<script",
        "<style",
        "overflow-x",
        "overflow:",
        "height=",
        'class="r',
    ):
        assert unwanted not in page
    # Neither paper nor ink of its own: those of the notebook, light or dark.
    assert not re.search(r"(?<![-\w])color:#(fff|000)|background:#", page)
    assert "<summary>" in page
    assert len(page) < 20_000


def test_a_short_line_a_whole_report_and_the_data(profile: Profile, tmp_path: Path) -> None:
    verdict = f"[{profile.verdict}, confidence {profile.confidence:.2g}]"
    assert repr(profile) == f"<tpuctl profile: {profile.headline} {verdict}>"
    assert "Evidence" in str(profile)
    assert profile.to_dict()["verdict"] == profile.verdict
    saved = json.loads(profile.save(tmp_path / "p.json").read_text())
    assert saved["data"] == profile.to_dict()
    assert tpuprof.load(profile.save(tmp_path / "p.tpuprof")).headline == profile.headline
    assert profile.headline in profile.save(tmp_path / "p.html").read_text()
    with pytest.raises(UsageError, match=r"must end in \.json or \.html, or \.tpuprof"):
        profile.save(tmp_path / "p.txt")


def test_what_bench_saves_can_be_compared(tmp_path: Path) -> None:
    bench = sweep("gpu", {256: 6.0})
    before = bench.save(tmp_path / "gpu.json")
    assert before.read_text() == envelope.success("bench", bench) + "\n"
    assert tpuctl.bench.compare(before, before).speed_ups[0].speed_up == 1
    assert "100.0 µs per example on GPU" in repr(bench)
    assert "<table" in bench.save(tmp_path / "bench.html").read_text()
    with pytest.raises(UsageError, match=r"must end in \.json or \.html\."):
        bench.save(tmp_path / "bench.tpuprof")


def test_the_card_of_doctor_tells_the_host() -> None:
    page = tpuctl.doctor()._repr_html_()
    for word in ("host", "vCPU", "memory", "disk free", "Python"):
        assert word in page


def test_the_table_of_types_answers_in_a_line() -> None:
    table = tpuctl.types()
    assert isinstance(table, TypeTable)
    assert repr(table).startswith(f"<tpuctl types: {len(table.families)} TPU generations; to rent:")
    assert "v6e" in repr(table)
    assert "GPUs" in repr(tpuctl.types("gpus"))
    first = Words(table._repr_html_()).words[1]
    assert first == table.in_words


def test_tables_without_an_answer_say_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = tpuctl.templates.list()
    assert repr(templates).startswith("<tpuctl templates list: 7 templates: ")
    assert "mnist-cnn" in Words(templates._repr_html_()).words[1]
    monkeypatch.setenv("TPUCTL_ZONE", "us-central1-a")
    assert "zone us-central1-a" in repr(tpuctl.config())


def test_a_strategy_that_is_not_open_shows_how_it_is_opened() -> None:
    made = tpuctl.strategy(cpu_devices=2)
    assert repr(made).startswith("<tpuctl strategy: not open yet; with tpuctl.strategy() as ")
    assert "cpu_devices" in str(inspect.signature(tpuctl.strategy))


def test_a_block_shows_its_profile(profile: Profile) -> None:
    block = tpuctl.profile()
    assert block._repr_html_() is None
    assert repr(block) == "<tpuctl profile: no result yet>"
    block._result = profile
    assert repr(block) == repr(profile)
    assert block._repr_html_() == profile._repr_html_()
    assert block.to_dict() == profile.to_dict()


def kinds(kind: type) -> set[type]:
    return {kind}.union(*map(kinds, kind.__subclasses__()))


def test_every_result_has_a_card() -> None:
    for name in ("cloud", "workers", "machine", "data", "training", "profile", "practice"):
        __import__(f"tpuctl.api.{name}")
    for entry in CONTENTS:
        __import__(entry.module)
    from tpuctl.reporters.display import _SHOWN

    own = {"Outcome", "NotedOutcome", "DeletionSummary", "WorkerCheck"}
    for kind in kinds(outcome.Outcome):
        names = {f"{k.__module__}.{k.__name__}".removeprefix("tpuctl.") for k in kind.__mro__}
        assert names & set(_SHOWN) or kind.__name__ in own, kind
        assert vars(kind)["__repr__"] is vars(outcome.Outcome)["__repr__"]


WITHOUT_FRAMEWORKS = """
import pydoc, sys
for name in ("tensorflow", "keras", "jax", "torch", "numpy", "cv2", "IPython"):
    sys.modules[name] = None
import tpuctl, tpuctl.data
for module in (tpuctl, tpuctl.data):
    for name in module.__all__:
        getattr(module, name)
print(pydoc.plain(pydoc.render_doc(tpuctl)))
from tpuctl import *
assert predict and strategy
try:
    tpuctl.ProfileCallback()
except tpuctl.errors.MissingExtraError as error:
    assert "keras" in str(error)
try:
    tpuctl.predict(None, None)
except tpuctl.errors.MissingExtraError as error:
    assert "keras" in str(error)
else:
    raise SystemExit("predict ran without Keras")
"""


def test_help_lists_every_function_without_any_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name in tpuctl.__all__[1:]:
        assert re.search(rf"^    (class )?{name}( = | ?\(|$)", done.stdout, re.MULTILINE), name
    listed = re.findall(r"^    [a-zA-Z ]+?  +((?:\w+ ?)+)$", tpuctl.__doc__ or "", re.MULTILINE)
    assert {entry.name for entry in CONTENTS} <= set(" ".join(listed).split())
    assert set(" ".join(listed).split()) <= set(tpuctl.__all__)


def test_the_documents_show_every_command_beside_its_function() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    lacking = [
        entry.name
        for entry in CONTENTS
        if not re.search(rf"^\| `tpuctl {entry.name}\b.*\| .*tpuctl\.{entry.name}\b", pages, re.M)
    ]
    assert lacking == []


@pytest.mark.parametrize("name", ["doctor", "strategy", "fit", "launch", "predict"])
def test_a_function_says_in_its_help_what_it_does(name: str) -> None:
    assert len(inspect.getdoc(getattr(tpuctl, name)) or "") > 60


PRACTICE = """
import tpuctl
for _ in range(2):  # a cell that is run again
    with tpuctl.strategy(cpu_devices=4, framework={framework!r}, batch_size=8) as four:
        assert four.replicas == 4, four
print(repr(four))
assert "replicas" in four._repr_html_() and four.to_dict()["batch_size"] == 8
try:
    with tpuctl.strategy(cpu_devices=3, framework={framework!r}):
        raise SystemExit("split again")
except tpuctl.errors.InvalidInputError as error:
    assert "Restart the kernel" in error.hint, error.hint
"""


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_a_notebook_practises_on_virtual_devices(framework: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRACTICE.format(framework=framework)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<tpuctl strategy: 4 replicas: ")
