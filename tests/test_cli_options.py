"""Every option of every command: what cannot be read, or has no effect, is wrong usage."""

from collections.abc import Iterator
from typing import Any

from tpuctl.cli.app import _load
from tpuctl.cli.contents import CONTENTS


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words."""
    for entry in CONTENTS:
        loaded = _load(entry)
        below = getattr(loaded, "commands", {})
        if not below or loaded.invoke_without_command:
            yield entry.name, loaded
        yield from ((f"{entry.name} {name}", command) for name, command in below.items())
