"""Patterns of the catalogue: literal words, `…` for a short gap, `{name}` for a named part.

`{name}` is one word, `{name+}` up to a dozen. A pattern is matched from left to right without
backtracking, so that the time is linear in the length of the text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

# Quotes differ between versions and shells, so they are ignored.
_QUOTE_MARKS = "'\"’‘“”`*"
# Copies from web pages may have invisible characters.
_QUOTES = str.maketrans(dict.fromkeys(f"{_QUOTE_MARKS}\u200b\ufeff\u00ad"))
_GAP = re.compile(r"…|\{(\w+\+?)\}")
_TOKEN = re.compile(r"\w{3,}")
_NAME_GOES_ON = re.compile(r"\w|[.-]\w")
_FIRST_WORD, _LAST_WORD = re.compile(r"\S{1,120}"), re.compile(r"\S{1,120}$")
_AROUND_A_WORD = ".,;:!?()[]<>"
# The largest gap between pieces of a pattern: a wrapped message, not two unrelated ones.
_FAR, _WORD = 400, 120
# Widths of terminals: the common ones, and the limits of others.
_TERMINALS, _NARROWEST, _WIDEST = (80, 100, 120), 40, 250
# All that a shell prints of a process that SIGKILL ended: no message to match by its words.
_KILLED = {"Killed", "Killed: 9"}


class Found(NamedTuple):
    """Where a pattern matched in a text's plain form, and its named parts."""

    start: int
    end: int
    parts: dict[str, str]


class Plain:
    """Lines joined by single spaces, without quotes, since logs differ in wrapping and quotes."""

    def __init__(self, lines: Sequence[str], width: int = 0) -> None:
        rows = (" ".join(line.translate(_QUOTES).split()) for line in lines)
        kept = [
            (index, ("Killed (9)" if row in _KILLED else row) + _end_of(lines, index, width))
            for index, row in enumerate(rows)
            if row
        ]
        self.text = "".join(row for _, row in kept).rstrip()
        lower = self.text.lower()
        # Lower-casing lengthens a few letters; positions must stay the same in both.
        self.lower = lower if len(lower) == len(self.text) else self.text.translate(_ASCII_LOWER)
        self._lines = [index for index, _ in kept]
        self._starts = list(accumulate((len(row) for _, row in kept), initial=0))

    def line_at(self, position: int) -> int:
        """Return the index of the line at a position."""
        return self._lines[bisect_right(self._starts, position) - 1]


def wrapped_at(lines: Sequence[str]) -> int:
    """Return the width at which a terminal seems to have broken the lines, or 0."""
    width = max(map(len, lines), default=0)
    broken = [at for at in range(len(lines)) if _end_of(lines, at, width) == ""]
    is_likely = len(broken) > 1 or width in _TERMINALS
    return width if broken and is_likely and _NARROWEST <= width <= _WIDEST else 0


def _end_of(lines: Sequence[str], at: int, width: int) -> str:
    """Return what separates a line from the next one: nothing if both are parts of a word."""
    line, following = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
    is_broken = len(line) == width and following and not (line[-1:] + following[:1]).count(" ")
    return "" if is_broken else " "


_ASCII_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def tokens(text: str) -> set[str]:
    """Return the lower-case words of a text, used to exclude patterns before a search."""
    found = set(_TOKEN.findall(text.lower()))
    # In Markdown, _words_ stand between underscores.
    return found | {word.strip("_") for word in found}


