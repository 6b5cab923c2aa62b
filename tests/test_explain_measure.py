"""How often `explain` is right on error texts that no rule was written from."""

import hashlib
import html
import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tpuctl.diagnosis import catalogue, evidence
from tpuctl.diagnosis.catalogue import NO_CLAIM, Failure, candidates, claims, failures
from tpuctl.diagnosis.evidence import Index
from tpuctl.diagnosis.explain import explain
from tpuctl.diagnosis.patterns import Pattern, Plain, tokens

pytestmark = pytest.mark.slow

TEXTS = Path(__file__).parent / "explain_texts"
THREADS = Path(catalogue.__file__).parent / "data" / "threads.json"
# Rules come from both halves of the rounds before this one, and from none since; see README.md.
FIRST_UNSEEN_ROUND = 33


@dataclass(frozen=True)
class Case:
    address: str
    codes: tuple[str, ...]
    text: str
    is_unseen: bool


def is_in_seen_half(address: str) -> bool:
    """Whether rules may come from a thread: by its hash, or because the catalogue names it."""
    return is_named(address) or hashlib.sha256(address.encode()).digest()[0] % 2 == 0


def is_named(address: str) -> bool:
    """Whether the catalogue names a thread as a source."""
    return any(address in failure.sources for failure in failures().values())


@cache
def cases() -> tuple[Case, ...]:
    return tuple(
        Case(address, tuple(codes.split()), text.strip("\n"), unseen)
        for path in sorted(TEXTS.glob("*.txt"))
        for address, codes, text in blocks(path)
        for is_later in [int(path.stem.removeprefix("round")) >= FIRST_UNSEEN_ROUND]
        for unseen in [is_later and not is_named(address)]
    )


def blocks(path: Path) -> Iterator[tuple[str, str, str]]:
    for block in ("\n" + path.read_text(encoding="utf-8")).split("\n@@ ")[1:]:
        head, _, text = block.partition("\n")
        address, _, codes = head.partition(" | ")
        yield address, codes, text


class Answer(NamedTuple):
    """The first answer's code, how sure it is, and the failures with similar words.

    `matched` is empty if the answer is only the most similar failure.
    """

    code: str | None = None
    is_sure: bool = False
    similar: frozenset[str] = frozenset()
    matched: str = ""


NOTHING = Answer()


def first(text: str) -> Answer:
    found = explain(text)
    similar = frozenset(each.code for each in found.similar)
    if not found.matches:
        return Answer(similar=similar)
    best = found.matches[0]
    return Answer(best.code, not best.title.startswith("Not sure"), similar, best.matched)


answer = cache(first)


def verdict(case: Case, given: Answer) -> str:
    """Judge an answer: one that is not sure claims nothing wrong.

    It is right if the failure that it calls the nearest is the right one, and near if the right
    one is among those with similar words. The code `none` is a text that is harmless or that nobody
    could answer.
    """
    code, is_sure, similar, _ = given
    is_harmless = code is not None and failures()[code].kind == "warning"
    if code in case.codes or ("none" in case.codes and (is_harmless or not is_sure)):
        return "right"
    if is_sure:
        return "wrong"
    return "near" if similar & {*case.codes} else "silent"


def rates(unseen: bool) -> tuple[int, float, float]:
    """Return how many texts one half has, and the shares of right and wrong answers."""
    half = [case for case in cases() if case.is_unseen == unseen]
    counts = Counter(verdict(case, answer(case.text)) for case in half)
    return len(half), counts["right"] / len(half), counts["wrong"] / len(half)


Known = Callable[[Case, Failure, Pattern], bool]
pattern_of = cache(Pattern)


def kept(case: Case, is_left_out: Known) -> list[Failure]:
    """Return the failures with the patterns that are not left out for a text."""
    found = []
    for known in claims():
        left = tuple(p for p in known.patterns if not is_left_out(case, known, pattern_of(p)))
        if left == known.patterns:
            found.append(known)
        elif left:
            found.append(replace(known, patterns=left))
    return found


