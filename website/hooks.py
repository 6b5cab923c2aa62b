"""Hooks of MkDocs: add the pages that are generated from the code."""

from collections.abc import Callable
from typing import Any

from mkdocs.structure.files import File, Files

from website import codes, commands, python_api, schemas, settings

GENERATORS: tuple[Callable[[], dict[str, str]], ...] = (
    commands.pages,
    python_api.pages,
    schemas.pages,
    codes.pages,
    settings.pages,
)


def on_files(files: Files, /, *, config: Any) -> Files:
    """Add every generated page."""
    for pages in GENERATORS:
        for address, text in pages().items():
            files.append(File.generated(config, address, content=text))
    return files
