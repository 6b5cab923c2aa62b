"""Every setting of tpuctl, and where its value came from.

In order of precedence: a flag, `TPUCTL_*`, the nearest `tpuctl.toml` in the working folder or above
it, the user's `config.toml`, the default.

A `tpuctl.toml` may have come with a cloned repository. So it sets only what cannot choose whose
account is used, where code and keys are sent, or where keys and state are kept. Neither file is
used where another user could have written it.
"""

import errno
import getpass
import os
import re
import shlex
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.errors import InvalidInputError
from tpuctl.outcome import Outcome

PROJECT_FILE = "tpuctl.toml"
_MAX_FILE_BYTES = 1 << 16
# A folder may be searched without being readable.
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Key:
    """A setting, and whether a project file may set it."""

    name: str
    meaning: str
    in_project_files: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"TPUCTL_{self.name.upper()}"


KEYS = (
    Key("project", "Google Cloud project of your TPUs"),
    Key("zone", "default zone", in_project_files=True),
    Key("bucket", "bucket with your data, to warn about traffic between regions", True),
    Key("provider", "control plane for TPUs: auto, cloud-tpu or gce"),
    Key("cache_dir", "folder for demo images, compilations and copies of data sets"),
    Key("state_dir", "folder for the journal of requested TPUs, SSH keys and the emulator"),
    Key("tpu_endpoint", "address of a Cloud TPU emulator to use instead of Google's API"),
    Key("gce_endpoint", "address of a Compute Engine emulator to use instead of Google's API"),
    Key("colab_endpoint", "address of a Colab emulator to use instead of Google's Colab"),
    Key("staging", "bucket for the code of jobs on GKE: gs://BUCKET or gs://BUCKET/FOLDER"),
    Key("kaggle_endpoint", "address of an emulator to use instead of Kaggle"),
)


@dataclass(frozen=True)
class Setting:
    """One value, and where it came from."""

    name: str
    value: str | None
    source: str
    meaning: str


@dataclass(frozen=True)
class IgnoredSetting:
    """A value that a file gives and that is not used, or a whole file; then `name` is None."""

    file: str
    name: str | None
    reason: str

    @property
    def message(self) -> str:
        """The warning about it."""
        what = f"the setting {self.name} in {self.file}" if self.name else self.file
        return f"Ignored {what}: {self.reason}"


@dataclass(frozen=True)
class Settings(Outcome):
    """All settings in effect, the files they were read from, and what was ignored."""

    settings: tuple[Setting, ...]
    files: tuple[str, ...]
    ignored: tuple[IgnoredSetting, ...] = ()
    project_file: str | None = field(default=None, metadata={"internal": True})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was ignored, and why."""
        return tuple(each.message for each in self.ignored)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The files that were read."""
        return tuple(f"read {path}" for path in self.files) or ("no settings file was found",)

    @property
    def in_words(self) -> str:
        """What is set."""
        given = [
            f"{s.name} {s.value}" for s in self.settings if s.source not in ("default", "not set")
        ]
        return f"settings: {', '.join(given)}" if given else "nothing is set"

    def __getitem__(self, name: str) -> str | None:
        return next(setting.value for setting in self.settings if setting.name == name)

    def source_of(self, name: str) -> str:
        """Where a value came from: a flag, a variable, a file, `default` or `not set`."""
        return next(setting.source for setting in self.settings if setting.name == name)


def home() -> Path:
    """Folder of the user, which a container's user without an entry in passwd may not have.

    `/` then, as Docker sets it; never a folder called ~ in the current one.
    """
    path = os.path.expanduser("~")
    return Path(path if os.path.isabs(path) else "/")