def answers_without(
    monkeypatch: pytest.MonkeyPatch, is_left_out: Known, every: int = 1
) -> Iterator[tuple[Case, Answer]]:
    """Answer the seen texts by a catalogue that lacks something for each.

    Similar words are slower to compare, so only if not every text is asked for. The thread decides
    which are, so that new texts do not change the choice among the others.
    """
    # Hundreds of catalogues have the same words.
    monkeypatch.setattr("tpuctl.diagnosis.evidence._words", cache(evidence._words))
    monkeypatch.setattr("tpuctl.diagnosis.evidence.Pattern", pattern_of)
    for case in cases():
        if not case.is_unseen and hashlib.sha256(case.address.encode()).digest()[1] % every == 0:

            def left(words: set[str], case: Case = case) -> Iterator[tuple[Failure, Pattern]]:
                known = candidates(words)
                return (each for each in known if not is_left_out(case, *each))

            monkeypatch.setattr("tpuctl.diagnosis.search.candidates", left)
            # They do not change the answer, and need an index of each catalogue.
            monkeypatch.setattr("tpuctl.diagnosis.explain._rivals", lambda *_: ())
            monkeypatch.setattr(
                "tpuctl.diagnosis.evidence.threads_with", partial(threads_with, but=case.address)
            )
            monkeypatch.setattr(
                "tpuctl.diagnosis.evidence.seen_patterns",
                partial(seen_in_threads, but=case.address),
            )
            known_ones = partial(kept, case, is_left_out) if every > 1 else list[Failure]
            monkeypatch.setattr(
                "tpuctl.diagnosis.explain.known_words", lambda known=known_ones: Index(known())
            )
            yield case, first(case.text)


def counts_without(monkeypatch: pytest.MonkeyPatch, is_left_out: Known) -> Counter[str]:
    """Judge the answers to the seen texts by a catalogue that lacks something for each."""
    answers = answers_without(monkeypatch, is_left_out)
    return Counter(verdict(case, given) for case, given in answers)


def test_a_text_whose_failure_is_not_known_is_hardly_ever_given_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = counts_without(monkeypatch, lambda case, known, _: known.code in case.codes)
    assert counts["wrong"] / counts.total() <= 0.032


@cache
def threads_by_pattern() -> dict[tuple[str, str], dict[str, str]]:
    """Return the addresses of the seen threads with each pattern of a failure, and their causes.

    A thread with several right codes counts for the failure if it is one of them.
    """
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for case in cases():
        plain = Plain(case.text.splitlines())
        for known, pattern in candidates(tokens(case.text)) if not case.is_unseen else ():
            if next(pattern.find(plain), None):
                causes = found[known.code, pattern.words]
                if causes.get(case.address) != known.code:
                    right = known.code in case.codes
                    causes[case.address] = known.code if right else case.codes[0]
    return found


def thread(address: str) -> str:
    """Return one name of a thread, however its address is written."""
    name = re.sub(r"^https://github.com/", "", address).lower()
    return re.sub(r"/(issues|pull|discussions)/", "#", name)


def threads_with(code: str, words: str, but: str = "") -> Counter[str]:
    """Count the threads with a pattern by their cause, all but one; none if they agree."""
    found = threads_by_pattern().get((code, words), {})
    # The failure itself comes last, so that it wins if a thread has several texts.
    causes = sorted(found.items(), key=lambda each: each[1] == code)
    threads = {thread(address): cause for address, cause in causes}
    threads.pop(thread(but), None)
    counts = Counter(threads.values())
    return Counter(dict(sorted(counts.items())) if counts.keys() - {code} else {})


def seen_in_threads(code: str, but: str = "") -> frozenset[str]:
    """Return the patterns that a thread with this cause has, all but one thread."""
    found = {
        words: threads_by_pattern().get((code, words), {}) for words in failures()[code].patterns
    }
    return frozenset(
        words
        for words, causes in found.items()
        if {thread(address) for address, cause in causes.items() if cause == code} - {thread(but)}
    )


