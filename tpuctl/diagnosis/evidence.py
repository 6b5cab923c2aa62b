"""How strong a match is, and which failures have the most similar messages where none matches.

`tests/test_explain_measure.py` measures it: it removes the right failure from the catalogue, and
counts how often a wrong one is not marked "not sure".
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import NamedTuple

from tpuctl.diagnosis.catalogue import (
    NO_CLAIM,
    Failure,
    claims,
    exclusive_words,
    families,
    seen_patterns,
    threads_with,
)
from tpuctl.diagnosis.patterns import Pattern

_LOWEST = ("low", "medium", "high")
# With the right failure removed, one pattern of fewer than 34 characters was wrong in 18 of 72
# texts, two patterns in 7 of 311. For failures of high confidence, it was 2 of 50 from 24 on.
_LONG_ENOUGH = {"high": 24, "medium": 34}
# In shorter patterns, an exclusive word was wrong in 3 texts.
_ONE_WORD = 12
# A phrase that is most of a message was right in 13 texts, and with its failure removed wrong in 2.
_MOST, _SHORT, _LONG_LINE = 0.5, 15, 1000
# Where some of the threads with a message found another cause, 8 of 12 answers to fresh texts were
# right; where none did, 62 of 68 (2026-11-26). So a cause must be this many times as frequent.
_TIMES = 4
_NEAREST_KNOWN = "Not sure, nearest known failure"
_RAISED = re.compile(r"(?:E +)?[\w.]{1,80}(?:Error|Exception|Interrupt)(?::|$)")
_PREFIX = re.compile(
    r"(?:.{0,120}?\b(?:\w{1,60}(?:Error|Exception)|ERROR|Error|error)\b[^:]{0,30}: ?)?"
    r"(?:Bad StatusOr access: |Unable to initialize backend '\w+': |[A-Z_]{6,20}: )*"
)
_SUFFIX = " (set JAX_PLATFORMS="
_NOTICE = re.compile(
    r"[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |.{0,60}\b(?:INFO|WARNING|DEBUG)\b|.{0,200}Warning: "
)
_GOES_ON = re.compile(r".{0,60}\b(?:INFO|WARNING|DEBUG)\b|.{0,200}Warning: ")
_FRAME = re.compile(r'\s*File "')
_COMMAND = re.compile(
    r"(?:[$>+!%#] ?)?(?:sudo |[A-Z_]+=\S+ )*(?:python3?|gcloud|kubectl|docker|pip3?|vllm) [-\w]"
)
_LIBRARY = re.compile(r"(?:site|dist)-packages/(\w+)[/.]")
_TRACE = 60


class Doubt(NamedTuple):
    """How an answer that is not sure begins, and why it is not sure.

    Without a title, the failure is certain and only its cause is not.
    """

    title: str
    reason: str


def is_raised(line: str) -> bool:
    """Whether a line is the last one of a traceback, with the exception and its message."""
    return _RAISED.match(line.lstrip()) is not None


def is_outside_message(lines: Sequence[str], at: int) -> bool:
    """Whether a line is a frame of a traceback, its source, a notice of a log, or a command."""
    around = lines[max(0, at - 1) : at + 1]
    is_aside = any(map(_GOES_ON.match, around)) or any(map(_FRAME.match, around))
    return is_aside or any(kind.match(lines[at]) is not None for kind in (_NOTICE, _COMMAND))


def without_notices(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines of a log without its notices, if an exception follows them."""
    last = max((at for at, line in enumerate(lines) if is_raised(line)), default=0)
    kept = [line for line in lines[:last] if not _NOTICE.match(line)]
    return [*kept, *lines[last:]]


def library_before(lines: Sequence[str], at: int) -> str | None:
    """Return the library of the last frame above a line."""
    above = (
        _LIBRARY.search(lines[index][:_LONG_LINE])
        for index in range(at, at - _TRACE, -1)
        if index >= 0
    )
    return next((found[1] for found in above if found), None)


def covers_message(line: str, length: int) -> bool:
    """Whether `length` characters are most of the message in a line."""
    message = _PREFIX.sub("", line[:_LONG_LINE], 1).partition(_SUFFIX)[0].strip()
    return len(message) >= _SHORT and length >= _MOST * len(message)