def user_name() -> str | None:
    """Name of the user; None for one without an entry in passwd and without USER."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def _base_folder(env: Mapping[str, str], variable: str, default: str) -> Path:
    # The specification (XDG base directories) wants relative paths to be ignored.
    named = Path(env.get(variable, ""))
    return (named if named.is_absolute() else home() / default) / "tpuctl"


on_ignored: Callable[[str], None] = warnings.warn
"""Called with a warning for everything that `load_settings` ignores; the command line prints it."""


def load_settings(
    flags: Mapping[str, str | None] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quiet: bool = False,
) -> Settings:
    """Collect every setting from flags, environment, project file and user file.

    Warns of what was ignored, unless `quiet`. Raises InvalidInputError for a file that is not TOML,
    an unknown key, or a value that is not text.
    """
    env = os.environ if env is None else env
    user_file = _base_folder(env, "XDG_CONFIG_HOME", ".config") / "config.toml"
    found = _read_files(cwd or _current_folder(), user_file)
    defaults = {
        "cache_dir": str(_base_folder(env, "XDG_CACHE_HOME", ".cache")),
        "state_dir": str(_base_folder(env, "XDG_STATE_HOME", ".local/state")),
    }
    settings = Settings(
        tuple(_resolve(key, flags or {}, env, found.files, defaults) for key in KEYS),
        tuple(str(path) for path, _ in found.files),
        found.ignored,
        found.project_file,
    )
    for warning in () if quiet else settings.warnings:
        on_ignored(warning)
    return settings


def _current_folder() -> Path:
    with suppress(FileNotFoundError):
        return Path.cwd()
    return Path("/")  # it was deleted, and has no project file


class _Files(NamedTuple):
    """The settings files that were found, with their values, and what of them is ignored."""

    files: list[tuple[Path, dict[str, str]]]
    ignored: tuple[IgnoredSetting, ...]
    project_file: str | None


_kept: dict[tuple[Path, Path], _Files] | None = None


@contextmanager
def files_read_once() -> Iterator[None]:
    """Read each settings file once within this block, which is that of a command."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def _read_files(start: Path, user_file: Path) -> _Files:
    if _kept is not None and (known := _kept.get((start, user_file))):
        return known
    ignored: list[IgnoredSetting] = []
    project = _read_project_file(start, user_file, ignored)
    user = _read_trusted(user_file, ignored)
    files = [(path, values) for path, values in (project, (user_file, user)) if values is not None]
    found = _Files(files, tuple(ignored), None if project[1] is None else str(project[0]))
    if _kept is not None:
        _kept[start, user_file] = found
    return found


def cache_dir() -> Path:
    """Return the folder for files that can be recreated; raises InvalidInputError as below."""
    return _own_folder("cache_dir")


def state_dir() -> Path:
    """Return the folder for files that must not be lost.

    Raises InvalidInputError if another user could have put something into it. A link of the user's
    own is followed.
    """
    return _own_folder("state_dir")


def _own_folder(name: str) -> Path:
    settings = load_settings()
    # Without a shell, as in a file, a tilde would be a folder in the current one.
    folder = re.sub("^~(?=/|$)", lambda _: str(home()), settings[name] or "")
    # The status of a link with a slash at its end is that of its target.
    folder = os.path.normpath(folder)
    try:
        reason = None if os.path.isabs(folder) else "it is not an absolute path."
        # The user may keep it elsewhere, as on a larger disk: what counts then is that place.
        if reason is None and os.path.islink(folder):
            reason = _why_untrusted(os.lstat(folder), folder, is_open=False)
            folder = os.path.realpath(folder)
        reason = reason or _why_planted(folder, levels=2)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}."
    if reason:
        raise InvalidInputError(
            f"Could not use {folder} ({name}, from {settings.source_of(name)}): {reason}",
            hint="Others may have put files there: look at them before you change that, or use "
            f"another folder: export TPUCTL_{name.upper()}=/FOLDER",
        )
    return Path(folder)


def _why_planted(path: str, levels: int, *, is_open: bool = True) -> str | None:
    """Return why another user could have put a file, or one that many levels below it, there.

    tpuctl makes neither links nor second names; `is_open` says that others reach the path.
    """
    try:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode):
            return f"{path} is a symbolic link."
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink > 1:
            return f"{path} has another name elsewhere (a hard link)."
        reason = _why_untrusted(seen, path, is_open=is_open)
        if reason or not levels or not stat.S_ISDIR(seen.st_mode):
            return reason
        is_open = is_open and bool(seen.st_mode & 0o011)
        below = (os.path.join(path, name) for name in os.listdir(path))
        reasons = (_why_planted(each, levels - 1, is_open=is_open) for each in below)
        return next(filter(None, reasons), None)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _resolve(
    key: Key,
    flags: Mapping[str, str | None],
    env: Mapping[str, str],
    files: list[tuple[Path, dict[str, str]]],
    defaults: Mapping[str, str],
) -> Setting:
    if flag := flags.get(key.name):
        return Setting(key.name, flag, f"--{key.name.replace('_', '-')}", key.meaning)
    if value := env.get(key.variable):
        return Setting(key.name, value, key.variable, key.meaning)
    for path, values in files:
        if key.name in values:
            return Setting(key.name, values[key.name], str(path), key.meaning)
    default = defaults.get(key.name)
    return Setting(key.name, default, "default" if default else "not set", key.meaning)


