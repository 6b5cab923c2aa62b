"""Find the failures whose messages are most similar to a text that no pattern matches."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate

from tpuctl.diagnosis.catalogue import Failure, claims
from tpuctl.diagnosis.patterns import Pattern

# Fitted to the seen texts of tests/explain_texts, each without what its own thread had taught: from
# the first score on, nearly half of the most similar failures are right, from the second on two in
# five lists have the right one.
NEAREST, _LEAST, _SHOWN = 1.0, 0.86, 3
# A power of 1 favours long patterns, of which a smaller part needs to match; 2 short ones.
_POWER = 1.25
# A message fits into two neighbouring blocks of lines.
_BLOCK = 200
# Only the end of a log: a long text always resembles one of thousands of patterns.
_END, _LONG_LINE = 2000, 1000
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
        found = (words for lines in logs for words in _windows(_end(lines)))
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
            (score * (1 + self._like_title(number, windows)), self._known[number])
            for number, score in best.items()
        )
        ranked = sorted(scores, key=lambda each: (-each[0], each[1].code))
        return [each for each in ranked[:_SHOWN] if each[0] >= _LEAST]

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
