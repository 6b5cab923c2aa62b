"""What SSH needs to reach workers: keys, known host keys, a jump host and timeouts.

Host keys are kept in our own file in OpenSSH's `known_hosts` format, so that the system's ssh can
use it and `ssh-keygen -R NAME -f FILE` removes an entry. The first key that a worker shows is the
one it must show from then on, unless its TPU publishes its keys (guest attributes): those are known
before the first connection.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.errors import HostKeyError, TpuctlError
from tpuctl.remote.connection import Timeouts
from tpuctl.remote.hosts import Host, worker_alias
from tpuctl.storage.local import LOCK_FLAGS, append_line, ensure_folder, locked

if TYPE_CHECKING:
    from tpuctl.remote.ssh import SharedSsh

SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))

_LOCK_WAIT_S = 10
_NAMED_KEYS = 8
_PUBLISHED = "guest-attributes"
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


class HostKeys:
    """Known host keys, one line each: a name, a type and a key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new: list[tuple[Host, str]] = []

    def find(self, host: Host) -> str | None:
        """Return the known type and key of a worker, or None for a new one."""
        return " ".join(self._entry(host).split()[:2]) or None

    def remember(self, host: Host, key: str) -> None:
        """Save a worker's first key; raises HostKeyError if a different one was saved since."""
        self._add([(host, key)])
        if (known := self.find(host)) and known != key:
            raise self.changed(host, fingerprint(key))
        self._new.append((host, fingerprint(key)))

    def changed(self, host: Host, shown: str) -> HostKeyError:
        """Make the error for a worker whose key, of which this is the fingerprint, is not known."""
        is_published = self._entry(host).endswith(_PUBLISHED)
        return HostKeyError(
            f"{host.label} shows a different host key than "
            f"{'its TPU publishes' if is_published else 'before'}: {shown}, not "
            f"{fingerprint(self.find(host) or '')}. Either it was reinstalled, or another machine "
            "answers in its place.",
            hint="If you know that the change is legitimate, remove the old key: "
            f"ssh-keygen -R '{_name_of(host)}' -f '{self.path}'",
        )

    def describe_new(self) -> str | None:
        """Describe the first keys that were saved since the last call, for the user to compare."""
        new, self._new = sorted(self._new, key=lambda pair: pair[0].index), []
        if not new:
            return None
        shown = [f"{host.label} {key}" for host, key in new[:_NAMED_KEYS]]
        more = f" and {len(new) - _NAMED_KEYS} more" if len(new) > _NAMED_KEYS else ""
        return f"First connection, so these host keys are trusted now: {', '.join(shown)}{more}."

    def remember_published(self, hosts: Iterable[tuple[Host, str]]) -> None:
        """Save the keys that workers have published, for workers without a known key."""
        self._add((host, f"{key} {_PUBLISHED}") for host, key in hosts)

    def _add(self, lines: Iterable[tuple[Host, str]]) -> None:
        ensure_folder(self.path.parent, private=True)
        lock, busy = self.path.with_suffix(".lock"), f"Another process is writing {self.path}."
        with locked(lock, wait_s=_LOCK_WAIT_S, busy=busy):
            # A file that exists keeps its mode, so it is created here and made private.
            os.close(os.open(self.path, LOCK_FLAGS, 0o600))
            self.path.chmod(0o600)
            for host, line in lines:
                if not self._entry(host):
                    append_line(self.path, f"{_name_of(host)} {line}", private=True)

    def _entry(self, host: Host) -> str:
        """Return the first entry of a worker, without its name; empty for a new one."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        named = (words for words in lines if len(words) >= 3 and _is_named(words[0], host))
        return " ".join(next(named, [])[1:4])


def _is_named(name: str, host: Host) -> bool:
    """Whether a name in known_hosts is that of a worker; `tpuctl ssh` may have hashed it."""
    wanted = _name_of(host).lower()
    if not name.startswith("|1|"):
        return name.lower() == wanted
    try:
        salt, digest = (base64.b64decode(part) for part in name[3:].split("|"))
    except ValueError:
        return False
    return hmac.digest(salt, wanted.encode(), "sha1") == digest


def _name_of(host: Host) -> str:
    return host.key_alias or host.place


def fingerprint(key: str) -> str:
    """Return the type and the fingerprint of a key's type and data, as ssh-keygen shows them."""
    kind, _, data = key.partition(" ")
    try:
        digest = hashlib.sha256(base64.b64decode(data)).digest()
    except binascii.Error:
        return f"{kind} (damaged)"
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


@dataclass(frozen=True)
class Access:
    """What SSH needs besides the worker; `login_hint` is the hint if no key is accepted.

    `on_warning` is told about host keys that are trusted because they are the first. `shared` is a
    connection that commands share, for a worker that accepts only one.
    """

    keys: tuple[Path, ...]
    host_keys: HostKeys
    jump: Host | None = None
    login_hint: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    on_warning: Callable[[str], None] = lambda text: None
    shared: "SharedSsh | None" = None


def learn_host_keys(api: TpuApi, node: Node, host_keys: HostKeys) -> None:
    """Save the host keys that a TPU publishes for its workers, if we may read them."""
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
        host_keys.remember_published((worker, key) for worker, key in pairs if key)


def published_key(attributes: Mapping[str, str]) -> str | None:
    """Find the best valid host key among a worker's guest attributes."""
    for kind in _KEY_TYPES:
        # Only the first word counts: anything after it could add a line to known_hosts.
        data = (attributes.get(kind, "").split() or [""])[0]
        try:
            inside = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            continue
        if inside[4 : 4 + len(kind)] == kind.encode():
            return f"{kind} {data}"
    return None
