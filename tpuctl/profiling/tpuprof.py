"""The `.tpuprof` file: one profile as versioned JSON."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, parse_json, read_limited, to_plain
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.profiling.models import Profile
from tpuctl.storage.local import ensure_folder, translated_write_errors, write_atomically

SCHEMA = "tpuctl.profile/"
# Increased when an old reader would misunderstand a new file; added keys do not count.
VERSION = 1
_HINT = "Create it again: tpuctl profile run TARGET --out FILE.tpuprof"


def save(profile: Profile, path: Path) -> None:
    """Write a profile atomically."""
    document = {"schema": f"{SCHEMA}{VERSION}", "profile": to_plain(profile)}
    write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def check_place(path: Path) -> None:
    """Check that a file can be written at `path`; raises WriteError."""
    with translated_write_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            raise OSError("it is a device or a pipe")
        nearest = next(place for place in path.absolute().parents if place.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        ensure_folder(path.absolute().parent)


def load(path: Path) -> Profile:
    """Read a profile; raises NotFoundError or InvalidInputError."""
    document = _document(path)
    version = str(document["schema"]).removeprefix(SCHEMA)
    if version != str(VERSION):
        raise InvalidInputError(
            f"{path} has profile version {version}; this tpuctl reads version {VERSION}.",
            hint="pip install --upgrade tpuctl",
        )
    try:
        return _checked(from_plain(Profile, document.get("profile")))
    except ValueError as error:
        raise InvalidInputError(f"The profile {path} is damaged: {error}.", hint=_HINT) from error


def _checked(profile: Profile) -> Profile:
    """Raise ValueError for figures that are impossible or missing."""
    vcpus, is_trace = profile.vcpus, profile.trace is not None
    figures = {
        "batch_size": (profile.batch_size, is_trace),
        "cpu_ms_per_example": (profile.cpu_ms_per_example, is_trace),
        "pipeline_examples_per_s": (profile.pipeline_examples_per_s, is_trace),
        "vcpus.available": (vcpus.available, is_trace),
        "vcpus.used": (vcpus.used, is_trace),
        "vcpus.low": (vcpus.low, vcpus.needed_to_saturate is None),
        "vcpus.high": (vcpus.high, vcpus.needed_to_saturate is None),
        "device.step_ms": (profile.device.step_ms if profile.device else None, True),
    }
    for name, (figure, may_lack) in figures.items():
        if figure is None and not may_lack:
            raise ValueError(f"its {name} is missing")
        if figure is not None and not 0 <= figure < 1e12:
            raise ValueError(f"its {name} is {figure}")
    if profile.device and not profile.device.step_ms:
        raise ValueError("its device.step_ms is 0")
    return profile


def _document(path: Path) -> dict[str, Any]:
    try:
        content = read_limited(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"The profile {path} does not exist.", hint=_HINT) from error
    except OSError as error:
        raise InvalidInputError(f"Could not read {path}: {error.strerror}.", hint=_HINT) from error
    try:
        document = parse_json(content)
    except ValueError as error:
        is_ours = content.startswith((b'{"schema"', b'{\n "schema": "tpuctl.profile/'))
        what = "is a profile that is damaged or cut off" if is_ours else "is not a profile"
        raise InvalidInputError(f"{path} {what}.", hint=_HINT) from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith(SCHEMA):
        raise InvalidInputError(f"{path} is not a tpuctl profile.", hint=_HINT)
    return document
