"""What not to copy: the rules of `.gitignore` and `.tpuignore`, as git applies them (pathspec)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpuctl.errors import MissingExtraError
from tpuctl.remote.agent.copy import IGNORE_FILES

try:
    import pathspec
except ModuleNotFoundError as error:
    raise MissingExtraError("Copying a folder", extra="ssh", module="pathspec") from error

Keep = Callable[[str, bool], bool]
"""Takes a path and whether it is a folder; returns whether to copy it."""

_GIT = ".git"


def local_rules(root: Path) -> Keep:
    """Read the rules for a local folder, with those of its repository."""
    root = root.resolve()
    top = next((path for path in (root, *root.parents) if (path / _GIT).exists()), root)
    inside = root.relative_to(top).parts
    rules = _Rules(lambda path: _read(top / path))
    above = ["/".join(inside[: depth + 1]) for depth in range(len(inside))]
    if any(rules.ignores(path, True) for path in above):
        # The folder itself is ignored, but was named on the command line, so it is copied.
        return _Rules(lambda path: _read(root / path)).keeps
    prefix = "".join(f"{part}/" for part in inside)
    return lambda path, is_folder: rules.keeps(prefix + path, is_folder)


def remote_rules(texts: Mapping[str, str]) -> Keep:
    """Read the rules for a worker's folder from the texts of its ignore files."""
    return _Rules(lambda path: texts.get(path, "")).keeps


class _Rules:
    """The deepest ignore file with a matching line decides, and in it the last matching line."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._specs: dict[str, Any] = {}

    def keeps(self, path: str, is_folder: bool) -> bool:
        """Whether to copy a path."""
        return not self.ignores(path, is_folder)

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether a path is ignored; `.git` is, unless an ignore file says otherwise."""
        folder, whole = path, f"{path}/" if is_folder else path
        while folder:
            folder = folder.rpartition("/")[0]
            spec = self._spec(folder)
            if spec is None:
                continue
            verdict = spec.check_file(whole[len(folder) + 1 :] if folder else whole).include
            if verdict is not None:
                return bool(verdict)
        return path.rpartition("/")[2] == _GIT

    def _spec(self, folder: str) -> Any:
        if folder not in self._specs:
            prefix = f"{folder}/" if folder else ""
            text = "\n".join(self._read(prefix + name) for name in IGNORE_FILES)
            lines = text.splitlines() if text.strip() else []
            self._specs[folder] = pathspec.GitIgnoreSpec.from_lines(lines) if lines else None
        return self._specs[folder]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""
