"""The failures that use words most like those of a text that no pattern matches."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from tpuctl.diagnosis.catalogue import Failure

# Fitted to the seen texts of tests/explain_texts, each without what its own thread had taught:
# below this score few were right, and long descriptions are preferred with a power of 1.
_LEAST, _SHOWN, _POWER = 0.45, 3, 0.7
_WORDS = 3
_TITLE, _CAUSE = 0.5, 0.25
_LONG_LINE = 1000
_WORD = re.compile(r"[a-z][a-z0-9]{2,}")
_WITHIN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])|_")


def similar(lines: Iterable[str], known: Iterable[Failure]) -> list[Failure]:
    """Return up to three failures, likeliest first, by the cosine of their words."""
    said = {failure.code: (failure, _said(failure)) for failure in known}
    counts = Counter(word for _, words in said.values() for word in words)
    # A word that no failure has is about as rare as the rarest.
    rarity = {word: math.log((len(said) + 1) / (1 + count)) for word, count in counts.items()}
    rarest = max(rarity.values(), default=0.0)
    text = {word for line in lines for word in _words(line[:_LONG_LINE])}

    def size(words: Mapping[str, float]) -> float:
        return math.hypot(*(weight * rarity.get(word, rarest) for word, weight in words.items()))

    length = size(dict.fromkeys(text, 1.0))
    scores = Counter[str]()
    for code, (_, words) in said.items():
        common = words.keys() & text
        shared = sum(words[word] * rarity[word] ** 2 for word in common)
        if len(common) >= _WORDS:
            scores[code] = shared / (length * size(words) ** _POWER)
    best = (code for code, score in scores.most_common(_SHOWN) if score >= _LEAST)
    return [said[code][0] for code in best]


def _said(failure: Failure) -> dict[str, float]:
    found = dict.fromkeys(_words(failure.cause), _CAUSE)
    found |= dict.fromkeys(_words(failure.title), _TITLE)
    return found | dict.fromkeys(_words(" ".join(failure.patterns)), 1.0)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_WITHIN_NAME.sub(" ", text).lower()))
