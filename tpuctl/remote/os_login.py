"""OS Login: where it is on, keys in the metadata count for nothing and user names are Google's."""

import configparser
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tpuctl.cloud.models import Node
from tpuctl.errors import UnknownLoginError

_OS_LOGIN = "enable-oslogin"
_LONGEST_USER = 32
_ROBOT = ".gserviceaccount.com"
_PROFILE = "gcloud compute os-login describe-profile"


def has_os_login(metadata: Mapping[str, str]) -> bool:
    """Whether the metadata of a TPU says that OS Login is on; a project may say so too, unseen."""
    return metadata.get(_OS_LOGIN, "").strip().upper() == "TRUE"


def login_user(node: Node, own: str) -> str:
    """The user to log in as where none is named: `own`, or with OS Login who Google says we are.

    Raises UnknownLoginError where that cannot be told from this machine.
    """
    if not has_os_login(node.metadata):
        return own
    user = os_login_user(os.environ)
    if user is None:
        raise UnknownLoginError(
            f"{node.name} in {node.zone} uses OS Login, and nothing here tells your user name.",
            hint=f"{_PROFILE} shows it (posixAccounts: username); then USER@{node.name}",
        )
    return user


def login_hint(node: Node, user: str, key: Path) -> str:
    """What to do when a TPU lets none of our keys in."""
    add = f"gcloud compute os-login ssh-keys add --key-file={key}.pub"
    if has_os_login(node.metadata):
        return (
            f"It uses OS Login, which looks at no key in the metadata: {add}; is {user} your name "
            f"there ({_PROFILE})? You need roles/compute.osLogin, from outside of the organisation "
            "roles/compute.osLoginExternalUser."
        )
    return (
        f"Its metadata has the key for {user}. Does the project enforce OS Login, which looks at "
        f"no key there? Then: {add}; and USER@{node.name} with the name from {_PROFILE}"
    )


def os_login_user(env: Mapping[str, str]) -> str | None:
    """Our name in OS Login, from a service account's key file or gcloud's account.

    None where neither tells; an organisation may have given another one.
    """
    if path := env.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return _user_of_key_file(Path(path))
    account = env.get("CLOUDSDK_CORE_ACCOUNT") or _gcloud_account(env)
    return user_of_email(account) if account else None


def user_of_email(email: str) -> str | None:
    """The name that OS Login makes of an address; a service account's comes from its number."""
    if "@" not in email or email.endswith(_ROBOT):
        return None
    return re.sub(r"[^a-z0-9]", "_", email.strip().lower())[:_LONGEST_USER]


def _user_of_key_file(path: Path) -> str | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    number = str(document.get("client_id", "")) if isinstance(document, dict) else ""
    is_robot = isinstance(document, dict) and document.get("type") == "service_account"
    return f"sa_{number}" if is_robot and number.isdigit() else None


def _gcloud_account(env: Mapping[str, str]) -> str | None:
    """The account of gcloud's active configuration, without starting gcloud."""
    folder = Path(env.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud"))
    try:
        name = env.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
        if not name:
            active = folder / "active_config"
            name = active.read_text(encoding="utf-8").strip() if active.is_file() else "default"
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(folder / "configurations" / f"config_{name}", encoding="utf-8")
        return parser.get("core", "account", fallback=None)
    except (OSError, ValueError, configparser.Error):
        return None