@dataclass(frozen=True)
class Pattern:
    """One message of a failure."""

    words: str

    @cached_property
    def _split(self) -> list[str | None]:
        return _GAP.split(self.words)

    @cached_property
    def _pieces(self) -> tuple[str, ...]:
        literals = (part or "" for part in self._split[::2])
        return tuple(_plain(piece) for piece in literals)

    @cached_property
    def _gaps(self) -> tuple[str | None, ...]:
        return tuple(self._split[1::2])

    @property
    def literal(self) -> str:
        """The literal words, without the gaps."""
        return " ".join(part or "" for part in self._split[::2])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(gap.rstrip("+") for gap in self._gaps if gap)

    @cached_property
    def weight(self) -> int:
        """The weight of a match: the number of literal characters."""
        return sum(map(len, self._pieces))

    @cached_property
    def needs(self) -> frozenset[str]:
        """Words that every matching text contains unchanged."""
        found: set[str] = set()
        literals = [part or "" for part in self._split[::2]]
        for index, literal in enumerate(literals):
            follows_part = index > 0 and self._gaps[index - 1] is not None
            goes_on = index < len(self._gaps)
            for token in _TOKEN.finditer(literal.lower()):
                before, after = literal[: token.start()], literal[token.end() :]
                left, right = before.rstrip(_QUOTE_MARKS), after.lstrip(_QUOTE_MARKS)
                is_tail = _is_cut(left[-1:], left != before, follows_part)
                # A word before `…` may be the beginning of a longer one; a word after it is whole.
                if not is_tail and not _is_cut(right[:1], right != after, goes_on):
                    found.add(token[0])
        return frozenset(found)

    @cached_property
    def anchor(self) -> str:
        """The needed word that is likely to be the rarest; empty if there is none."""
        return max(self.needs, key=lambda word: (len(word), word), default="")

    def find(self, plain: Plain, start: int = 0, end: int | None = None) -> Iterator[Found]:
        """Yield the matches that begin between two positions."""
        head = self._pieces[0] or self._pieces[1]
        at = plain.lower.find(head, start, end)
        while at >= 0:
            if found := self._match(plain, at):
                yield found
            at = plain.lower.find(head, at + 1, end)

    def _match(self, plain: Plain, at: int) -> Found | None:
        text, parts, index, begin = plain.lower, {}, 1, at
        end = at + len(self._pieces[0])
        if not self._pieces[0]:  # a named part comes first
            word = _LAST_WORD.search(plain.text, max(0, at - _WORD), at)
            if not word:
                return None
            parts[self.names[0]], begin = word[0], word.start()
            index, end = 2, at + len(self._pieces[1])
        elif self._pieces[0][0].isalnum() and at and text[at - 1].isalnum():
            return None
        for gap, piece in zip(self._gaps[index - 1 :], self._pieces[index:], strict=True):
            here = self._reach(plain, end, gap, piece)
            if not here:
                return None
            if gap:
                parts[gap.rstrip("+")] = here[0].strip(_AROUND_A_WORD)
            end = here[1]
        if self._goes_on(text, end):
            return None
        return Found(begin, end, parts)

    def _reach(self, plain: Plain, end: int, gap: str | None, piece: str) -> tuple[str, int] | None:
        """Return the content of a gap, and where the piece after it ends."""
        if not piece and gap:
            word = _FIRST_WORD.match(plain.text, end + (plain.text[end : end + 1] == " "))
            return (word[0], word.end()) if word else None
        at = plain.lower.find(piece, end, end + (_WORD if gap else _FAR) + len(piece))
        if at < 0:
            return None
        filling = plain.text[end:at].strip()
        if gap and (not filling or (not gap.endswith("+") and " " in filling)):
            return None
        return filling, at + len(piece)

    def _goes_on(self, text: str, end: int) -> bool:
        """Whether the pattern's last word is only the beginning of a longer word."""
        last = self.words[-1]
        if last == "'":
            return bool(_NAME_GOES_ON.match(text, end))
        return (last.isalnum() or last == "_") and text[end : end + 1].isalnum()


def _is_cut(beside: str, is_quoted: bool, may_go_on: bool) -> bool:
    """Whether a text may have a longer word here: at a gap, or beyond a quote within a word."""
    return is_quoted and beside.isalnum() if beside else may_go_on


def _plain(words: str) -> str:
    """Normalize a literal like a text, but keep the spaces at its ends, which separate words."""
    plain = " ".join(words.translate(_QUOTES).lower().split())
    if not plain:
        return ""
    return " " * words[:1].isspace() + plain + " " * words[-1:].isspace()