def confidence(failure: Failure, patterns: Collection[Pattern], why: Doubt | None) -> str:
    """Return the confidence of an answer: the catalogue's, or a lower one if there is a doubt."""
    if why:
        return "low" if why.title else min(failure.confidence, "medium", key=_LOWEST.index)
    if failure.confidence == "high" and len(patterns) == 1 and not _is_exclusive(patterns):
        return "medium"
    return failure.confidence


def causes_in_threads(code: str, patterns: Iterable[Pattern]) -> tuple[int, Counter[str]]:
    """Return how many public threads with the same message had this cause, and the other causes.

    Both are 0 if no thread had another cause. Of several patterns, the one counts that says most
    for the cause.
    """

    def split(pattern: Pattern) -> tuple[int, Counter[str]]:
        others = Counter(threads_with(code, pattern.words))
        return others.pop(code, 0), others

    return max(map(split, patterns), key=lambda each: (each[0] - _TIMES * each[1].total(), each[0]))


def doubt(
    failure: Failure, patterns: Collection[Pattern], *, aside: bool, most: bool
) -> Doubt | None:
    """Say why the evidence for a failure is weak, if it is.

    `aside`: the words are outside the message; `most`: they are most of the message.
    """
    if failure.kind in NO_CLAIM:
        return None
    if aside:
        reason = "The words are in a stack frame or a log notice, not in the last exception."
        return Doubt(_NEAREST_KNOWN, reason)
    agree, causes = causes_in_threads(failure.code, patterns)
    others = causes.total()
    if failure.kind in ("wrapper", "general"):
        # With an exclusive word and most of the message, it was right in 15 texts and wrong in
        # none; with only such a word in 22 and 3, without one in 27 and 22.
        is_known = failure.kind == "general" and most and _is_exclusive(patterns) and not others
        return Doubt("" if is_known else "Not sure why", "This message has several causes.")
    if agree < _TIMES * others:
        reason = f"It was the cause in {agree} of {agree + others} known threads with this message."
        return Doubt(_NEAREST_KNOWN, reason)
    # Such answers to fresh texts were right in 8 of 16 cases, other sure ones in 93 of 104
    # (2026-11-27).
    if len(patterns) == 1 and not most and not _was_seen(failure.code, patterns):
        reason = "Only a part of the message points to this, and no thread on record has that part."
        return Doubt(_NEAREST_KNOWN, reason)
    if len(patterns) > 1 or _is_exclusive(patterns):
        return None
    longest = max(pattern.weight for pattern in patterns)
    enough = _LONG_ENOUGH.get(failure.confidence)
    is_long = enough is not None and longest >= (enough / 2 if most else enough)
    if not is_long or failure.kind == "consequence":
        reason = f"Only one phrase points to this; it is about: {families()[failure.family]}."
        return Doubt(_NEAREST_KNOWN, reason)
    return None


def _was_seen(code: str, patterns: Iterable[Pattern]) -> bool:
    return any(pattern.words in seen_patterns(code) for pattern in patterns)


def _is_exclusive(patterns: Collection[Pattern]) -> bool:
    known = (pattern for pattern in patterns if pattern.weight >= _ONE_WORD)
    return any(pattern.needs & exclusive_words() for pattern in known)


# Fitted to the seen texts of tests/explain_texts, each without what its own thread had taught: from
# the first score on, two in five of the most similar failures are right, from the second on two in
# five lists have the right one.
NEAREST, _LEAST, _SHOWN = 1.05, 0.86, 3
# A power of 1 favours long patterns, of which a smaller part needs to match; 2 short ones.
_POWER = 1.25
# A message fits into two neighbouring blocks of lines.
_BLOCK = 200
# Only the end of a log: a long text always resembles one of thousands of patterns.
_END = 2000
# A failure whose patterns name the exception of the text is likelier, one that names only others is
# not: the most similar one was right for 110 of 463 seen texts, without this for 103 (2026-11-26).
_EXCEPTION, _SAME = re.compile(r"\b\w{1,60}(?:Error|Exception)\b"), 0.3
_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z][a-z0-9]+|\d+[a-z]+")


