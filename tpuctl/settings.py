"""Every setting of tpuctl, and where its value came from.

In order of precedence: a flag, `TPUCTL_*`, the nearest `tpuctl.toml` in the working folder or above
it, the user's `config.toml`, the default.
"""

import getpass
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.outcome import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT_FILE = "tpuctl.toml"


@dataclass(frozen=True)
class Key:
    """A setting: its name, its meaning, its default."""

    name: str
    meaning: str
    default: str | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"TPUCTL_{self.name.upper()}"


KEYS = (
    Key("project", "Google Cloud project of your TPUs"),
    Key("zone", "default zone"),
    Key("bucket", "bucket with your data, to warn about traffic between regions"),
    Key("cache_dir", "folder for demo images, compilations and copies of data sets"),
    Key("state_dir", "folder for the journal of requested TPUs, SSH keys and the emulator"),
    Key("tpu_endpoint", "address of a Cloud TPU emulator to use instead of Google's API"),
)


@dataclass(frozen=True)
class Setting:
    """One value, and where it came from."""

    name: str
    value: str | None
    source: str
    meaning: str


@dataclass(frozen=True)
class Settings(Outcome):
    """All settings in effect, and the files they were read from."""

    settings: tuple[Setting, ...]
    files: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The files that were read."""
        return tuple(f"read {path}" for path in self.files) or ("no settings file was found",)

    def __getitem__(self, name: str) -> str | None:
        return next(setting.value for setting in self.settings if setting.name == name)


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


def user_config_dir(env: Mapping[str, str]) -> Path:
    """Folder of the user's configuration (XDG base directories)."""
    return Path(env.get("XDG_CONFIG_HOME") or home() / ".config") / "tpuctl"


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """Folder for files that can be recreated (XDG base directories)."""
    return Path(env.get("XDG_CACHE_HOME") or home() / ".cache") / "tpuctl"


def default_state_dir(env: Mapping[str, str]) -> Path:
    """Folder for files that must not be lost (XDG base directories)."""
    return Path(env.get("XDG_STATE_HOME") or home() / ".local" / "state") / "tpuctl"


def load_settings(
    flags: Mapping[str, str | None] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Collect every setting from flags, environment, project file and user file.

    Raises InvalidInputError for a file that is not TOML, an unknown key, or a value that is not
    text.
    """
    env = os.environ if env is None else env
    paths = (_find_project_file(cwd or Path.cwd()), user_config_dir(env) / "config.toml")
    files = [(path, _read(path)) for path in paths if path and os.path.isfile(path)]
    defaults = {
        "cache_dir": str(default_cache_dir(env)),
        "state_dir": str(default_state_dir(env)),
    }
    return Settings(
        tuple(_resolve(key, flags or {}, env, files, defaults) for key in KEYS),
        tuple(str(path) for path, _ in files),
    )


def cache_dir() -> Path:
    """Return the folder for files that can be recreated."""
    return Path(load_settings()["cache_dir"] or "")


def state_dir() -> Path:
    """Return the folder for files that must not be lost."""
    return Path(load_settings()["state_dir"] or "")


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
    default = key.default or defaults.get(key.name)
    return Setting(key.name, default, "default" if default else "not set", key.meaning)


def _find_project_file(start: Path) -> Path | None:
    candidates = (folder / PROJECT_FILE for folder in (start, *start.parents))
    # Path.is_file() raises in a folder that we may not search.
    return next((path for path in candidates if os.path.isfile(path)), None)


def _read(path: Path) -> dict[str, str]:
    try:
        seen = path.stat()
        return _parse(path, seen.st_mtime_ns, seen.st_size, seen.st_ino)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(f"Could not read the settings in {path}: {error}") from error


# A command asks for settings in many places; a file is read again only if it has changed.
@lru_cache(maxsize=8)
def _parse(path: Path, mtime_ns: int, size: int, inode: int) -> dict[str, str]:
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
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
