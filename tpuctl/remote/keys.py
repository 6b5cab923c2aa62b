"""OS Login: where it is on, keys in the metadata count for nothing and user names are Google's."""

import configparser
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.cloud.retry import Polling
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    MissingExtraError,
    TryAgainError,
    UnknownLoginError,
    WriteError,
)
from tpuctl.storage.local import ensure_folder, write_atomically

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


GOOGLE_KEY = "google_compute_engine"
OWN_KEY = "id_tpuctl"
_USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
# A server hangs up after six attempts, and the agent's keys want their turn too.
_OFFERED = 4
_UPDATE_S = 120.0
_SSH_KEYS = "ssh-keys"


@dataclass(frozen=True)
class KeyPair:
    """A private key's file, and its public key as a line."""

    path: Path
    public: str


def private_keys(state_dir: Path, chosen: Path | None = None) -> tuple[Path, ...]:
    """The private keys that exist here, the best one first; `chosen` leaves no choice."""
    if chosen is not None:
        return (chosen.expanduser(),)
    return tuple(path for path in _candidates(state_dir) if path.is_file())[:_OFFERED]


def key_for_tpus(state_dir: Path, chosen: Path | None = None) -> KeyPair:
    """The key that TPUs are told to accept: the chosen one, gcloud's, or our own, made if need be.

    Raises InvalidInputError for a chosen one without its public half.
    """
    for path in (chosen.expanduser(),) if chosen else _ours(state_dir):
        public = path.with_name(f"{path.name}.pub")
        if path.is_file() and public.is_file():
            return KeyPair(path, _line(public))
    if chosen:
        raise InvalidInputError(
            f"{chosen} and {chosen}.pub must both be there.",
            hint=f"Write the public one: ssh-keygen -y -f {chosen} > {chosen}.pub",
        )
    return _make(_own(state_dir))


def ensure_key(api: TpuApi, node: Node, user: str, key: KeyPair) -> bool:
    """Let a TPU accept a key for a user, through its metadata; whether that was news to it.

    With OS Login on, metadata keys are not looked at, so nothing is changed.
    """
    if has_os_login(node.metadata) or knows_key(node.metadata, user, key):
        return False
    wanted, metadata = f"{user}:{key.public}", with_key(node.metadata, user, key)
    try:
        operation = api.set_metadata(node, metadata)
    except (TryAgainError, AlreadyExistsError):
        # Another update is under way, and perhaps for another command of ours.
        if wanted not in api.get_node(node.name, zone=node.zone).metadata.get(_SSH_KEYS, ""):
            raise
        return True
    polling = Polling(api.clock, timeout_s=_UPDATE_S)
    while not operation.done:
        polling.pause(f"{node.name} in {node.zone} had not taken our key", hint="Try again.")
        operation = api.get_operation(operation.name)
    if operation.error:
        raise operation.error
    return True


def knows_key(metadata: Mapping[str, str], user: str, key: KeyPair) -> bool:
    """Whether a TPU with this metadata lets a user in with a key."""
    wanted = f"{user}:{key.public}".split()[:2]
    return wanted in (line.split()[:2] for line in metadata.get(_SSH_KEYS, "").splitlines())


def with_key(metadata: Mapping[str, str], user: str, key: KeyPair) -> dict[str, str]:
    """The metadata that lets a user in with a key as well."""
    if knows_key(metadata, user, key):
        return dict(metadata)
    lines = [line for line in metadata.get(_SSH_KEYS, "").splitlines() if line.strip()]
    return {**metadata, _SSH_KEYS: "\n".join([*lines, f"{user}:{key.public}"])}


def first_key(state_dir: Path, user: str) -> dict[str, str]:
    """The metadata by which a new TPU knows our key from the start, so that nobody waits for it.

    Empty where there is no key and none can be made: then the first command sees to it.
    """
    try:
        return with_key({}, user, key_for_tpus(state_dir))
    except (MissingExtraError, WriteError, InvalidInputError):
        return {}


def known_key(state_dir: Path, node: Node, user: str) -> KeyPair | None:
    """A key that is here and that a TPU accepts already; nothing is made or changed."""
    for path in _ours(state_dir):
        public = path.with_name(f"{path.name}.pub")
        if path.is_file() and public.is_file():
            pair = KeyPair(path, _line(public))
            if knows_key(node.metadata, user, pair):
                return pair
    return None


def _ours(state_dir: Path) -> tuple[Path, Path]:
    return Path(os.path.expanduser("~/.ssh")) / GOOGLE_KEY, _own(state_dir)


def _candidates(state_dir: Path) -> Iterator[Path]:
    home = Path(os.path.expanduser("~")) / ".ssh"
    yield home / GOOGLE_KEY
    yield _own(state_dir)
    yield from (home / name for name in _USUAL)


def _own(state_dir: Path) -> Path:
    return state_dir / "ssh" / OWN_KEY


def _line(public: Path) -> str:
    words = public.read_text(encoding="utf-8", errors="replace").split()
    if len(words) < 2:
        raise InvalidInputError(f"{public} is no public key.")
    return " ".join(words[:3])


def _make(path: Path) -> KeyPair:
    """Make a key that only its owner may read."""
    from tpuctl.remote._asyncssh import new_key

    ensure_folder(path.parent)
    path.parent.chmod(0o700)
    private, public = new_key()
    write_atomically(path.with_name(f"{path.name}.pub"), f"{public} tpuctl\n")
    write_atomically(path, private)
    path.chmod(0o600)
    return KeyPair(path, f"{public} tpuctl")
