"""What not to copy: files that `.gitignore`, `.tpuignore` and git's own list of exclusions name, as
git applies them (pathspec), and files that are likely to hold a secret.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tpuctl.codec import open_regular
from tpuctl.errors import MissingExtraError
from tpuctl.remote.agent.copy import IGNORE_FILES
from tpuctl.remote.copy_plan import LeftOut

try:
    import pathspec
except ModuleNotFoundError as error:
    raise MissingExtraError("Copying a folder", extra="ssh", module="pathspec") from error

WhyNot = Callable[[str, bool], LeftOut | None]
"""Takes a path and whether it is a folder; returns why it is not copied, None if it is."""

_GIT = ".git"
_EXCLUDE = f"{_GIT}/info/exclude"


def local_rules(root: Path, *, include_secrets: bool = False) -> WhyNot:
    """Read the rules for a local folder, with those of its repository."""
    root = root.resolve()
    top = next((path for path in (root, *root.parents) if (path / _GIT).exists()), root)
    inside = root.relative_to(top).parts
    rules = _Rules(lambda name: _read(_place(top, name)))
    above = ["/".join(inside[: depth + 1]) for depth in range(len(inside))]
    if any(rules.why_not(path, True) for path in above):
        # The folder itself is ignored, but was named on the command line, so it is copied.
        rules, inside = _Rules(lambda name: _read(root / name)), ()
    prefix = "".join(f"{part}/" for part in inside)

    def why_not(path: str, is_folder: bool) -> LeftOut | None:
        ignored, by = rules.verdict(prefix + path, is_folder)
        if ignored:
            return LeftOut(path, f"ignored by {by}")
        # A line in .tpuignore is meant for us; one in .gitignore may be about every other file.
        is_wanted = include_secrets or by.endswith(IGNORE_FILES[-1])
        why = None if is_wanted else _why_secret(root, path, is_folder)
        return LeftOut(path, why, is_secret=True) if why else None

    return why_not


def remote_rules(texts: Mapping[str, str]) -> WhyNot:
    """Read the rules for a worker's folder from the texts of its ignore files."""
    return _Rules(lambda name: texts.get(name, "")).why_not


class _Rules:
    """The deepest ignore file with a matching line decides, and in it the last matching line."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._specs: dict[str, list[tuple[str, Any]]] = {}

    def why_not(self, path: str, is_folder: bool) -> LeftOut | None:
        """Say why a path is ignored."""
        ignored, by = self.verdict(path, is_folder)
        return LeftOut(path, f"ignored by {by}") if ignored else None

    def verdict(self, path: str, is_folder: bool) -> tuple[bool | None, str]:
        """Whether a path is ignored, and by which file; `.git` is, unless a file says otherwise."""
        folder, whole = path, f"{path}/" if is_folder else path
        while folder:
            folder = folder.rpartition("/")[0]
            inside = whole[len(folder) + 1 :] if folder else whole
            for name, spec in self._specs_of(folder):
                verdict = spec.check_file(inside).include
                if verdict is not None:
                    return bool(verdict), name
        return (True, "default") if path.rpartition("/")[2] == _GIT else (None, "")

    def _specs_of(self, folder: str) -> list[tuple[str, Any]]:
        if folder not in self._specs:
            prefix = f"{folder}/" if folder else ""
            names = [prefix + name for name in reversed(IGNORE_FILES)] + [_EXCLUDE] * (not folder)
            lines = [(name, self._read(name).splitlines()) for name in names]
            self._specs[folder] = [
                (name, pathspec.GitIgnoreSpec.from_lines(each)) for name, each in lines if each
            ]
        return self._specs[folder]


def _place(top: Path, name: str) -> Path:
    """Return where a file of rules is; a worktree shares git's list with its repository."""
    git = top / _GIT
    if name != _EXCLUDE or not git.is_file():
        return top / name
    folder = top / _read(git).removeprefix("gitdir:").strip()
    return folder / _read(folder / "commondir").strip() / "info" / "exclude"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""


@cache
def _secrets() -> tuple[list[tuple[Any, str]], Mapping[str, Any]]:
    text = (resources.files("tpuctl.remote") / "secrets.json").read_text(encoding="utf-8")
    known = json.loads(text)
    names = [
        (pathspec.GitIgnoreSpec.from_lines(one["names"]), one["why"]) for one in known["files"]
    ]
    return names, known["contents"]


def _why_secret(root: Path, path: str, is_folder: bool) -> str | None:
    """Say why a path is likely to hold a secret, by its name or by how its content begins."""
    names, contents = _secrets()
    whole = f"{path.lower()}/" if is_folder else path.lower()
    for spec, why in names:
        if spec.check_file(whole).include:
            return str(why)
    file = root / path
    if is_folder or file.suffix.lower() not in contents["suffixes"] or file.is_symlink():
        return None
    try:
        with open_regular(file) as content:
            begin = content.read(contents["first_bytes"]).decode("utf-8", "replace")
            begin = begin.replace("\0", "")  # UTF-16, as PowerShell writes
    except OSError:
        return None
    found = (one["why"] for one in contents["patterns"] if re.search(one["pattern"], begin))
    return next(found, None)
