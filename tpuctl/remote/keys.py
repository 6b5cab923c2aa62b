"""SSH keys and user names: which ones we have, and how a TPU is made to accept them.

A TPU takes keys from its metadata, unless OS Login is on: then metadata keys are ignored, and user
names are assigned by Google.
"""

import configparser
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl import settings
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
from tpuctl.remote.access import Access, HostKeys, learn_host_keys
from tpuctl.remote.connection import Timeouts
from tpuctl.remote.hosts import Host
from tpuctl.storage.local import ensure_folder, locked, remove_stale_parts, write_atomically

NEW_KEY_S = 90.0
"""How long a TPU's workers may take to get a new key from their metadata server."""

GOOGLE_KEY = "google_compute_engine"
OWN_KEY = "id_tpuctl"

_OS_LOGIN = "enable-oslogin"
_LONGEST_USER = 32
_SERVICE_ACCOUNT = ".gserviceaccount.com"
_PROFILE = "gcloud compute os-login describe-profile"
_SSH_KEYS = "ssh-keys"
_OPENSSH_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
# A server disconnects after six attempts, and the ssh-agent's keys need some of them.
_MAX_KEYS = 4
_UPDATE_S = 120.0


def has_os_login(metadata: Mapping[str, str]) -> bool:
    """Whether a TPU's metadata turns OS Login on; its project may, too, which is not visible."""
    return metadata.get(_OS_LOGIN, "").strip().upper() == "TRUE"


def login_user(node: Node, own: str) -> str:
    """Return the default user to log in as: `own`, or with OS Login the name assigned by Google.

    Raises UnknownLoginError if nothing on this machine reveals that name.
    """
    if not has_os_login(node.metadata):
        return own
    user = os_login_user(os.environ)
    if user is None:
        raise UnknownLoginError(
            f"{node.name} in {node.zone} uses OS Login, and your OS Login user name is unknown.",
            hint=f"Find it with {_PROFILE} (posixAccounts: username), then use USER@{node.name}",
        )
    return user


def login_hint(node: Node, user: str, key: Path) -> str:
    """Return the hint for a TPU that accepts none of our keys."""
    add = f"gcloud compute os-login ssh-keys add --key-file={key}.pub"
    if has_os_login(node.metadata):
        return (
            f"It uses OS Login, which ignores keys in the metadata. Add yours: {add}; check that "
            f"{user} is your user name ({_PROFILE}) and that you have roles/compute.osLogin, or "
            "from outside the organization roles/compute.osLoginExternalUser."
        )
    return (
        f"Its metadata has the key for {user}. If the project enforces OS Login, which ignores "
        f"that key: {add}; then use USER@{node.name} with the name from {_PROFILE}"
    )


def os_login_user(env: Mapping[str, str]) -> str | None:
    """Derive our OS Login name from a service account's key file or gcloud's account.

    An organization may have assigned a different one.
    """
    if path := env.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return _user_of_key_file(Path(path))
    account = env.get("CLOUDSDK_CORE_ACCOUNT") or _gcloud_account(env)
    return user_of_email(account) if account else None


def user_of_email(email: str) -> str | None:
    """Derive the OS Login name of an e-mail address; None for a service account's."""
    if "@" not in email or email.endswith(_SERVICE_ACCOUNT):
        return None
    return re.sub(r"[^a-z0-9]", "_", email.strip().lower())[:_LONGEST_USER]


def _user_of_key_file(path: Path) -> str | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("type") != "service_account":
        return None
    number = str(document.get("client_id", ""))
    return f"sa_{number}" if number.isdigit() else None


def _gcloud_account(env: Mapping[str, str]) -> str | None:
    """Read the account of gcloud's active configuration; starting gcloud would take a second."""
    folder = Path(env.get("CLOUDSDK_CONFIG") or settings.home() / ".config" / "gcloud")
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


@dataclass(frozen=True)
class KeyPair:
    """A private key's file, and its public key as a line."""

    path: Path
    public: str


def open_access(
    *, on_warning: Callable[[str], None], key: Path | None = None, jump: Host | None = None
) -> Access:
    """Collect what is needed to reach machines of the user."""
    state = settings.state_dir()
    host_keys = HostKeys(state / "known_hosts")
    return Access(private_keys(state, key), host_keys, jump, on_warning=on_warning)


def open_access_to(
    api: TpuApi,
    node: Node,
    user: str,
    *,
    on_warning: Callable[[str], None],
    key: Path | None = None,
    jump: Host | None = None,
) -> Access:
    """Collect what is needed to reach a TPU, and add our key to its metadata.

    Raises what the API raises, and InvalidInputError for an unusable key.
    """
    state = settings.state_dir()
    pair = key_for_tpus(state, key)
    wait_s = NEW_KEY_S if ensure_key(api, node, user, pair) else 0.0
    host_keys = HostKeys(state / "known_hosts")
    learn_host_keys(api, node, host_keys)
    hint = login_hint(node, user, pair.path)
    return Access((pair.path,), host_keys, jump, hint, Timeouts(new_key_s=wait_s), on_warning)


