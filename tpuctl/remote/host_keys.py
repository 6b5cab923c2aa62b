"""Host keys: the one a worker showed first is the one it must show ever after.

Where a TPU publishes the keys of its workers (guest attributes), these are known before the first
word. They are kept in a file of our own, in the format of OpenSSH's `known_hosts`, so that the
system's ssh can use it too and `ssh-keygen -R NAME -f FILE` forgets one.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from pathlib import Path

from tpuctl.errors import HostKeyError
from tpuctl.remote.hosts import Host
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
                raise changed(host, known, key, self.path)

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


def changed(
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
