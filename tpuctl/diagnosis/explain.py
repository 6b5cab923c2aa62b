"""The catalogue of known failures, and finding them in the text of an error or a log."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpuctl.errors import InvalidInputError
from tpuctl.outcome import Outcome, Status

_FILE = Path(__file__).parent / "data" / "failures.json"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Quotes differ between versions and shells, so they never take part in a match.
_QUOTES = str.maketrans(dict.fromkeys("'\"’‘“”`*"))
_ENDS_A_NAME = re.compile(r"\w'$")
_NAME_ENDS = re.compile(r"(?!\w|[.-]\w)")
# How far apart the pieces of a pattern may be: a wrapped message, not two unrelated ones.
_GAP = 400
# The overlap is longer than any pattern with its gaps, so that no match is cut in two.
_PIECE, _OVERLAP = 1 << 22, 1 << 13
_LONGEST_CODE = 40


@dataclass(frozen=True)
class Failure:
    """A known failure; the texts of an `umbrella` only wrap the message with the cause."""

    code: str
    title: str
    texts: tuple[str, ...]
    cause: str
    fix: str
    fix_command: str | None
    severity: str
    source: str
    confidence: str
    umbrella: bool = False


@cache
def failures() -> dict[str, Failure]:
    """Load every failure by its code, in the catalogue's order."""
    entries = json.loads(_FILE.read_text(encoding="utf-8"))["failures"]
    return {
        entry["code"]: Failure(**{**entry, "texts": tuple(entry["texts"])}) for entry in entries
    }


@dataclass(frozen=True)
class Match:
    """A failure that was found in a text, with the words that matched."""

    code: str
    title: str
    cause: str
    fix: str
    fix_command: str | None
    confidence: str
    source: str
    matched: str
    position: int


@dataclass(frozen=True)
class Explanation(Outcome):
    """The failures found in a text, best match first."""

    matches: tuple[Match, ...]
    characters: int

    @property
    def status(self) -> Status:
        """`attention` if nothing matches."""
        return "ok" if self.matches else "attention"

    @property
    def exit_code(self) -> int:
        """1 if nothing matches."""
        return 0 if self.matches else 1


def explain(text: str) -> Explanation:
    """Find every known failure in a text: the longest match first, umbrellas last.

    Raises InvalidInputError for an empty text.
    """
    if not text.strip():
        raise InvalidInputError(
            "The text to explain is empty.",
            hint="Pass the error, or pipe a log: python train.py 2>&1 | tpuctl explain",
        )
    code = text.strip() if len(text) < _LONGEST_CODE else ""
    if known := failures().get(code.upper()) or failures().get(code.lower()):
        return Explanation((_match(known, known.code, 0),), len(text))
    best: dict[str, tuple[int, int, str]] = {}
    # In pieces that overlap, so that a log of any length needs the memory of one piece.
    for start in range(0, len(text), _PIECE):
        for code, hit in _hits(text[start : start + _PIECE + _OVERLAP]):
            if code not in best or hit[0] > best[code][0]:
                best[code] = (hit[0], start + hit[1], hit[2])
    ranked = sorted(
        ((failures()[code], hit) for code, hit in best.items()),
        key=lambda pair: (pair[0].umbrella, -pair[1][0], pair[1][1]),
    )
    return Explanation(
        tuple(_match(failure, words, at) for failure, (_, at, words) in ranked), len(text)
    )


def _hits(text: str) -> Iterator[tuple[str, tuple[int, int, str]]]:
    clean = _plain(text)
    for failure in failures().values():
        for words in failure.texts:
            if hit := _search(clean, words):
                yield failure.code, hit


def _match(failure: Failure, words: str, position: int) -> Match:
    return Match(
        code=failure.code,
        title=failure.title,
        cause=failure.cause,
        fix=failure.fix,
        fix_command=failure.fix_command,
        confidence=failure.confidence,
        source=failure.source,
        matched=words,
        position=position,
    )


def _plain(text: str) -> str:
    """Normalize to one lower-case line: logs are wrapped, coloured and quoted in many ways."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return " ".join(text.translate(_QUOTES).lower().split())


@cache
def _pieces(words: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in _plain(words).split("…"))


def _search(text: str, words: str) -> tuple[int, int, str] | None:
    """Find the pieces of a pattern in order and close together: weight, position, words."""
    pieces = _pieces(words)
    weight = sum(map(len, pieces))
    rarest = max(pieces, key=len)
    if rarest not in text:
        return None
    start = text.find(pieces[0])
    while start >= 0:
        end = _follow(text, start + len(pieces[0]), pieces[1:])
        # A longer name must not match a pattern that ends in a quoted name.
        if end and (not _ENDS_A_NAME.search(words) or _NAME_ENDS.match(text, end)):
            return weight, start, words
        start = text.find(pieces[0], start + 1)
    return None


def _follow(text: str, end: int, pieces: tuple[str, ...]) -> int | None:
    """Return where the last piece ends; None if one is missing."""
    for piece in pieces:
        at = text.find(piece, end, end + _GAP + len(piece))
        if at < 0:
            return None
        end = at + len(piece)
    return end
