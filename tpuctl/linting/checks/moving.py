"""What moves: torch_xla's successor, and which calls have an equivalent there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

from tpuctl.linting.models import DATA, Hit
from tpuctl.linting.program import Program
from tpuctl.linting.scope import beginning


@cache
def equivalents() -> dict[str, str | None]:
    """Return what torch_xla's names are in torch_tpu; None where there is nothing yet."""
    document = json.loads((DATA / "moving.json").read_text(encoding="utf-8"))
    names: dict[str, str | None] = document["torch_tpu"]["names"]
    return names


def torch_xla(program: Program) -> Iterator[Hit]:
    """Say once per file what will change, and what has no equivalent yet."""
    first = next((a for a, path in program.imports if path.partition(".")[0] == "torch_xla"), None)
    if first is None:
        return
    table = equivalents()
    used = sorted({known for _, path in program.paths if (known := beginning(path, table))})
    lines = [f"{name} → {table[name] or 'nothing yet'}" for name in used]
    missing = [name.rpartition(".")[2] for name in used if table[name] is None]
    message = "torch_xla will be replaced by torch_tpu (TorchTPU)"
    message += f"; without an equivalent yet: {', '.join(missing)}." if missing else "."
    yield Hit("T201", first, message, fix="\n".join(lines) or None)


CHECKS = (torch_xla,)
