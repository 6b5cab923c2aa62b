"""Find known failures in the text of an error or a log, and which worker of a log failed first."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import islice

from tpuctl.diagnosis.advice import advice_in
from tpuctl.diagnosis.catalogue import KINDS, NO_CLAIM, Failure, failures, named
from tpuctl.diagnosis.evidence import (
    NEAREST,
    Doubt,
    causes_in_threads,
    confidence,
    doubt,
    known_words,
    without_notices,
)
from tpuctl.diagnosis.patterns import Pattern
from tpuctl.diagnosis.search import Hit, Reader, read_log
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.outcome import Outcome, Status

# If no pattern matches, the last lines of at most this many workers are compared.
_READ_AGAIN = 4
_RIVALS = 2
_VAGUE = ("unsure", "unknown")
_ONLY_SIMILAR = "No known message matches; this failure's message is the most similar."
_LONGEST_CODE = 60
_CODE = re.compile(r"[A-Za-z]\d{1,9}|[a-z][a-z0-9]*(?:_[a-z0-9]+)+", re.ASCII)
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class SourceMachine:
    """What is known about the machine that a text comes from: its runtime and packages."""

    runtime: str
    packages: Mapping[str, str]


@cache
def this_machine() -> SourceMachine | None:
    """Describe this machine if it has a TPU or is a hosted notebook.

    A text that is explained elsewhere probably comes from another machine.
    """
    from tpuctl.runtime.detect import detect
    from tpuctl.runtime.live import live_machine

    machine = live_machine()
    found = detect(machine)
    is_hosted = found.runtime.startswith(("colab", "kaggle"))
    has_tpu = found.accelerator in ("tpu", "tpu-remote")
    return SourceMachine(found.runtime, dict(machine.packages)) if has_tpu or is_hosted else None


@dataclass(frozen=True)
class Match:
    """A failure found in a text, with the words that matched and their named parts."""

    code: str
    title: str
    cause: str
    fix: str = field(metadata={"lines": True})
    fix_command: str | None
    confidence: str
    source: str
    family: str
    matched: str
    parts: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class WorkerFailure:
    """The first failure of one worker."""

    worker: str
    code: str
    title: str
    line: int
    time: str | None
    text: str


@dataclass(frozen=True)
class WorkerLog:
    """What happened in a log of several workers: which failed first, and what followed.

    `suspect` is a process that others report as failed, but whose own failure is not in the log.
    """

    workers: int
    first: WorkerFailure
    followed: tuple[WorkerFailure, ...]
    suspect: str | None


@dataclass(frozen=True)
class Explanation(Outcome):
    """The failures found in a text, best match first; `similar` ones to rule out if it is not sure.

    If no pattern matches, the first match is only the most similar and has no `matched` words.
    `advice` is what the message itself says to do, unless the first match is sure.
    """

    matches: tuple[Match, ...]
    characters: int
    log: WorkerLog | None = None
    similar: tuple[Match, ...] = ()
    advice: str | None = None

    @property
    def status(self) -> Status:
        """`attention` if no pattern matches, or only the exception is known."""
        unknown = {code for code, failure in failures().items() if failure.kind == "unknown"}
        known = {match.code for match in self.matches if match.matched} - unknown
        return "ok" if known else "attention"

    @property
    def exit_code(self) -> int:
        """1 if no pattern matches, or only the exception is known."""
        return 0 if self.status == "ok" else 1


def explain(text: str, *, here: Callable[[], SourceMachine | None] = lambda: None) -> Explanation:
    """Find every known failure in a text: causes first, then their wrappers and consequences.

    Raises InvalidInputError for an empty text, NotFoundError for an unknown code such as F999.
    """
    if not text.strip():
        raise InvalidInputError(
            "The text to explain is empty.",
            hint="Pass the error, or pipe a log: python train.py 2>&1 | tpuctl explain",
        )
    code = text.strip() if len(text) < _LONGEST_CODE else ""
    if known := failures().get(code.upper()) or failures().get(code.lower()):
        match = _match(known, here() if known.on or known.packages else None)
        return Explanation((match,), len(text))
    explanation = explain_logs({"": [text]}, here=here)
    if not explanation.matches and (error := no_such_code(code, failures())):
        raise error
    return explanation


def first_claim(text: str) -> Match | None:
    """Return the first failure whose message is in a text, sure or not, but no mere family.

    What is said of errors of Python itself fits any program, so it is left out, too.
    """
    matches = (m for m in explain(text).matches if m.matched and m.family != "python")
    return next((m for m in matches if failures()[m.code].kind not in _VAGUE), None)


def no_such_code(code: str, known: Collection[str]) -> NotFoundError | None:
    """Return an error with the codes nearest to an unknown one; None if it is not like a code."""
    if not _CODE.fullmatch(code):
        return None
    if code[1:].isdigit():
        numbered = (name for name in known if name[0] == code[0].upper() and name[1:].isdigit())
        near = sorted(numbered, key=lambda name: abs(int(name[1:]) - int(code[1:])))[:3]
    else:
        near = get_close_matches(code, known, 3, 0.75)
    hint = f"Nearby codes: {', '.join(near)}. To explain an error, pass its whole text."
    return NotFoundError(f"Unknown code {code}.", hint=hint) if near else None


def explain_logs(
    logs: Mapping[str, Iterable[str]], *, here: Callable[[], SourceMachine | None] = lambda: None
) -> Explanation:
    """Find every known failure in logs, which come in pieces; several logs belong to workers."""
    readers: dict[str, Reader] = {}
    size = 0

    def counted(pieces: Iterable[str]) -> Iterable[str]:
        nonlocal size
        for piece in pieces:
            size += len(piece)
            yield piece

    for name, pieces in logs.items():
        read_log(counted(pieces), readers, name if len(logs) > 1 else None)
    best, patterns = _best_hits(readers.values())
    log = _worker_log(readers, separate=len(logs) > 1)
    machine = here() if any(h.failure.on or h.failure.packages for h in best.values()) else None
    hits = sorted(best.values(), key=lambda hit: _rank(hit, log, machine))
    if any(hit.failure.kind not in NO_CLAIM for hit in hits):
        hits = [hit for hit in hits if hit.failure.kind != "unsure"]
    if any(_outranks_exception(hit) for hit in hits):
        hits = [hit for hit in hits if hit.failure.kind != "unknown"]
    matches = tuple(_match(hit.failure, machine, hit, patterns[hit.failure.code]) for hit in hits)
    nearest: tuple[Match, ...] = ()
    if all(hit.failure.kind in _VAGUE for hit in hits):
        nearest, similar = _similar(readers.values())
    else:
        why = _doubt(hits[0], patterns[hits[0].failure.code])
        if not (why and why.title):
            return Explanation(matches, size, log)
        similar = _rivals(hits, patterns, readers.values())
    advice = (advice_in(lines) for lines in _last_lines(readers.values()))
    said = next(filter(None, advice), None)
    return Explanation(nearest + matches, size, log, similar, said)


def _best_hits(readers: Iterable[Reader]) -> tuple[dict[str, Hit], dict[str, set[Pattern]]]:
    """Return the strongest hit of each failure, and all its patterns that matched."""
    best: dict[str, Hit] = {}
    patterns: dict[str, set[Pattern]] = defaultdict(set)
    for reader in readers:
        reader.settle()
        for code, found in reader.patterns.items():
            patterns[code] |= found
        for hit in reader.best.values():
            known = best.get(hit.failure.code)
            if not known or hit.pattern.weight > known.pattern.weight:
                best[hit.failure.code] = hit
    return best, patterns


def _doubt(hit: Hit, patterns: Collection[Pattern]) -> Doubt | None:
    return doubt(hit.failure, patterns, aside=hit.aside, most=hit.most)


def _rivals(
    hits: Sequence[Hit], patterns: Mapping[str, Collection[Pattern]], readers: Iterable[Reader]
) -> tuple[Match, ...]:
    """Return other causes of a message: of threads that had it, and with the most similar words."""
    code = hits[0].failure.code
    _, causes = causes_in_threads(code, patterns[code])
    known = [failures()[code] for code, _ in causes.most_common() if code in failures()]
    known += [failure for _, failure in _ranked(readers)]
    found = {hit.failure.code for hit in hits}
    others = {each.code: each for each in known if each.code not in found}
    return tuple(map(_unmatched, islice(others.values(), _RIVALS)))


def _ranked(readers: Iterable[Reader]) -> list[tuple[float, Failure]]:
    return known_words().rank(_last_lines(readers))


def _last_lines(readers: Iterable[Reader]) -> Iterator[Sequence[str]]:
    return (without_notices(reader.lines) for reader in islice(readers, _READ_AGAIN))


def _unmatched(failure: Failure) -> Match:
    return replace(_match(failure, None), confidence="low", matched="")


def _similar(readers: Iterable[Reader]) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
    """Return the most similar failure if it is similar enough, and the others."""
    found = _ranked(readers)
    matches = [_unmatched(failure) for _, failure in found]
    if not found or found[0][0] < NEAREST:
        return (), tuple(matches)
    first, *others = matches
    cause = f"{_ONLY_SIMILAR} {first.cause}"
    nearest = replace(
        first, title=f"Not sure, most similar known failure: {first.title}", cause=cause
    )
    return (nearest,), tuple(others)


def _outranks_exception(hit: Hit) -> bool:
    """Whether a match says more than the name of the last exception."""
    is_family_in_a_notice = hit.failure.kind == "unsure" and hit.aside
    return hit.failure.kind not in ("unknown", "warning") and not is_family_in_a_notice


def _rank(hit: Hit, log: WorkerLog | None, machine: SourceMachine | None) -> tuple[object, ...]:
    is_first = log is not None and log.first.code == hit.failure.code
    kind = hit.failure.kind
    is_notice = kind == "warning" or (kind == "unsure" and hit.in_notice)
    # Programs print notes when they start; the last one is the nearest to what is asked.
    is_note = is_notice and (kind == "unsure" or hit.failure.severity == "note")
    return (
        not is_first,
        hit.aside,
        KINDS.index("warning" if is_notice else kind),
        not (machine and _at(hit.failure, machine)),
        is_note,
        -hit.line if is_note else -hit.pattern.weight,
        KINDS.index(kind),
        hit.line,
        hit.failure.code,
    )


def _at(failure: Failure, machine: SourceMachine) -> Mapping[str, str]:
    """Return the failure as it applies to this runtime."""
    names = (name for name in failure.on if machine.runtime.startswith(name))
    return failure.on[name] if (name := next(names, None)) else {}


def _match(
    failure: Failure,
    machine: SourceMachine | None,
    hit: Hit | None = None,
    patterns: Collection[Pattern] = (),
) -> Match:
    parts = hit.found.parts if hit else {}
    why = _doubt(hit, patterns) if hit else None
    said = [why.reason, failure.cause] if why else [failure.cause]
    said += [d.format_map(parts) for d in failure.details if parts.keys() >= named(d)]
    here = _at(failure, machine) if machine else {}
    installed = machine.packages if machine else {}
    versions = [f"{name} {installed[name]}" for name in failure.packages if name in installed]
    if versions:
        said.append(f"Installed here: {', '.join(versions)}.")
    return Match(
        code=failure.code,
        title=f"{why.title}: {failure.title}" if why and why.title else failure.title,
        cause=" ".join(said),
        fix=here.get("fix", failure.fix),
        fix_command=_filled(here.get("fix_command", failure.fix_command), parts),
        confidence=confidence(failure, patterns, why) if hit else failure.confidence,
        source=failure.source,
        family=failure.family,
        matched=hit.pattern.words if hit else failure.code,
        parts=parts,
        line=hit.line if hit else 0,
    )


def _filled(command: str | None, parts: Mapping[str, str]) -> str | None:
    """Replace words in capitals in a command by words found in the text."""
    for name, value in parts.items():
        if command and name.isupper() and _NAME.fullmatch(value):
            command = command.replace(name, value)
    return command


def _worker_log(readers: Mapping[str, Reader], *, separate: bool) -> WorkerLog | None:
    """Say which worker failed first, by time stamps or else by the order of lines in one log."""
    named = {name: reader for name, reader in readers.items() if name}
    if len(named) < 2:
        return None
    roots = {name: _root(reader) for name, reader in named.items()}
    failed = {name: hit for name, hit in roots.items() if hit}
    if not failed:
        return None
    timed = all(hit.time for hit in failed.values())

    def order(item: tuple[str, Hit]) -> tuple[object, ...]:
        hit = item[1]
        follows = hit.failure.kind not in ("cause", "general")
        when = hit.time if timed else ()
        return (follows, when, 0 if separate else hit.line, item[0])

    first, *others = sorted(failed.items(), key=order)
    suspect = None
    if first[1].failure.kind == "consequence":
        suspect = first[1].found.parts.get("task")
        suspect = suspect and suspect.rpartition("task:")[2]
    return WorkerLog(
        len(named),
        _worker_failure(*first),
        tuple(_worker_failure(*other) for other in others),
        suspect,
    )


def _root(reader: Reader) -> Hit | None:
    """Return the best explanation of a worker's failure: its first cause, or what it followed."""
    kinds = ("cause", "general", "consequence", "wrapper")
    hits = [hit for hit in reader.first.values() if hit.failure.kind in kinds]
    return min(hits, key=lambda hit: (kinds.index(hit.failure.kind), hit.line), default=None)


def _worker_failure(name: str, hit: Hit) -> WorkerFailure:
    time = " ".join(hit.time) if hit.time else None
    return WorkerFailure(name, hit.failure.code, hit.failure.title, hit.line, time, hit.text)
