"""The kernel of a run on Kaggle: its source, and what Kaggle allows."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from tpuctl.codec import load_facts
from tpuctl.providers.pack import Packed

DATA = Path(__file__).parent / "data" / "limits.json"


def limits() -> dict[str, Any]:
    """Return the dated facts about Kaggle's limits."""
    return load_facts(DATA)


def fits_in_source(packed: Packed) -> bool:
    """Whether an archive can be part of the kernel's text."""
    return len(packed.archive) * 4 // 3 <= int(limits()["inline_bytes"])


def kernel_text(job: dict[str, Any], packed: Packed | None) -> str:
    """Write the source of the kernel: the bootstrap, and the archive if it is part of it."""
    boot = (resources.files(__package__) / "bootstrap.py").read_text(encoding="utf-8")
    data = base64.b64encode(packed.archive).decode() if packed else ""
    return f"{boot}\n\nmain({job!r}, {data!r})\n"
