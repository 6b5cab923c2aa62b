"""Compilations that were done before, kept while everything they depend on is unchanged.

A compilation depends on the request, on every file that the child loaded or opened outside of the
installed packages, on what is installed, and on the variables that JAX, Keras and XLA read.
"""

import contextlib
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

from tpuctl.codec import from_plain, read_json, to_plain
from tpuctl.compile.models import Compilation, CompileRequest
from tpuctl.errors import TpuctlError
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder, remove_stale_parts, write_atomically
from tpuctl.units import MIB

SCHEMA = "tpuctl.compilation/1"
MAX_ENTRIES = 500
# Larger files are compared by size and time: they are data rather than source code.
LARGE_BYTES = 16 * MIB
VARIABLES = ("KERAS_", "XLA_", "JAX_", "LIBTPU_", "TF_XLA_")


@dataclass(frozen=True)
class Cache:
    """A folder with one file per compilation."""

    folder: Path

    def load(self, request: CompileRequest) -> Compilation | None:
        """Return the compilation if it is cached and still valid; damaged files are ignored."""
        try:
            record = read_json(self._path(request))
            files = record["files"].items()
            if record["schema"] != SCHEMA or any(_digest(path) != known for path, known in files):
                return None
            return from_plain(Compilation, record["compilation"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, request: CompileRequest, compilation: Compilation, files: Iterable[str]) -> None:
        """Keep a compilation; if that fails, the next run compiles again."""
        others = (*_package_folders(), sysconfig.get_paths()["stdlib"], "/proc", "/sys", "/dev")
        not_the_users = ("<", *(f"{folder}{os.sep}" for folder in others))
        record = {
            "schema": SCHEMA,
            "compilation": to_plain(compilation),
            "files": {path: _digest(path) for path in files if not path.startswith(not_the_users)},
        }
        _write(self._path(request), record)

    def remember(self, request: CompileRequest) -> None:
        """Keep the last request for a target and a type, for `recall`."""
        about = [request.target.text, request.slice.accelerator_type, os.getcwd()]
        name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        _write(self._requests / f"{name}.json", to_plain(request))

    def recall(self, accelerator_type: str) -> Iterator[tuple[CompileRequest, Compilation]]:
        """Yield the last requests for a type in this folder whose compilations are still valid."""
        for path in sorted(self._requests.glob("*.json")):
            try:
                request = from_plain(CompileRequest, read_json(path))
            except (OSError, ValueError):
                continue
            compilation = self.load(request)
            if compilation and request.slice.accelerator_type == accelerator_type:
                yield request, compilation

    @property
    def _requests(self) -> Path:
        return self.folder / "asked"

    def _path(self, request: CompileRequest) -> Path:
        key = json.dumps([to_plain(request), _environment()], sort_keys=True)
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def open_cache() -> Cache:
    """Open the cache of this user."""
    return Cache(cache_dir() / "fit")


def _write(path: Path, document: Any) -> None:
    """Write a file of the cache, which is never worth an error, and delete the oldest ones."""
    with contextlib.suppress(OSError, TpuctlError):
        ensure_folder(path.parent, private=True)
        remove_stale_parts(path.parent)
        write_atomically(path, json.dumps(document).encode())
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-MAX_ENTRIES]:
            old.unlink(missing_ok=True)


def _environment() -> list[Any]:
    """List what is installed, by its metadata folders, and the variables that matter."""
    installed = [
        sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))
        for folder in _package_folders()
        if os.path.isdir(folder)
    ]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES))
    return [sys.version, installed, variables, os.getcwd()]


def _package_folders() -> list[str]:
    paths, user = sysconfig.get_paths(), site.getusersitepackages()
    folders = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return [*folders, user] if user else [*folders]


def _digest(path: str) -> str | None:
    try:
        state = os.stat(path)
        if state.st_size > LARGE_BYTES:
            return f"{state.st_size}, {state.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
