"""The login for Kaggle, found where the official command line looks, and the address of Kaggle."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tpuctl.cloud.endpoint import is_loopback
from tpuctl.codec import read_json, read_limited
from tpuctl.errors import InvalidInputError, NotLoggedInError
from tpuctl.settings import home, load_settings

KAGGLE = "https://api.kaggle.com/v1"
HOW_TO_LOG_IN = (
    "Run kaggle auth login (pip install kaggle), or put a token from "
    "https://www.kaggle.com/settings into ~/.kaggle/access_token"
)
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Login:
    """A user's key or token; `username` is empty where only Kaggle knows it."""

    source: str
    secret: str = field(repr=False)
    username: str = ""
    is_key: bool = False


@dataclass(frozen=True)
class Endpoint:
    """Where requests go; an emulator's address holds its secret, and needs no login."""

    base: str = field(repr=False)
    is_local: bool = False

    @property
    def shown(self) -> str:
        """The address without a secret, which tells whose runs are meant."""
        return f"http://{urlsplit(self.base).netloc}" if self.is_local else self.base


def find_endpoint() -> Endpoint:
    """Read the address; raises InvalidInputError for one that is not on this machine."""
    text = load_settings()["kaggle_endpoint"]
    if not text:
        return Endpoint(KAGGLE)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        raise InvalidInputError(
            "Cannot use the Kaggle endpoint: it is not the http address of an emulator here.",
            hint="Take the line that `tpuctl emulator start` prints, or unset "
            "TPUCTL_KAGGLE_ENDPOINT to use Kaggle.",
        )
    return Endpoint(f"{text.rstrip('/')}/api/v1", is_local=True)


def find_login(endpoint: Endpoint, env: Mapping[str, str] = os.environ) -> Login:
    """Find a login, for an emulator its secret; raises NotLoggedInError."""
    if endpoint.is_local:
        return Login("the emulator", urlsplit(endpoint.base).path.split("/")[1])
    found = _token(env) or _key(env) or _oauth()
    if not found:
        raise NotLoggedInError("Not logged in to Kaggle on this machine.", hint=HOW_TO_LOG_IN)
    return found


def _token(env: Mapping[str, str]) -> Login | None:
    if text := env.get("KAGGLE_API_TOKEN"):
        named = _read(Path(text)) if os.path.isabs(text) else None
        return Login("KAGGLE_API_TOKEN", named or text)
    for name in ("access_token", "access_token.txt"):
        path = home() / ".kaggle" / name
        if text := _read(path):
            return Login(str(path), text)
    return None


def _key(env: Mapping[str, str]) -> Login | None:
    username, key = env.get("KAGGLE_USERNAME"), env.get("KAGGLE_KEY")
    if username and key:
        return Login("KAGGLE_USERNAME and KAGGLE_KEY", key, username, is_key=True)
    usual = home() / ".kaggle"
    config = Path(env.get("XDG_CONFIG_HOME") or home() / ".config") / "kaggle"
    folder = Path(env.get("KAGGLE_CONFIG_DIR") or (usual if usual.is_dir() else config))
    known = _read_object(folder / "kaggle.json")
    if known.get("username") and known.get("key"):
        path = str(folder / "kaggle.json")
        return Login(path, str(known["key"]), str(known["username"]), is_key=True)
    return None


def _oauth() -> Login | None:
    path = home() / ".kaggle" / "credentials.json"
    known = _read_object(path)
    if not known.get("access_token"):
        return None
    try:
        ends = datetime.fromisoformat(str(known["access_token_expiration"]))
        is_over = ends <= datetime.now(timezone.utc)
    except (KeyError, ValueError, TypeError):
        is_over = False
    if is_over:
        raise NotLoggedInError(
            f"The Kaggle login in {path} has expired.", hint="kaggle auth print-access-token"
        )
    return Login(str(path), str(known["access_token"]), str(known.get("username") or ""))


def _read(path: Path) -> str:
    try:
        return read_limited(path, _MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return ""


def _read_object(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, json.JSONDecodeError, ValueError) as error:
        raise InvalidInputError(f"Could not read the Kaggle login {path}.") from error
    return known if isinstance(known, dict) else {}
