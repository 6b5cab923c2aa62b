"""Host keys: the one a worker showed first is the one it must show ever after.

They are kept in a file of our own, in the format of OpenSSH's `known_hosts`, so that the system's
ssh can use it too and `ssh-keygen -R NAME -f FILE` forgets one.
"""

from pathlib import Path

from tpuctl.errors import HostKeyError
from tpuctl.remote.hosts import Host
from tpuctl.storage.local import append_line, ensure_folder, locked

_LOCK_WAIT_S = 10


class HostKeys:
    """The host keys we know, one line each: a name, a type and a key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, host: Host) -> str | None:
        """The type and key that this worker showed before, or None when it is new."""
        return self._read().get(name_of(host))

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

    def _read(self) -> dict[str, str]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
        return {words[0]: " ".join(words[1:3]) for words in lines if len(words) >= 3}


def name_of(host: Host) -> str:
    """Under which name a worker's key is kept: the TPU's id and its number, or the address."""
    return host.key_alias or host.place


def changed(host: Host, known: str, shown: str, path: Path) -> HostKeyError:
    """The error for a key that is not the one we know."""
    return HostKeyError(
        f"{host.label} shows another host key than before: {_short(shown)}, not {_short(known)}. "
        "Either it was installed anew, or somebody else answers in its place.",
        hint=f"If you know why, forget the old one: ssh-keygen -R '{name_of(host)}' -f '{path}'",
    )


def _short(key: str) -> str:
    kind, _, data = key.partition(" ")
    return f"{kind} …{data[-12:]}"
