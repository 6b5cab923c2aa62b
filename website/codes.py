"""One page for each failure of the catalogue and for each rule of the linter."""

from tpuctl.diagnosis.catalogue import Failure, failures, families
from tpuctl.diagnosis.diagnose import CHECKS
from tpuctl.linting.lint import fix_text
from tpuctl.linting.models import Rule, rules
from tpuctl.linting.targets import target

RULES = "rules"
FAILURES = "failures"
_KINDS = {
    "files": "Files that cannot be read",
    "gone": "Gone",
    "moving": "Moving",
    "will_fail": "Will fail",
    "will_crawl": "Will crawl",
}


def pages() -> dict[str, str]:
    """Return every page by its address."""
    found = {f"{FAILURES}/{each.code}.md": _failure(each) for each in failures().values()}
    found |= {f"{RULES}/{each.code}.md": _rule(each) for each in rules().values()}
    return {f"{FAILURES}/index.md": _failures(), f"{RULES}/index.md": _rules(), **found}


def _failures() -> str:
    lines = [
        "# Failures",
        "",
        "Every failure that `tpuctl doctor` and `tpuctl explain` know, by family. `tpuctl explain CODE`",
        "prints one of them; `tpuctl explain train.log` finds those that a log shows.",
    ]
    for family, about in families().items():
        lines += ["", f"## {about}", ""]
        for each in failures().values():
            if each.family == family:
                lines.append(f"- [`{each.code}`]({each.code}.md): {_text(each.title)}")
    return "\n".join(lines) + "\n"


def _failure(failure: Failure) -> str:
    seen = "seen by `tpuctl doctor`" if failure.code in CHECKS else "known by its text"
    sources = "; ".join(f"{address} ({day})" for address, day in failure.sources.items())
    command = f"```text\n{failure.fix_command}\n```" if failure.fix_command else ""
    parts = [
        f"# {failure.code}: {_text(failure.title)}",
        f"{failure.severity}, {seen}",
        _text(failure.cause),
        "## How to fix it",
        _text(failure.fix),
        command,
        "## Texts",
        "In a text, … stands for anything and {name} for a part that the answer repeats.",
        "\n".join(f"- `` {text} ``" for text in failure.patterns),
        f"Confidence {failure.confidence}. Source: {_text(sources)}.",
        f"[All failures](index.md), family “{families()[failure.family]}”.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rules() -> str:
    lines = [
        "# Lint rules",
        "",
        "What [`tpuctl lint`](../lint.md) finds. `tpuctl explain T105` shows a rule with the code for",
        "your runtime.",
    ]
    for family, title in _KINDS.items():
        lines += ["", f"## {title}", ""]
        lines += [
            f"- [`{each.code}`]({each.code}.md) ({each.severity}): {_text(each.title)}"
            for each in rules().values()
            if each.family == family
        ]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule) -> str:
    words, _, code = fix_text(rule, target("tpu-vm")).partition("\n")
    return (
        "\n".join(
            [
                f"# {rule.code}: {_text(rule.title)}",
                "",
                f"*{rule.severity}.* {_text(rule.why)}",
                "",
                f"Fix: {_text(words)}",
                *(["", "```python", *code.splitlines(), "```"] if code else []),
                "",
                "It finds, for example:",
                "",
                "```text",
                *rule.bad.rstrip().splitlines(),
                "```",
                "",
                "Instead:",
                "",
                "```text",
                *rule.good.rstrip().splitlines(),
                "```",
                "",
                f"Sources: {_text('; '.join(rule.sources))}.",
                "",
                "[All rules](index.md).",
            ]
        )
        + "\n"
    )


def _text(text: str) -> str:
    """Escape what Markdown or HTML would take for its own."""
    for sign in ("\\", "*", "_", "<", "[", "]", "`"):
        text = text.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return text
