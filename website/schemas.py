"""The JSON Schema of every command's document."""

import json

from tests import contract
from website.commands import commands, slug


def pages() -> dict[str, str]:
    """Return every page by its address."""
    words = [name for name, _ in commands()]
    index = [
        "# JSON",
        "",
        "With `--json`, a command prints one document on stdout and nothing else there. Its schema is",
        "exact: no key is missing, and none is added without being in it. A failure comes in the same",
        "document, with `status` `error` and an entry in `errors`.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | failed, or a blocking finding |",
        "| 2 | wrong usage |",
        "| 3 | try again later: capacity, rate limit, service unavailable |",
        "| 130 | interrupted |",
        "",
        "`run` and `launch` pass on the exit code of the job.",
        "",
        *(f"- [`tpuctl {name} --json`]({slug(name)}.md)" for name in words),
    ]
    pages = {f"reference/json/{slug(name)}.md": _page(name) for name in words}
    return {"reference/json/index.md": "\n".join(index) + "\n", **pages}


def _page(words: str) -> str:
    schema = json.dumps(contract.document_schema(words), indent=2)
    command = f"[`tpuctl {words}`](../commands/{slug(words)}.md)"
    return f"# JSON of tpuctl {words}\n\nWhat {command} prints with `--json`.\n\n```json\n{schema}\n```\n"
