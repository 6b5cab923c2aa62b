"""Every setting of tpuctl: its value, and where that came from.

A flag wins over `TPUCTL_*`, which wins over the nearest `tpuctl.toml` upwards of the working
folder, which wins over the user's own `config.toml`, which wins over the default.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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
    """A setting that exists: its name, its meaning, its default."""

    name: str
    meaning: str
    default: str | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"TPUCTL_{self.name.upper()}"


KEYS = (
    Key("project", "Google Cloud project of your TPUs"),
    Key("zone", "zone to use when none is given"),
    Key("bucket", "bucket with your data, to warn of traffic between regions"),
    Key("cache_dir", "where demo photographs and compilations are kept"),
    Key("state_dir", "where the journal of TPUs that we asked for is kept"),
    Key("tpu_endpoint", "address of a Cloud TPU emulator, instead of Google's"),
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
    """All settings in force, and the files that were read for them."""

    settings: tuple[Setting, ...]
    files: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Which files were read."""
        return tuple(f"read {path}" for path in self.files) or ("no settings file was found",)

    def __getitem__(self, name: str) -> str | None:
        return next(setting.value for setting in self.settings if setting.name == name)


def user_config_dir(env: Mapping[str, str]) -> Path:
    """Where the user's own configuration lives (XDG base directories)."""
    return Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tpuctl"


def default_cache_dir(env: Mapping[str, str]) -> Path:
    """Where things that can be made again are kept (XDG base directories)."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpuctl"


def default_state_dir(env: Mapping[str, str]) -> Path:
    """Where things that must not be lost are kept (XDG base directories)."""
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tpuctl"


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
    files = [(path, _read(path)) for path in paths if path and path.is_file()]
    defaults = {
        "cache_dir": str(default_cache_dir(env)),
        "state_dir": str(default_state_dir(env)),
    }
    return Settings(
        tuple(_resolve(key, flags or {}, env, files, defaults) for key in KEYS),
        tuple(str(path) for path, _ in files),
    )


def cache_dir() -> Path:
    """The folder for things that can be made again."""
    return Path(load_settings()["cache_dir"] or "")


def state_dir() -> Path:
    """The folder for things that must not be lost."""
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
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, str]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError(f"Could not read the settings in {path}: {error}") from error
    known = {key.name for key in KEYS}
    for name, value in values.items():
        if name not in known:
            raise InvalidInputError(
                f"{path} sets {name!r}, which is no setting of tpuctl.",
                hint=f"Settings are: {', '.join(sorted(known))}.",
            )
        if not isinstance(value, str):
            raise InvalidInputError(f"{path} sets {name} to {value!r}, which is not text.")
    return values
