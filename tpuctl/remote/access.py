"""How workers are reached: keys, host keys, a machine to jump over, and how long to wait."""

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.remote.connection import Connection, Patience
from tpuctl.remote.here import HereConnector
from tpuctl.remote.host_keys import HostKeys
from tpuctl.remote.hosts import Host
from tpuctl.remote.keys import ensure_key, key_for_tpus, private_keys

NEW_KEY_S = 90.0
"""How long the workers of a TPU may take to hear of a new key from their metadata server."""


@dataclass(frozen=True)
class Access:
    """Everything that SSH needs to know besides the worker itself."""

    keys: tuple[Path, ...]
    host_keys: HostKeys
    jump: Host | None = None
    patience: Patience = field(default_factory=Patience)


class Connector(Protocol):
    """Something that opens connections to workers; closes what they share at its end."""

    async def connect(self, host: Host) -> Connection:
        """Connect and authenticate; raises a TpuctlError that names the worker."""


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
    return Access((pair.path,), host_keys, jump, Patience(new_key_s=wait_s))


def connector(access: Access | None, workers: int) -> AbstractAsyncContextManager[Connector]:
    """Open SSH for so many workers; raises MissingExtraError without asyncssh.

    Without an access the only worker is this machine.
    """
    if access is None:
        return nullcontext(HereConnector())
    from tpuctl.remote._ssh import open_ssh

    return open_ssh(access, workers)
