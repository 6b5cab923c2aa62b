"""The catalogue of known failures: one data file per family, and an index by rare words."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from tpuctl.diagnosis.patterns import Pattern

_FOLDER = Path(__file__).parent / "data" / "failures"
KINDS = ("cause", "general", "consequence", "wrapper", "unsure", "unknown", "warning")
"""From the most to the least informative.

A `general` cause is right, but another cause in the same text is more specific. A `consequence`
follows the failure of another process. A `wrapper` only surrounds the message with the cause.
`unsure` names a family if nothing better matches. A `warning` is usually harmless. `unknown` names
only the exception if nothing else matches.
"""

NO_CLAIM = ("unsure", "unknown", "warning")


@dataclass(frozen=True)
class Failure:
    """A known failure; `README.md` beside the data files says what each field means."""

    code: str
    title: str
    patterns: tuple[str, ...]
    cause: str
    fix: str
    fix_command: str | None
    severity: str
    confidence: str
    sources: Mapping[str, str]
    family: str
    kind: str = "cause"
    not_if: tuple[str, ...] = ()
    only_if: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where this failure is described."""
        return "; ".join(self.sources)


@cache
def families() -> dict[str, str]:
    """Return a description of each family of failures, by name."""
    return {name: document["about"] for name, document in _documents().items()}


@cache
def failures() -> dict[str, Failure]:
    """Load every failure by its code, family by family."""
    return {
        entry["code"]: _failure(entry, name)
        for name, document in _documents().items()
        for entry in document["failures"]
    }


def claims() -> list[Failure]:
    """Return the failures that name a cause."""
    return [failure for failure in failures().values() if failure.kind not in NO_CLAIM]


@cache
def patterns_by_anchor() -> dict[str, list[tuple[Failure, Pattern]]]:
    """Index every pattern by the rarest word that it needs."""
    index: dict[str, list[tuple[Failure, Pattern]]] = defaultdict(list)
    for failure in failures().values():
        for words in failure.patterns:
            pattern = Pattern(words)
            index[pattern.anchor].append((failure, pattern))
    return dict(index)


def candidates(words: set[str]) -> Iterator[tuple[Failure, Pattern]]:
    """Yield the patterns that a text with these words may match."""
    index = patterns_by_anchor()
    for anchor in sorted(words & index.keys()):
        for failure, pattern in index[anchor]:
            if pattern.needs <= words:
                yield failure, pattern


@cache
def exclusive_words() -> frozenset[str]:
    """Return the words that are needed by the patterns of only one failure."""
    users: dict[str, set[str]] = defaultdict(set)
    for failure, pattern in chain.from_iterable(patterns_by_anchor().values()):
        for word in pattern.needs:
            users[word].add(failure.code)
    return frozenset(word for word, codes in users.items() if len(codes) == 1)


def threads_with(code: str, words: str) -> Mapping[str, int]:
    """Count the public threads with a pattern of a failure by their cause, if there are several."""
    causes: dict[str, int] = _threads()["patterns"].get(code, {}).get(words, {})
    return causes


@cache
def seen_patterns(code: str) -> frozenset[str]:
    """Return the patterns of a failure that a public thread with this cause has."""
    patterns = failures()[code].patterns
    return frozenset(patterns[at] for at in _threads()["seen"].get(code, ()) if at < len(patterns))


@cache
def condition(words: str) -> Pattern:
    """Return the pattern of a `not_if` or `only_if`."""
    return Pattern(words)


@cache
def named(detail: str) -> frozenset[str]:
    """Return the parts that a sentence of `details` names."""
    return frozenset(Pattern(detail).names)


@cache
def _threads() -> Any:
    return json.loads((_FOLDER.parent / "threads.json").read_text(encoding="utf-8"))


@cache
def _documents() -> dict[str, Any]:
    files = sorted(_FOLDER.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def _failure(entry: dict[str, Any], family: str) -> Failure:
    lists = ("patterns", "not_if", "only_if", "details", "packages")
    tuples = {key: tuple(entry[key]) for key in lists if key in entry}
    return Failure(**{**entry, **tuples, "family": family})
