"""A lint as text, as SARIF 2.1.0, and as annotations of GitHub Actions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.linting.models import SEVERITIES, rules
from tpuctl.printable import printable

if TYPE_CHECKING:
    from tpuctl.linting.models import Finding, Linting

_LEVELS = {"error": "error", "warning": "warning", "maybe": "note"}
_ANNOTATIONS = {"error": "error", "warning": "warning", "maybe": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_lint(linting: Linting) -> str:
    """Show each finding in one line, then what to do, once for each rule."""
    if linting.is_dry_run:
        diffs = "".join(change.diff for change in linting.changes)
        lines = re.split(r"\r?\n", diffs)[:-1]
        return "\n".join([*map(_line, lines), _summary(linting)])
    lines = [_line(f"{_place(f)}  {f.code} {f.severity}  {f.message}") for f in linting.findings]
    seen: dict[str, Finding] = {}
    for finding in linting.findings:
        seen.setdefault(finding.code, finding)
    shown: dict[tuple[str, ...], str] = {}
    for code, finding in sorted(seen.items()):
        lines += ["", f"{code}  {rules()[code].title}", f"  {finding.why}"]
        first, *rest = (finding.fix or "").splitlines() or [""]
        lines += [f"  → {first}"] if first else []
        if (known := shown.setdefault(tuple(rest), code)) != code and rest:
            lines.append(f"      (the code that is shown for {known})")
        else:
            lines += [f"      {line}".rstrip() for line in rest]
    return "\n".join([*lines, "", _summary(linting)] if lines else [_summary(linting)])


def _line(text: str) -> str:
    """Escape what a terminal would obey, in text that comes from the files; tabs stay."""
    return "\t".join(map(printable, text.split("\t")))


def _place(finding: Finding) -> str:
    cell = f"cell {finding.cell}:" if finding.cell else ""
    return f"{finding.path}:{cell}{finding.line}:{finding.column}"


def _summary(linting: Linting) -> str:
    files = f"{linting.files} file{'s' if linting.files != 1 else ''}"
    counts = Counter(finding.severity for finding in linting.findings)
    words = [
        f"{counts[each]} {each}{'s' if counts[each] > 1 and each != 'maybe' else ''}"
        for each in SEVERITIES
        if counts[each]
    ]
    found = f"{', '.join(words)} in {files}" if words else f"No findings in {files}"
    fixable = sum(finding.fixable for finding in linting.findings)
    if linting.is_dry_run:
        return f"{linting.fixed} of the findings would be fixed; {found}."
    if linting.changes:
        return f"{linting.fixed} fixed; left: {found[0].lower()}{found[1:]}."
    return f"{found}." + (f" {fixable} can be fixed with --fix." if fixable else "")


def render_github(linting: Linting) -> str:
    """Write annotations that GitHub Actions shows in the changed files."""
    return "\n".join(_annotations(linting)) or _summary(linting)


def _annotations(linting: Linting) -> Iterator[str]:
    for f in linting.findings:
        # A line of a cell is not a line of the notebook's file.
        line, column = (1, 1) if f.cell else (f.line, f.column)
        message = f"cell {f.cell}, line {f.line}: {f.message}" if f.cell else f.message
        path = _data(f.path).replace(":", "%3A").replace(",", "%2C")
        place = f"file={path},line={line},col={column},title=tpuctl {f.code}"
        yield f"::{_ANNOTATIONS[f.severity]} {place}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def render_sarif(linting: Linting) -> str:
    """Write a SARIF document, as GitHub code scanning and editors read it."""
    from importlib.metadata import version

    codes = sorted({finding.code for finding in linting.findings})
    driver = {
        "name": "tpuctl lint",
        "version": version("tpuctl"),
        "informationUri": "https://github.com/tpuctl/tpuctl/tree/main/docs/lint.md",
        "rules": [_sarif_rule(code) for code in codes],
    }
    results = [_sarif_result(finding, codes) for finding in linting.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_rule(code: str) -> dict[str, Any]:
    rule = rules()[code]
    return {
        "id": code,
        "name": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _sarif_result(finding: Finding, codes: list[str]) -> dict[str, Any]:
    line, column = (1, 1) if finding.cell else (finding.line, finding.column)
    where = f"cell {finding.cell}, line {finding.line}: " if finding.cell else ""
    uri = quote(PurePath(finding.path).as_posix(), safe="/")
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{where}{finding.message}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri},
                    "region": {"startLine": line, "startColumn": column},
                }
            }
        ],
    }
