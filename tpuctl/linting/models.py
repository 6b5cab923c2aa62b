"""The data of a lint: rules, findings, and the result of the command."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tpuctl.outcome import Outcome, Status

Severity = Literal["error", "warning", "maybe"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "maybe")
DATA = Path(__file__).parent / "data"
FAMILIES = ("files", "gone", "moving", "will_fail", "will_crawl")


@dataclass(frozen=True)
class Rule:
    """One rule; the examples are its documentation and its test. A source ends with its date."""

    code: str
    family: str
    severity: Severity
    title: str
    why: str
    fix: str
    sources: tuple[str, ...]
    bad: str
    good: str


@cache
def rules() -> dict[str, Rule]:
    """Load every rule by its code, in the order of the codes."""
    made = {}
    for family in FAMILIES:
        document = json.loads((DATA / f"{family}.json").read_text(encoding="utf-8"))
        for entry in document["rules"]:
            entry["sources"] = tuple(entry["sources"])
            examples = {name: "\n".join(entry[name]) + "\n" for name in ("bad", "good")}
            made[entry["code"]] = Rule(**{**entry, **examples, "family": family})
    return made


@dataclass(frozen=True)
class Edit:
    """A change of one node.

    `kind` says what to do with the node: `replace` an expression or a `statement`, `remove` a
    statement, `unwrap` the block of a `with`, `append` a method call, or change a `keyword` of a
    call: `name=value` adds one, `old>new` renames one, `old>` drops one. `needs` are lines of
    imports that the new source uses.
    """

    node: ast.AST
    kind: Literal["replace", "statement", "remove", "unwrap", "append", "keyword"]
    new: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    """What a check found, before it is placed in a file; `group` is made whole, or not at all."""

    code: str
    node: ast.AST | tuple[int, int]
    message: str
    severity: Severity | None = None
    fix: str | None = None
    edits: tuple[Edit, ...] = ()
    group: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One place in a file that a rule is about.

    `cell` is the number of the notebook's cell, counted from 1 with the text cells; lines and
    columns are counted from 1, within the cell.
    """

    path: str
    cell: int | None
    line: int
    column: int
    code: str
    severity: Severity
    message: str
    why: str
    fix: str | None = field(metadata={"lines": True})
    fixable: bool


@dataclass(frozen=True)
class Change:
    """What --fix changed in a file, or --diff would change."""

    path: str
    edits: int
    diff: str = field(metadata={"lines": True})


@dataclass(frozen=True)
class Linting(Outcome):
    """The findings in all files, the most severe first in each file."""

    findings: tuple[Finding, ...]
    files: int
    fixed: int
    runtime: str
    changes: tuple[Change, ...] = ()
    is_dry_run: bool = False
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`attention` if anything was found."""
        return "attention" if self.findings else "ok"

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error."""
        return 1 if any(finding.severity == "error" for finding in self.findings) else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not read, and what --fix did not do."""
        return self.notes

    @property
    def reasons(self) -> tuple[str, ...]:
        """The runtime that the fixes are for."""
        return (f"fixes are for: {self.runtime}",)


def as_dict(value: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one where the file holds something else."""
    return value if isinstance(value, dict) else {}
