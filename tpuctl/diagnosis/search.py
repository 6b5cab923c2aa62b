"""Search logs, which come in pieces, for the patterns of the catalogue, worker by worker."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from tpuctl.diagnosis.catalogue import NO_CLAIM, Failure, candidates, condition
from tpuctl.diagnosis.evidence import covers_message, is_outside_message, is_raised, library_before
from tpuctl.diagnosis.log_text import label_form, split_lines, time_in, unfold, worker_of
from tpuctl.diagnosis.patterns import Found, Pattern, Plain, tokens, wrapped_at

# Lines are searched in windows, which overlap by more than any match.
_WINDOW, _KEPT = 1 << 20, 1 << 13
# The size of all windows together: for a log of a thousand workers, each is smaller.
_ALL_WINDOWS = 8 << 20
_SNIFFED_LINES = 400
# How far from a match its conditions may be, and how many matches are tried.
_NEAR, _TRIES = 3000, 50
_LONGEST_QUOTE = 300
_TIME_IS_AT_MOST = 200


@dataclass
class Hit:
    """A match of a pattern: where it is, and how strong it is."""

    failure: Failure
    pattern: Pattern
    found: Found
    line: int
    time: tuple[str, str] | None
    text: str
    last_line: int
    in_notice: bool
    most: bool
    aside: bool = False


@dataclass
class Reader:
    """Searches the lines of one worker as they arrive, and keeps hits but not lines."""

    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0
    best: dict[str, Hit] = field(default_factory=dict)
    first: dict[str, Hit] = field(default_factory=dict)
    patterns: dict[str, set[Pattern]] = field(default_factory=lambda: defaultdict(set))
    raised_at: int = 0

    def add(self, number: int, line: str) -> None:
        """Add a line, or more of the line with the same number."""
        if self.numbers and self.numbers[-1] == number:
            self.lines[-1] += line
        else:
            self.lines.append(line)
            self.numbers.append(number)
        self.size += len(line) + 1

    def search(self) -> None:
        """Search the window, and keep its end, in which a match may begin."""
        numbered = zip(self.numbers, self.lines, strict=True)
        rows = [(number, row) for number, line in numbered for row in unfold(line)]
        self.numbers, self.lines = [number for number, _ in rows], [row for _, row in rows]
        words, texts = tokens("\n".join(self.lines)), [Plain(self.lines)]
        if width := wrapped_at(self.lines):
            texts.append(Plain(self.lines, width))
            words |= tokens(texts[-1].text)
        raised = (n for n, line in zip(self.numbers, self.lines, strict=True) if is_raised(line))
        self.raised_at = max(raised, default=self.raised_at)
        found_words = list(candidates(words))
        harmless = [each for each in found_words if each[0].kind == "warning"]
        for failure, pattern in found_words:
            for plain in texts:
                if found := _find(plain, failure, pattern, harmless):
                    self._remember(plain, failure, pattern, found)
                    break
        keep, size = len(self.lines), 0
        while keep and size < _KEPT:
            keep -= 1
            size += len(self.lines[keep]) + 1
        self.lines = [line[-_KEPT:] for line in self.lines[keep:]]
        self.numbers = self.numbers[keep:]
        self.size = 0

    def _remember(self, plain: Plain, failure: Failure, pattern: Pattern, found: Found) -> None:
        at = plain.line_at(found.start)
        before = range(at, max(-1, at - _TIME_IS_AT_MOST), -1)
        time = next((t for index in before if (t := time_in(self.lines[index]))), None)
        line = plain.text[found.start : found.start + _LONGEST_QUOTE]
        end = plain.line_at(found.end - 1)
        in_notice = is_outside_message(self.lines, end)
        most = at == end and covers_message(self.lines[at], pattern.weight)
        if failure.kind == "unknown":
            found.parts["exception"] = pattern.words.rstrip(":")
        if failure.kind in ("unknown", "unsure") and (lib := library_before(self.lines, at)):
            found.parts["component"] = lib
        number, last = self.numbers[at], self.numbers[end]
        hit = Hit(failure, pattern, found, number, time, line, last, in_notice, most)
        self.patterns[failure.code].add(pattern)
        best = self.best.get(failure.code)
        if not best or pattern.weight > best.pattern.weight:
            self.best[failure.code] = hit
        first = self.first.get(failure.code)
        if not first or hit.line < first.line:
            self.first[failure.code] = hit

    def settle(self) -> None:
        """Rank hits outside the last exception after it, unless that only wraps them."""
        claims = [hit for hit in self.best.values() if hit.failure.kind not in NO_CLAIM]
        last = {hit.failure.kind for hit in claims if hit.last_line >= self.raised_at}
        only_wraps = bool(last) and not last & {"cause", "general"}
        for hit in self.best.values():
            is_wrapped = only_wraps and hit.failure.kind not in NO_CLAIM
            hit.aside = hit.in_notice and hit.last_line < self.raised_at and not is_wrapped


def read_log(pieces: Iterable[str], readers: dict[str, Reader], name: str | None) -> None:
    """Search a log, by worker if its lines are labelled; `name` is the name of a single worker."""
    lines = split_lines(pieces)
    sniffed = list(islice(lines, _SNIFFED_LINES))
    form = label_form([line for _, line in sniffed]) if name is None else None
    size, last = 0, 0
    for number, line in chain(sniffed, lines):
        # A line that continues in the next piece already has its worker.
        if number != last:
            label, line = worker_of(line, form) if form else worker_of(line)
            worker = (label or "") if form else (name or "")
            last = number
        reader = readers.get(worker) or readers.setdefault(worker, Reader())
        reader.add(number, line)
        size += len(line) + 1
        if reader.size >= _WINDOW or size >= _ALL_WINDOWS:
            for each in [reader] if reader.size >= _WINDOW else readers.values():
                size -= each.size
                each.search()
    for reader in readers.values():
        if reader.size:
            reader.search()


def _find(
    plain: Plain, failure: Failure, pattern: Pattern, harmless: Sequence[tuple[Failure, Pattern]]
) -> Found | None:
    """Return the first match that is no part of a harmless line and fulfils the conditions."""
    for found in islice(pattern.find(plain), _TRIES):
        is_free = failure.kind == "warning" or not _is_harmless(plain, failure, found, harmless)
        if is_free and _holds(plain, failure, found):
            return found
    return None


def _is_harmless(
    plain: Plain, failure: Failure, found: Found, harmless: Iterable[tuple[Failure, Pattern]]
) -> bool:
    """Whether a match is only part of harmless words, or names only a family beside them."""
    low = max(0, found.start - _LONGEST_QUOTE)
    may_follow = failure.kind in NO_CLAIM
    return any(
        (
            around.end >= found.end
            or (may_follow and plain.line_at(around.start) == plain.line_at(found.end - 1))
        )
        and _holds(plain, warning, around)
        for warning, pattern in harmless
        if "…" not in pattern.words
        for around in pattern.find(plain, low, found.start + _LONGEST_QUOTE)
        if around.start <= found.start
    )


def _holds(plain: Plain, failure: Failure, found: Found) -> bool:
    """Whether the text around a match fulfils the conditions of the failure."""
    low, high = max(0, found.start - _NEAR), found.end + _NEAR

    def near(words: str) -> bool:
        return next(condition(words).find(plain, low, high), None) is not None

    if failure.only_if and not any(map(near, failure.only_if)):
        return False
    return not any(map(near, failure.not_if))