def taught_by_its_thread() -> Known:
    """Return whether a text's own thread alone has taught a failure or a pattern."""
    threads = threads_by_pattern()

    def is_from_it(case: Case, known: Failure, pattern: Pattern) -> bool:
        is_only_source = set(known.sources) <= {case.address}
        named = threads.get((known.code, pattern.words), {}).keys()
        taught = is_only_source or named == {case.address}
        return known.kind != "unsure" and taught

    return is_from_it


def test_the_other_threads_explain_most_texts_and_mislead_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = counts_without(monkeypatch, taught_by_its_thread())
    assert counts["right"] / counts.total() >= 0.6
    assert counts["wrong"] / counts.total() <= 0.012


def test_similar_words_lead_to_the_failure_of_a_text_that_no_pattern_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {code for code, failure in failures().items() if failure.kind not in NO_CLAIM}
    every = answers_without(monkeypatch, taught_by_its_thread(), every=4)
    answers = [each for each in every if not each[1].matched or each[1].code not in known]
    nearest = [
        given.code in case.codes for case, given in answers if given.code and not given.matched
    ]
    counts = Counter(verdict(case, given) for case, given in answers)
    assert len(nearest) >= 30
    assert sum(nearest) / len(nearest) >= 1 / 3
    among = sum(nearest) + counts["near"]
    assert among / (among + counts["silent"]) >= 0.2


def test_the_threads_of_each_pattern_are_those_of_the_seen_texts(
    request: pytest.FixtureRequest,
) -> None:
    counted: dict[str, dict[str, Counter[str]]] = defaultdict(dict)
    for code, words in sorted(threads_by_pattern()):
        if failures()[code].kind not in NO_CLAIM and (causes := threads_with(code, words)):
            counted[code][words] = causes
    of_code = {code: seen_in_threads(code) for code in {code for code, _ in threads_by_pattern()}}
    seen = {
        code: [at for at, words in enumerate(failures()[code].patterns) if words in of_code[code]]
        for code in sorted(of_code)
        if of_code[code]
    }
    if request.config.getoption("--update-golden"):
        document = json.loads(THREADS.read_text(encoding="utf-8"))
        document |= {"patterns": counted, "seen": seen}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        text = re.sub(r"\n {4,}|\n {3}(?=})|(?<=\[)\n\s+|\n\s+(?=\]|\d)", " ", text)
        THREADS.write_text(text + "\n", encoding="utf-8")
    known = json.loads(THREADS.read_text(encoding="utf-8"))
    assert (known["patterns"], known["seen"]) == (counted, seen)


def test_unseen_texts_are_answered_rightly_and_hardly_ever_wrongly() -> None:
    count, right, wrong = rates(unseen=True)
    assert count >= UNSEEN
    assert right >= RIGHT
    assert wrong <= WRONG


def test_seen_texts_are_answered_rightly() -> None:
    count, right, wrong = rates(unseen=False)
    assert count >= 900
    assert right >= 0.95
    assert wrong <= 0.02
    known = [case for case in cases() if not case.is_unseen and answer(case.text)[0] in case.codes]
    assert sum(answer(case.text)[1] for case in known) / len(known) >= 0.8


UNSEEN, RIGHT, WRONG = 47, 0.56, 0.09


def test_a_catalogue_that_knows_less_or_answers_at_random_does_not_pass() -> None:
    half = [case for case in cases() if case.is_unseen]
    answers = [answer(case.text) for case in half]
    shifted = Counter(map(verdict, half, answers[7:] + answers[:7]))
    assert shifted["wrong"] / len(half) > 4 * WRONG
    # The 75 failures that the first catalogue had.
    old = [given if given[0] and given[0][0] == "F" else NOTHING for given in answers]
    known = Counter(map(verdict, half, old))
    assert known["right"] / len(half) < RIGHT / 2
    assert verdict(half[0], NOTHING) == "silent"
    nobody_knows = Case("o/r#1", ("none",), "x", is_unseen=True)
    sure = ("jax_backend_probe", "F66")
    given = (NOTHING, Answer("jax_unsure"), *(Answer(code, True) for code in sure))
    assert [verdict(nobody_knows, each) for each in given] == ["right"] * 3 + ["wrong"]
    assert verdict(half[0], Answer("F66")) == "silent"
    assert verdict(half[0], Answer(similar=frozenset({half[0].codes[0]}))) == "near"


