"""Check documents against the rules: select, suppress, place, sort."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.errors import UsageError
from tpuctl.linting.checks import (
    gone,
    gone_hosted,
    gone_keras,
    will_crawl_input,
    will_crawl_steps,
    will_fail_jax_torch,
    will_fail_notebook,
    will_fail_tensorflow,
)
from tpuctl.linting.documents import TOP, Columns, Document
from tpuctl.linting.models import SEVERITIES, Finding, Hit, Rule, rules
from tpuctl.linting.port import port
from tpuctl.linting.program import Program
from tpuctl.linting.targets import Target, own_target

CHECKS = (
    *gone.CHECKS,
    *gone_hosted.CHECKS,
    *gone_keras.CHECKS,
    *will_fail_tensorflow.CHECKS,
    *will_fail_jax_torch.CHECKS,
    *will_fail_notebook.CHECKS,
    *will_crawl_input.CHECKS,
    *will_crawl_steps.CHECKS,
)
_IGNORED = re.compile(r"#\s*tpuctl:\s*ignore(?:\[([\w\s,]+)\]|(?![\w\[]))", re.IGNORECASE)
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
    return Selection(tuple(_codes("--select", select)), tuple(_codes("--ignore", ignore)))


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
    ignored = _ignored_lines(document)
    columns = Columns(document.text)
    # A nested call can break one rule several times in a line: one finding, all edits.
    found: dict[tuple[int, str], list[Hit]] = defaultdict(list)
    for hit in sorted(_hits(document, target), key=lambda hit: (*_position(hit), hit.code)):
        if wanted.wants(hit.code) and not _is_ignored(hit, ignored):
            found[_position(hit)[0], hit.code].append(hit)
    return [_placed(document, hits, target, columns) for hits in found.values()]


def _placed(document: Document, hits: list[Hit], target: Target, columns: Columns) -> Placed:
    """Make one finding of the hits of a rule in a line; what is not sure is not changed."""
    sure = [hit for hit in hits if (hit.severity or rules()[hit.code].severity) != "maybe"]
    edits = tuple(edit for hit in sure for edit in hit.edits)
    group = next((hit.group for hit in sure if hit.group), ())
    hit = replace(sure[0] if sure else hits[0], edits=edits, group=group)
    return Placed(hit, _finding(document, hit, target, columns))


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
    node = hit.node
    if isinstance(node, tuple):
        return node
    method = node.func if isinstance(node, ast.Call) else None
    # A call in a chain of several lines is where its own name is, not where the chain begins.
    if isinstance(method, ast.Attribute) and method.end_lineno != method.value.lineno:
        return method.end_lineno or 1, (method.end_col_offset or 0) - len(method.attr.encode())
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0)


def _finding(document: Document, hit: Hit, target: Target, columns: Columns) -> Finding:
    rule = rules()[hit.code]
    line, offset = _position(hit)
    column = columns(line, offset)
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
        fixable=bool(hit.edits or hit.group),
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
    lines = enumerate(document.text.split("\n"), 1) if "tpuctl:" in document.text else ()
    commands = ((command.line, command.text) for command in document.commands)
    comments = ((number, _IGNORED.search(text)) for number, text in (*lines, *commands))
    return {
        number: frozenset(code.strip().upper() for code in comment[1].split(",") if code.strip())
        if comment[1]
        else frozenset()
        for number, comment in comments
        if comment
    }


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