def private_keys(state_dir: Path, chosen: Path | None = None) -> tuple[Path, ...]:
    """List the private keys to try, best first; only `chosen` if given."""
    if chosen is not None:
        return (chosen.expanduser(),)
    candidates = (*_tpu_keys(state_dir), *(_ssh_folder() / name for name in _OPENSSH_KEYS))
    return tuple(path for path in candidates if path.is_file())[:_MAX_KEYS]


def key_for_tpus(state_dir: Path, chosen: Path | None = None) -> KeyPair:
    """Return the key to add to TPUs: the chosen one, gcloud's, or our own, created if missing.

    Raises InvalidInputError for a chosen key without its public key.
    """
    for pair in _key_pairs((chosen.expanduser(),) if chosen else _tpu_keys(state_dir)):
        return pair
    if chosen:
        raise InvalidInputError(
            f"Both {chosen} and {chosen}.pub are needed, and one is missing.",
            hint=f"Create the public key: ssh-keygen -y -f {chosen} > {chosen}.pub",
        )
    return _create_key(_own_key(state_dir))


def own_key(state_dir: Path, chosen: Path | None = None) -> KeyPair:
    """Return the chosen key, or our own ed25519 key, created if missing: never an RSA key."""
    if chosen:
        return key_for_tpus(state_dir, chosen)
    path = _own_key(state_dir)
    return next(_key_pairs((path,)), None) or _create_key(path)


def ensure_key(api: TpuApi, node: Node, user: str, key: KeyPair) -> bool:
    """Add a key to a TPU's metadata; returns whether it was new.

    With OS Login on, metadata keys are ignored, so nothing is changed.
    """
    if has_os_login(node.metadata) or knows_key(node.metadata, user, key):
        return False
    try:
        operation = api.set_metadata(node, with_key(node.metadata, user, key))
    except (TryAgainError, AlreadyExistsError):
        # Another update is running, perhaps that of another tpuctl command with the same key.
        now = api.get_node(node.name, zone=node.zone).metadata.get(_SSH_KEYS, "")
        if f"{user}:{key.public}" not in now:
            raise
        return True
    polling = Polling(api.clock, timeout_s=_UPDATE_S)
    while not operation.done:
        polling.pause(f"{node.name} in {node.zone} had not accepted our key", hint="Try again.")
        operation = api.get_operation(operation.name)
    if operation.error:
        raise operation.error
    return True


def knows_key(metadata: Mapping[str, str], user: str, key: KeyPair) -> bool:
    """Whether a TPU's metadata has a key for a user."""
    wanted = f"{user}:{key.public}".split()[:2]
    return wanted in (line.split()[:2] for line in metadata.get(_SSH_KEYS, "").splitlines())


def with_key(metadata: Mapping[str, str], user: str, key: KeyPair) -> dict[str, str]:
    """Add a key for a user to a TPU's metadata."""
    if knows_key(metadata, user, key):
        return dict(metadata)
    # An update replaces all metadata, so everything else must be sent again unchanged.
    lines = [line for line in metadata.get(_SSH_KEYS, "").splitlines() if line.strip()]
    return {**metadata, _SSH_KEYS: "\n".join([*lines, f"{user}:{key.public}"])}


def first_key(state_dir: Path, user: str) -> dict[str, str]:
    """Return metadata that gives a new TPU our key, so that the first login does not wait for it.

    Empty if there is no key and none can be created: the first command will report that.
    """
    try:
        return with_key({}, user, key_for_tpus(state_dir))
    except (MissingExtraError, WriteError, InvalidInputError):
        return {}


def known_key(state_dir: Path, node: Node, user: str) -> KeyPair | None:
    """Find our key that a TPU accepts already; creates and changes nothing."""
    pairs = _key_pairs(_tpu_keys(state_dir))
    return next((pair for pair in pairs if knows_key(node.metadata, user, pair)), None)


def _ssh_folder() -> Path:
    return settings.home() / ".ssh"


def _own_key(state_dir: Path) -> Path:
    return state_dir / "ssh" / OWN_KEY


def _tpu_keys(state_dir: Path) -> tuple[Path, Path]:
    return _ssh_folder() / GOOGLE_KEY, _own_key(state_dir)


def _key_pairs(paths: Iterable[Path]) -> Iterator[KeyPair]:
    """Read the keys among the paths that have both halves."""
    for path in paths:
        public = path.with_name(f"{path.name}.pub")
        if path.is_file() and public.is_file():
            words = public.read_text(encoding="utf-8", errors="replace").split()
            if len(words) < 2:
                raise InvalidInputError(f"{public} is not a public key.")
            yield KeyPair(path, " ".join(words[:3]))


def _create_key(path: Path) -> KeyPair:
    """Create a key that only its owner can read, unless another process has just done so."""
    from tpuctl.remote._private_keys import new_key

    ensure_folder(path.parent, private=True)
    # Two at once would leave the public half of one beside the private half of the other.
    with locked(path.parent / "lock", wait_s=60, busy=f"Another command creates {path}."):
        if not (pair := next(_key_pairs((path,)), None)):
            remove_stale_parts(path.parent)
            private, public = new_key()
            pair = KeyPair(path, f"{public} tpuctl")
            write_atomically(path.with_name(f"{path.name}.pub"), f"{pair.public}\n", private=True)
            write_atomically(path, private, private=True)
    return pair
