"""Host keys: the one a worker showed first is the one it must show ever after.

Where a TPU publishes the keys of its workers (guest attributes), these are known before the first
word. They are kept in a file of our own, in the format of OpenSSH's `known_hosts`, so that the
system's ssh can use it too and `ssh-keygen -R NAME -f FILE` forgets one.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.errors import HostKeyError, TpuctlError
from tpuctl.remote.connection import Connection, LocalConnector, Timeouts
from tpuctl.remote.hosts import Host, worker_alias
from tpuctl.remote.keys import ensure_key, key_for_tpus, login_hint, private_keys
from tpuctl.storage.local import append_line, ensure_folder, locked

_LOCK_WAIT_S = 10
_PUBLISHED = "guest-attributes"
_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


class HostKeys:
    """The host keys we know, one line each: a name, a type and a key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, host: Host) -> str | None:
        """The type and key that this worker showed before, or None when it is new."""
        known = self._read().get(name_of(host))
        return " ".join(known.split()[:2]) if known else None

    def remember(self, host: Host, key: str) -> None:
        """Keep the first key of a worker; raises HostKeyError when another has been kept since."""
        ensure_folder(self.path.parent)
        lock = self.path.with_suffix(".lock")
        with locked(lock, wait_s=_LOCK_WAIT_S, busy=f"Somebody else writes {self.path}."):
            known = self.find(host)
            if known is None:
                append_line(self.path, f"{name_of(host)} {key}")
            elif known != key:
                raise host_key_changed(host, known, key, self.path)

    def learn(self, hosts: Iterable[tuple[Host, str]]) -> None:
        """Keep what workers have published, where we know nothing of them yet."""
        ensure_folder(self.path.parent)
        lock = self.path.with_suffix(".lock")
        with locked(lock, wait_s=_LOCK_WAIT_S, busy=f"Somebody else writes {self.path}."):
            known = self._read()
            for host, key in hosts:
                if name_of(host) not in known:
                    append_line(self.path, f"{name_of(host)} {key} {_PUBLISHED}")

    def is_published(self, host: Host) -> bool:
        """Whether the key we know is the one that was published."""
        return self._read().get(name_of(host), "").endswith(_PUBLISHED)

    def _read(self) -> dict[str, str]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {words[0]: " ".join(words[1:4]) for words in lines if len(words) >= 3}


def name_of(host: Host) -> str:
    """Under which name a worker's key is kept: the TPU's id and its number, or the address."""
    return host.key_alias or host.place


def published_key(attributes: Mapping[str, str]) -> str | None:
    """The host key among what a worker has published; None for none, and for what is no key."""
    for kind in _KINDS:
        # Whatever follows the first word could become a line of its own in known_hosts.
        data = (attributes.get(kind, "").split() or [""])[0]
        try:
            inside = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            continue
        if inside[4 : 4 + len(kind)] == kind.encode():
            return f"{kind} {data}"
    return None


def host_key_changed(
    host: Host, known: str, shown: str, path: Path, *, is_published: bool = False
) -> HostKeyError:
    """The error for a key that is not the one we know."""
    what = "its TPU publishes" if is_published else "before"
    return HostKeyError(
        f"{host.label} shows another host key than {what}: {_short(shown)}, not {_short(known)}. "
        "Either it was installed anew, or somebody else answers in its place.",
        hint=f"If you know why, forget the old one: ssh-keygen -R '{name_of(host)}' -f '{path}'",
    )


def _short(key: str) -> str:
    kind, _, data = key.partition(" ")
    return f"{kind} …{data[-12:]}"


NEW_KEY_S = 90.0
"""How long the workers of a TPU may take to hear of a new key from their metadata server."""


@dataclass(frozen=True)
class Access:
    """Everything that SSH needs to know besides the worker itself.

    `login_hint` is what to do when none of the keys is accepted.
    """

    keys: tuple[Path, ...]
    host_keys: HostKeys
    jump: Host | None = None
    login_hint: str | None = None
    patience: Timeouts = field(default_factory=Timeouts)


class Connector(Protocol):
    """Something that opens connections to workers; closes what they share at its end."""

    async def connect(self, host: Host) -> Connection:
        """Connect and authenticate; raises a TpuctlError that names the worker."""


def require_extra(*, for_folders: bool) -> None:
    """Raise MissingExtraError now, before anything is made that nothing could be done with."""
    import tpuctl.remote._asyncssh

    if for_folders:
        import tpuctl.remote._ignore  # noqa: F401


def open_access(*, key: Path | None = None, jump: Host | None = None) -> Access:
    """Collect what the settings and the user's home say."""
    state = settings.state_dir()
    return Access(private_keys(state, key), HostKeys(state / "known_hosts"), jump)


def open_access_to(
    api: TpuApi, node: Node, user: str, *, key: Path | None = None, jump: Host | None = None
) -> Access:
    """Collect what is needed to reach a TPU of ours, and let it accept our key.

    Raises what the API raises, and InvalidInputError for a key that cannot be used.
    """
    state = settings.state_dir()
    pair = key_for_tpus(state, key)
    wait_s = NEW_KEY_S if ensure_key(api, node, user, pair) else 0.0
    host_keys = HostKeys(state / "known_hosts")
    learn_host_keys(api, node, host_keys)
    hint = login_hint(node, user, pair.path)
    return Access((pair.path,), host_keys, jump, hint, Timeouts(new_key_s=wait_s))


def learn_host_keys(api: TpuApi, node: Node, host_keys: HostKeys) -> None:
    """Know the workers' keys before the first word, where the TPU publishes them.

    Where it does not, or we may not read that, the first key that a worker shows is kept.
    """
    workers = [Host(i, "", "", key_alias=worker_alias(node, i)) for i in range(len(node.endpoints))]
    unknown = [worker for worker in workers if host_keys.find(worker) is None]
    if not unknown:
        return
    try:
        published = api.guest_attributes(node, "hostkeys/")
    except TpuctlError:
        return
    if published:
        pairs = ((worker, published_key(published[worker.index])) for worker in unknown)
        host_keys.learn((worker, key) for worker, key in pairs if key)


def connector(access: Access | None, workers: int) -> AbstractAsyncContextManager[Connector]:
    """Open SSH for so many workers; raises MissingExtraError without asyncssh.

    Without an access the only worker is this machine.
    """
    if access is None:
        return nullcontext(LocalConnector())
    from tpuctl.remote._asyncssh import open_ssh

    return open_ssh(access, workers)