def test_a_thread_belongs_to_one_half_and_every_text_has_a_source_and_an_answer() -> None:
    threads = Counter(case.address for case in cases() if case.is_unseen)
    assert not threads.keys() & {case.address for case in cases() if not case.is_unseen}
    for case in cases():
        assert "#" in case.address or case.address.count("/") >= 1
        assert case.codes
        assert case.text


def test_the_halves_stay_as_they_were_split() -> None:
    assert is_in_seen_half("pytorch/xla#7138")
    assert not is_in_seen_half("pytorch/xla#6426")
    assert is_in_seen_half("pytorch/xla#9524")


def _each_line(form: str) -> Callable[[str], str]:
    return lambda text: "\n".join(form.format(line) for line in text.split("\n"))


def _at_80_columns(text: str) -> str:
    lines = ([line[at : at + 80] for at in range(0, len(line), 80)] for line in text.split("\n"))
    return "\n".join("\n".join(parts) for parts in lines)


def _in_rows_of(form: str) -> Callable[[str], str]:
    """Return a layout of rows of at most 76 columns, broken between words."""

    def layout(text: str) -> str:
        rows = (row for line in text.split("\n") for row in textwrap.wrap(line, 76) or [""])
        return "\n".join(form.format(row).rstrip() for row in rows)

    return layout


START = """\
2026-11-03 10:00:01.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow \
binary is optimized to use available CPU instructions in performance-critical operations.
I0000 00:00:1762164001.123456    1234 cuda_dnn.cc:529] Loaded
/usr/lib/python3.12/site-packages/jax/_src/xla_bridge.py:119: UserWarning: foo is deprecated
  warnings.warn(
step 1 loss 4.56
"""
LAYOUTS: dict[str, Callable[[str], str]] = {
    "logger": _each_line("2026-11-03T10:00:12.345Z {}"),
    "quoted": _in_rows_of("> {}"),
    "boxed": _in_rows_of("│ {:76} │"),
    "terminal": _at_80_columns,
    "html": html.escape,
    "json": lambda text: json.dumps({"severity": "ERROR", "message": text}),
    "escaped": lambda text: text.replace("\n", "\\n"),
    "repr": lambda text: f"stderr: {text.encode()!r}",
    "log": lambda text: f"{START}{text}\nmake: *** [train] Error 1\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_a_text_was_logged_or_copied_hardly_ever_changes_the_answer(layout: str) -> None:
    right = [case for case in cases() if verdict(case, answer(case.text)) == "right"][::3]
    other = [case for case in right if verdict(case, first(LAYOUTS[layout](case.text))) != "right"]
    assert len(other) <= 0.015 * len(right)


def test_no_text_about_a_small_memory_is_told_to_reduce_the_batch() -> None:
    texts = [case.text for case in cases() if "memory space vmem" in case.text]
    assert len(texts) > 5
    for text in (*texts, "Ran out of memory in memory space smem. Used 1.3M of 1.0M smem."):
        matches = explain(text).matches
        assert "F66" not in {match.code for match in matches}
        assert "batch per device" not in matches[0].fix


def test_suspended_requests_come_before_the_advice_to_raise_a_quota() -> None:
    (text,) = (case.text for case in cases() if case.address == "marin-community/marin#87")
    suspended = f"{text}\ngcloud alpha compute tpus queued-resources list: state: SUSPENDED"
    assert [match.code for match in explain(suspended).matches] == ["suspended_requests"]
    assert answer(text)[:2] == ("quota_exceeded", True)
