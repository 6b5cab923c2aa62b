"""`tpuctl lint`: read the files, check them, fix them, and find the rules by their codes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from tpuctl.codec import open_regular
from tpuctl.diagnosis.explain import Explanation, Match
from tpuctl.errors import UsageError, WriteError
from tpuctl.linting.documents import Document, find_files, read_documents
from tpuctl.linting.fix import Fixed, describe_change, fix
from tpuctl.linting.lint import Selection, check, fix_text, ordered, selection, shown
from tpuctl.linting.models import Change, Finding, Linting, rules
from tpuctl.linting.targets import Target, target
from tpuctl.storage.local import write_atomically


def lint_paths(
    paths: Sequence[str | os.PathLike[str]],
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    fixes: bool = False,
    diff: bool = False,
    runtime: str | None = None,
) -> Linting:
    """Check files and folders; `fixes` changes the files, `diff` only says how.

    Raises UsageError, NotFoundError, and MissingExtraError for fixes without LibCST.
    """
    if not paths:
        raise UsageError("There is nothing to lint.", hint="tpuctl lint train.py notebooks/")
    if fixes and diff:
        raise UsageError("--fix changes files and --diff does not: choose one.")
    wanted, where = selection(select, ignore), target(runtime)
    found: list[Finding] = []
    changes: list[Change] = []
    notes: list[str] = []
    files = fixed = 0
    for path in dict.fromkeys(find_files(paths)):
        files += 1
        documents = read_documents(path)
        if not (fixes or diff) or not documents[0].raw:
            found += _findings(documents, where, wanted)
            continue
        done = fix(documents, where, wanted)
        notes += [done.note] if done.note else []
        is_new = done.raw != documents[0].raw
        problem = _write(documents[0], done) if is_new and not diff else None
        notes += [f"{shown(path)} was not changed: {problem}"] if problem else []
        if is_new and not problem:
            changes.append(describe_change(documents[0], done))
            fixed += done.fixed
        if diff or problem:
            found += _findings(documents, where, wanted)
        else:
            found += [placed.finding for placed in done.left]
    return Linting(ordered(found), files, fixed, where.name, tuple(changes), diff, tuple(notes))


def _findings(documents: Sequence[Document], where: Target, wanted: Selection) -> list[Finding]:
    return [placed.finding for each in documents for placed in check(each, where, wanted)]


def _write(document: Document, fixed: Fixed) -> str | None:
    """Write a file's new text where a link leads; return why it could not be written."""
    path = document.path.resolve()
    try:
        with open_regular(path) as file:
            state = os.fstat(file.fileno())
            if file.read() != document.raw.encode(document.encoding):
                return "it was modified while it was being checked."
        write_atomically(path, fixed.raw.encode(document.encoding), like=state)
    except (WriteError, OSError) as error:
        return str(error)
    return None


def explain_rules(text: str) -> Explanation | None:
    """Explain the rules whose code begins with a text such as T105; None if it is no such code."""
    code = text.strip().upper()
    where = target(None)
    found = [rule for known, rule in rules().items() if known.startswith(code)]
    matches = [
        Match(
            code=rule.code,
            title=rule.title,
            cause=rule.why,
            fix=f"{fix_text(rule, where)}\n\nInstead of\n\n{_indented(rule.bad)}\n\nwrite\n\n"
            f"{_indented(rule.good)}",
            fix_command=f"tpuctl lint --select {rule.code} --diff .",
            confidence="high",
            source="; ".join(rule.sources),
            family="lint",
            matched=rule.code,
            parts={},
            line=0,
        )
        for rule in found
    ]
    return Explanation(tuple(matches), len(text)) if matches else None


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.rstrip().splitlines())
