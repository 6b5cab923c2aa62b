"""Completion of names in the shell; it sends no requests."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from tpuctl.codec import parse_json, read_limited
from tpuctl.errors import TpuctlError
from tpuctl.settings import state_dir
from tpuctl.units import MIB

# What may be a word of a command line without quotes.
_WORD = re.compile(r"[\w.@:/-]{1,80}", re.ASCII)


def tpus() -> Iterator[str]:
    """Yield the names of TPUs and runs that were requested from this machine."""
    for document in _records("creates", "colab", "kaggle"):
        if document.get("phase") != "closed":
            yield from _values(document, "name")


def jobs() -> Iterator[str]:
    """Yield the names of jobs that this machine watches or has started."""
    for document in _records("watches", "colab", "kaggle"):
        yield from _values(document, "job")


def types() -> Iterator[str]:
    """Yield all types of TPUs."""
    from tpuctl.hardware.types import all_sizes

    return iter(all_sizes())


def zones() -> Iterator[str]:
    """Yield all zones with TPUs."""
    from tpuctl.hardware.types import all_zones

    return iter(all_zones())


def templates() -> Iterator[str]:
    """Yield the names of all templates."""
    from tpuctl.training.catalog import list_templates

    return (template.name for template in list_templates().templates)


def providers() -> Iterator[str]:
    """Yield the names of all providers."""
    from tpuctl.providers.registry import PROVIDERS

    return iter(PROVIDERS)


_BY_METAVAR: dict[str, Callable[[], Iterator[str]]] = {
    "NAME": tpus, "TYPE": types, "ZONE": zones, "JOB": jobs, "TEMPLATE": templates,
    "PROVIDER": providers,
}  # fmt: skip
# What stands around a name in a metavar: `[NAME] -- CMD...`, `ZONE,...`.
_AROUND = re.compile(r"\[|\]|,?\.\.\.| -- .*")


def by_metavar(metavar: str | None) -> Callable[[str], list[str]] | None:
    """Return what completes a parameter whose metavar names something that is known here."""
    parts = _AROUND.sub("", metavar or "").split("|")
    sources = [_BY_METAVAR[part] for part in parts if part in _BY_METAVAR]
    literals = [part for part in parts if part.isalpha() and part.islower()]
    if not sources and not literals:
        return None

    def matching(incomplete: str) -> list[str]:
        # Of a list, such as zones, the last word is completed.
        done, comma, begun = incomplete.rpartition(",")
        known = chain(literals, *(source() for source in sources))
        words = {word for word in known if word.startswith(begun) and _WORD.fullmatch(word)}
        return [f"{done}{comma}{word}" for word in sorted(words)]

    return matching


def _records(*folders: str) -> Iterator[dict[str, Any]]:
    with suppress(TpuctlError):
        state = state_dir()
        for path in chain.from_iterable(sorted((state / name).glob("*.json")) for name in folders):
            with suppress(OSError, ValueError):
                document = parse_json(read_limited(path, MIB))
                if isinstance(document, dict):
                    yield document


def _values(document: Any, name: str) -> Iterator[str]:
    for key, value in document.items():
        if key == name and isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _values(value, name)
