"""Answers that were given before, kept as long as everything they depend on is unchanged.

An answer depends on the question, on every file that the child loaded or opened outside of the
installed packages, on what is installed, and on the variables that JAX, Keras and XLA read.
"""

import hashlib
import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.compile.models import Compilation, CompileRequest
from tpuctl.errors import TpuctlError
from tpuctl.settings import cache_dir
from tpuctl.storage.local import write_atomically
from tpuctl.units import MIB

SCHEMA = "tpuctl.compilation/1"
MOST_KEPT = 500
# Of larger files size and date must do: a data set is no source code.
LARGE_BYTES = 16 * MIB
VARIABLES = ("KERAS_", "XLA_", "JAX_", "LIBTPU_", "TF_XLA_")


@dataclass(frozen=True)
class Cache:
    """A folder of answers, one file each."""

    folder: Path

    def load(self, question: CompileRequest) -> Compilation | None:
        """The answer, if it was given and still holds. A damaged file is no answer."""
        try:
            record = json.loads(self._path(question).read_bytes())
            if record["schema"] != SCHEMA or not _holds(record["files"]):
                return None
            return from_plain(Compilation, record["compilation"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(
        self, question: CompileRequest, compilation: Compilation, files: Iterable[str]
    ) -> None:
        """Keep an answer; where that is not possible the next run compiles again."""
        record = {
            "schema": SCHEMA,
            "compilation": to_plain(compilation),
            "files": {path: _digest(path) for path in files if _is_the_users(path)},
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(question), json.dumps(record).encode())
            _forget_oldest(self.folder)
        except (OSError, TpuctlError):
            return

    def remember(self, question: CompileRequest) -> None:
        """Note what was last asked of a target and a type; where that is not possible, nothing."""
        about = [question.target.text, question.slice.accelerator_type, os.getcwd()]
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        try:
            self._asked.mkdir(parents=True, exist_ok=True)
            content = json.dumps(to_plain(question)).encode()
            write_atomically(self._asked / f"{name}.json", content)
            _forget_oldest(self._asked)
        except (OSError, TpuctlError):
            return

    def recall(self, accelerator_type: str) -> Iterator[tuple[CompileRequest, Compilation]]:
        """What was last asked for a type in this folder, where the answer still holds."""
        for path in sorted(self._asked.glob("*.json")):
            try:
                question = from_plain(CompileRequest, json.loads(path.read_bytes()))
            except (OSError, ValueError):
                continue
            compilation = self.load(question)
            if compilation and question.slice.accelerator_type == accelerator_type:
                yield question, compilation

    @property
    def _asked(self) -> Path:
        return self.folder / "asked"

    def _path(self, question: CompileRequest) -> Path:
        what = json.dumps([to_plain(question), _surroundings()], sort_keys=True)
        return self.folder / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.json"


def open_cache() -> Cache:
    """The cache of this user."""
    return Cache(cache_dir() / "fit")


def _forget_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in kept[:-MOST_KEPT]:
        path.unlink(missing_ok=True)


def _surroundings() -> list[Any]:
    """What is installed, by its folders of metadata, and the variables that count."""
    installed = [
        sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))
        for folder in _package_folders()
        if os.path.isdir(folder)
    ]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES))
    return [sys.version, installed, variables, os.getcwd()]


def _package_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return [*{paths["purelib"], paths["platlib"], *site.getsitepackages(), *_user_site()}]


def _user_site() -> list[str]:
    folder = site.getusersitepackages()
    return [folder] if folder else []


def _is_the_users(path: str) -> bool:
    installed = [*_package_folders(), sysconfig.get_paths()["stdlib"], "/proc", "/sys", "/dev"]
    return not path.startswith("<") and not any(
        path.startswith(f"{folder}{os.sep}") for folder in installed
    )


def _holds(files: dict[str, str | None]) -> bool:
    return all(_digest(path) == digest for path, digest in files.items())


def _digest(path: str) -> str | None:
    try:
        state = os.stat(path)
        if state.st_size > LARGE_BYTES:
            return f"{state.st_size}, {state.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
