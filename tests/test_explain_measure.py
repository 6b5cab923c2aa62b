"""How often `explain` is right on error texts that no rule was written from."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.explain import explain

TEXTS = Path(__file__).parent / "explain_texts"
# Rounds whose misses were looked at in both halves; see README.md beside them.
OPENED = ("round1", "round2", "round3", "round8", "round16")


@dataclass(frozen=True)
class Case:
    address: str
    codes: tuple[str, ...]
    text: str
    is_unseen: bool


def is_in_seen_half(address: str) -> bool:
    """Whether rules may come from a thread: by its hash, or because the catalogue names it."""
    if any(address in failure.sources for failure in failures().values()):
        return True
    return hashlib.sha256(address.encode()).digest()[0] % 2 == 0


@cache
def cases() -> tuple[Case, ...]:
    return tuple(
        Case(address, tuple(codes.split()), text.strip("\n"), unseen)
        for path in sorted(TEXTS.glob("*.txt"))
        for address, codes, text in blocks(path)
        for unseen in [path.stem not in OPENED and not is_in_seen_half(address)]
    )


def blocks(path: Path) -> Iterator[tuple[str, str, str]]:
    for block in ("\n" + path.read_text(encoding="utf-8")).split("\n@@ ")[1:]:
        head, _, text = block.partition("\n")
        address, _, codes = head.partition(" | ")
        yield address, codes, text


@cache
def answer(text: str) -> str | None:
    return next((match.code for match in explain(text).matches), None)


def verdict(case: Case, given: str | None) -> str:
    """Judge an answer: one that only names a family is not sure, so it claims nothing wrong.

    The code `none` is a text that is harmless or that nobody could answer.
    """
    kind = failures()[given].kind if given else "unsure"
    if given in case.codes or ("none" in case.codes and kind in ("unsure", "warning")):
        return "right"
    return "silent" if kind == "unsure" else "wrong"


def rates(unseen: bool) -> tuple[int, float, float]:
    """Return how many texts one half has, and the shares of right and wrong answers."""
    half = [case for case in cases() if case.is_unseen == unseen]
    counts = Counter(verdict(case, answer(case.text)) for case in half)
    return len(half), counts["right"] / len(half), counts["wrong"] / len(half)


def test_unseen_texts_are_answered_rightly_and_hardly_ever_wrongly() -> None:
    count, right, wrong = rates(unseen=True)
    assert count >= UNSEEN
    assert right >= RIGHT
    assert wrong <= WRONG


def test_seen_texts_are_answered_rightly() -> None:
    count, right, wrong = rates(unseen=False)
    assert count >= 700
    assert right >= 0.95
    assert wrong <= 0.03


UNSEEN, RIGHT, WRONG = 200, 0.64, 0.05


def test_a_catalogue_that_knows_less_or_answers_at_random_does_not_pass() -> None:
    half = [case for case in cases() if case.is_unseen]
    answers = [answer(case.text) for case in half]
    shifted = Counter(map(verdict, half, answers[7:] + answers[:7]))
    assert shifted["wrong"] / len(half) > 10 * WRONG
    # The 75 failures that the first catalogue had.
    old = [code if code and code[0] == "F" else None for code in answers]
    known = Counter(map(verdict, half, old))
    assert known["right"] / len(half) < RIGHT / 2
    assert verdict(half[0], None) == "silent"
    nobody_knows = Case("o/r#1", ("none",), "x", is_unseen=True)
    given = (None, "jax_unsure", "jax_backend_probe", "F66")
    assert [verdict(nobody_knows, each) for each in given] == ["right"] * 3 + ["wrong"]


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
    assert answer(suspended) == "suspended_requests"