class Index:
    """The words of each pattern and title, weighted by how few failures use them."""

    def __init__(self, known: Iterable[Failure]) -> None:
        self._known = list(known)
        titles = [_words(failure.title) for failure in self._known]
        patterns = [[_words(Pattern(p).literal) for p in each.patterns] for each in self._known]
        counts = Counter[str]()
        for failure, title, said in zip(self._known, titles, patterns, strict=True):
            counts.update(title.union(_words(failure.cause), _words(failure.fix), *said))
        size = len(self._known) + 1
        # Squared, because both vectors of the product contain the weight; 1 for the rarest word.
        rarest = math.log(size / 2)
        self._weights = {w: (math.log(size / (1 + n)) / rarest) ** 2 for w, n in counts.items()}
        self._titles = [(title, math.sqrt(self._weigh(title))) for title in titles]
        self._raised = [set(_EXCEPTION.findall(" ".join(each.patterns))) for each in self._known]
        self._patterns = [
            (number, words, self._weigh(words) ** (_POWER / 2))
            for number, said in enumerate(patterns)
            for words in said
            if words
        ]
        self._users: dict[str, list[int]] = defaultdict(list)
        for at, (_, words, _) in enumerate(self._patterns):
            for word in words:
                self._users[word].append(at)

    def _weigh(self, words: Iterable[str]) -> float:
        return sum(self._weights.get(word, 1.0) for word in words)

    def rank(self, logs: Iterable[Sequence[str]]) -> list[tuple[float, Failure]]:
        """Return up to three failures with their scores, likeliest first."""
        logs = [_end(lines) for lines in logs]
        raised = set(_EXCEPTION.findall("\n".join(chain.from_iterable(logs))))
        found = (words for lines in logs for words in _windows(lines))
        windows = [(words, math.sqrt(self._weigh(words))) for words in found if words]
        shared: dict[int, float] = defaultdict(float)
        for word in set[str]().union(*(words for words, _ in windows)) & self._users.keys():
            for at in self._users[word]:
                shared[at] += self._weights[word]
        best: dict[int, float] = {}
        for at, most in shared.items():
            number, words, size = self._patterns[at]
            # An upper bound: no window matches more than all windows together.
            if most >= size * max(best.get(number, 0.0), _LEAST / 2):
                # One rare word says little: "lazy" would be an error of Flax.
                common = (words & window for window, _ in windows)
                shared_weights = (self._weigh(each) for each in common if len(each) > 1)
                score = max(shared_weights, default=0.0) / size
                best[number] = max(best.get(number, 0.0), score)
        scores = (
            (
                score * (1 + self._like_title(number, windows)) * self._like_raised(number, raised),
                self._known[number],
            )
            for number, score in best.items()
        )
        ranked = sorted(scores, key=lambda each: (-each[0], each[1].code))
        return [each for each in ranked[:_SHOWN] if each[0] >= _LEAST]

    def _like_raised(self, number: int, raised: set[str]) -> float:
        """Return how much likelier a failure is by the exceptions that its patterns name."""
        named = self._raised[number]
        return 1.0 if not named else 1 + _SAME if named & raised else 1 - _SAME

    def _like_title(self, number: int, windows: Iterable[tuple[set[str], float]]) -> float:
        """Return the cosine similarity of a title and the most similar window."""
        title, size = self._titles[number]
        return max(self._weigh(title & words) / (length * size) for words, length in windows)


@cache
def known_words() -> Index:
    """Return the index of the catalogue."""
    return Index(claims())


def _end(lines: Sequence[str]) -> Sequence[str]:
    sizes = accumulate(len(line) for line in reversed(lines))
    count = sum(size <= _END for size in sizes)
    return lines[-max(1, count) :]


def _windows(lines: Iterable[str]) -> Iterator[set[str]]:
    before, block, size = set[str](), set[str](), 0
    for line in lines:
        line = line[:_LONG_LINE]
        block |= _words(line)
        size += len(line)
        if size >= _BLOCK:
            yield before | block
            before, block, size = block, set(), 0
    yield before | block


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}