def _read_project_file(
    start: Path, user_file: Path, ignored: list[IgnoredSetting]
) -> tuple[Path, dict[str, str] | None]:
    """Read the nearest project file that can be trusted; keeps only the keys it may set."""
    for folder in (start, *start.parents):
        path = folder / PROJECT_FILE
        values = _read_trusted(path, ignored, follow_link=False)
        if values is not None:
            allowed = {key.name for key in KEYS if key.in_project_files}
            ignored += [
                IgnoredSetting(
                    str(path),
                    name,
                    f"a project file may set only {' and '.join(sorted(allowed))}. "
                    f"Set it in {user_file}, or with TPUCTL_{name.upper()}.",
                )
                for name in values
                if name not in allowed
            ]
            return path, {name: values[name] for name in values if name in allowed}
    return start, None


def _read_trusted(
    path: Path, ignored: list[IgnoredSetting], *, follow_link: bool = True
) -> dict[str, str] | None:
    """Read a settings file, or note why it is ignored; None where there is nothing to read."""
    try:
        # What is checked is what is read: folder and file are opened once, and no link is followed
        # after its target was resolved.
        place = Path(os.path.realpath(path)) if follow_link else path
        folder = os.open(place.parent, _FOLDER_FLAGS)
        try:
            file = os.open(place.name, _FILE_FLAGS, dir_fd=folder)
            with open(file, "rb") as opened:
                is_file = stat.S_ISREG(os.fstat(file).st_mode)
                reason = None if is_file else "it is not a regular file."
                reason = reason or _why_untrusted(os.fstat(file), str(place))
                reason = reason or _why_untrusted(os.fstat(folder), str(place.parent))
                content = b"" if reason else opened.read(_MAX_FILE_BYTES + 1)
        finally:
            os.close(folder)
        if len(content) > _MAX_FILE_BYTES:
            reason = f"it is larger than {_MAX_FILE_BYTES:,} bytes."
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if follow_link:
            raise _unreadable(path, error) from error
        is_link = error.errno == errno.ELOOP
        reason = "it is a symbolic link." if is_link else f"{error.strerror}."
    if reason:
        ignored.append(IgnoredSetting(str(path), None, reason))
        return None
    return _parse(path, content)


def _why_untrusted(seen: os.stat_result, place: str, *, is_open: bool = True) -> str | None:
    """Return why another user could have written a file or a folder; None if none could.

    The mode of one that others cannot reach, because it is not `is_open`, does not count.
    """
    if seen.st_uid not in (os.geteuid(), 0):
        return f"{place} belongs to another user (uid {seen.st_uid})."
    # Where every user has a group of its own, files are often writable for it.
    others = stat.S_IWOTH if seen.st_gid == os.getegid() else stat.S_IWGRP | stat.S_IWOTH
    if is_open and seen.st_mode & others:
        return f"other users may write to {place}. To use it: chmod go-w {shlex.quote(place)}"
    return None


def _unreadable(path: Path, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"Could not read the settings in {path}: {error}")


@lru_cache(maxsize=8)
def _parse(path: Path, content: bytes) -> dict[str, str]:
    # Loaded here: most machines have no settings file, and every command comes by this module.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        values: dict[str, Any] = tomllib.loads(content.decode())
    # Not only of tomllib: also of UTF-8, of too many digits and of impossible dates.
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    known = {key.name for key in KEYS}
    for name, value in values.items():
        if name not in known:
            raise InvalidInputError(
                f"Unknown setting {name!r} in {path}.",
                hint=f"Settings are: {', '.join(sorted(known))}.",
            )
        if not isinstance(value, str):
            raise InvalidInputError(
                f"The setting {name} in {path} must be text in quotes, not {value!r}."
            )
    return values
