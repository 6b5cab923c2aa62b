"""Check documents against the rules: select, suppress, place, sort."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.errors import UsageError
from tpuctl.linting.checks import (
    gone,
    gone_hosted,
    gone_keras,
    moving,
    will_crawl_input,
    will_crawl_steps,
    will_fail_jax_torch,
    will_fail_notebook,
    will_fail_tensorflow,
)
from tpuctl.linting.documents import TOP, Document
from tpuctl.linting.models import SEVERITIES, Finding, Hit, Rule, rules
from tpuctl.linting.port import port
from tpuctl.linting.program import Program
from tpuctl.linting.targets import Target, own_target

CHECKS = (
    *gone.CHECKS,
    *gone_hosted.CHECKS,
    *gone_keras.CHECKS,
    *moving.CHECKS,
    *will_fail_tensorflow.CHECKS,
    *will_fail_jax_torch.CHECKS,
    *will_fail_notebook.CHECKS,
    *will_crawl_input.CHECKS,
    *will_crawl_steps.CHECKS,
)
_IGNORED = re.compile(r"#\s*tpuctl:\s*ignore(?:\[([\w\s,]*)\])?", re.IGNORECASE)
_CODE = re.compile(r"\{(keras|jax|torch|tensorflow)\}")


@dataclass(frozen=True)
class Selection:
    """Which rules are wanted."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def wants(self, code: str) -> bool:
        """Whether a rule is wanted; a longer beginning of its code wins."""
        chosen = max((len(c) for c in self.select if code.startswith(c)), default=-1)
        dropped = max((len(c) for c in self.ignore if code.startswith(c)), default=-1)
        return chosen > dropped if self.select else dropped < 0


def selection(select: Iterable[str], ignore: Iterable[str]) -> Selection:
    """Read codes, or beginnings of them such as T1, separated by commas.

    Raises UsageError for one that no rule has.
    """
    made = Selection(tuple(_codes("--select", select)), tuple(_codes("--ignore", ignore)))
    return made


def _codes(option: str, given: Iterable[str]) -> Iterator[str]:
    for word in given:
        for code in filter(None, (part.strip().upper() for part in word.split(","))):
            if not any(known.startswith(code) for known in rules()):
                raise UsageError(
                    f"{option}: no rule has the code {code}.",
                    hint="tpuctl explain T1 lists the rules of a family.",
                )
            yield code


@dataclass(frozen=True)
class Placed:
    """A hit with its finding."""

    hit: Hit
    finding: Finding


def check(document: Document, target: Target, wanted: Selection) -> list[Placed]:
    """Return what the rules find in a document, in the order of its lines."""
    target = own_target(document.metadata, target)
    hits = list(_hits(document, target))
    ignored = _ignored_lines(document)
    placed: dict[tuple[int, str], Placed] = {}
    for hit in sorted(hits, key=lambda hit: (*_position(hit), hit.code)):
        line, column = _position(hit)
        if not wanted.wants(hit.code) or _is_ignored(hit, ignored):
            continue
        # What is not sure is not changed.
        if (hit.severity or rules()[hit.code].severity) == "maybe":
            hit = replace(hit, edits=())
        # A nested call can break one rule several times in a line: one finding, all edits.
        if known := placed.get((line, hit.code)):
            merged = Hit(**{**vars(known.hit), "edits": (*known.hit.edits, *hit.edits)})
            placed[line, hit.code] = Placed(merged, known.finding)
        else:
            placed[line, hit.code] = Placed(hit, _finding(document, hit, target, line, column))
    return list(placed.values())


def _hits(document: Document, target: Target) -> Iterator[Hit]:
    if document.problem is not None:
        yield document.problem
    if document.tree.body or document.is_notebook:
        try:
            program = Program(document, target)
            hits = port(program, [hit for each in CHECKS for hit in each(program)])
        except RecursionError:
            hits = [Hit("T002", TOP, "The code is nested too deeply to be checked.")]
        yield from hits


def _position(hit: Hit) -> tuple[int, int]:
    if isinstance(hit.node, tuple):
        return hit.node
    return getattr(hit.node, "lineno", 1), getattr(hit.node, "col_offset", 0)


def _finding(document: Document, hit: Hit, target: Target, line: int, column: int) -> Finding:
    rule = rules()[hit.code]
    cell, line = document.place(line)
    return Finding(
        path=shown(document.path),
        cell=cell,
        line=line,
        column=column + 1,
        code=hit.code,
        severity=hit.severity or rule.severity,
        message=hit.message,
        why=rule.why,
        fix=hit.fix or fix_text(rule, target),
        fixable=bool(hit.edits),
    )


def shown(path: Path) -> str:
    """Write a path as text; bytes of its name that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def fix_text(rule: Rule, target: Target) -> str:
    """Write what to do instead, with the code for the runtime."""
    text = rule.fix.replace("{runtime}", target.name)
    return _CODE.sub(lambda found: target.code(found[1]).rstrip(), text)


def _ignored_lines(document: Document) -> dict[int, frozenset[str]]:
    """Return the codes that each line ignores; an empty set stands for all."""
    if "tpuctl:" not in document.raw:
        return {}
    found = {}
    text = document.text.splitlines()
    for number, line in enumerate(text, 1):
        if comment := _IGNORED.search(line):
            found[number] = _ignored_codes(comment)
    for command in document.commands:
        if comment := _IGNORED.search(command.text):
            found[command.line] = _ignored_codes(comment)
    return found


def _ignored_codes(comment: re.Match[str]) -> frozenset[str]:
    return frozenset(code.strip().upper() for code in (comment[1] or "").split(",") if code.strip())


def _is_ignored(hit: Hit, ignored: dict[int, frozenset[str]]) -> bool:
    first = _position(hit)[0]
    last = getattr(hit.node, "end_lineno", None) if isinstance(hit.node, ast.AST) else None
    lines = {first, last or first}
    return any(
        line in ignored and (not ignored[line] or hit.code in ignored[line]) for line in lines
    )


def most_severe(findings: Sequence[Finding]) -> Finding | None:
    """Return the worst finding, the first in the file among equals."""
    return min(findings, key=lambda f: SEVERITIES.index(f.severity), default=None)


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by file, cell and line."""
    return tuple(
        sorted(findings, key=lambda f: (Path(f.path), f.cell or 0, f.line, f.column, f.code))
    )
