"""How workers are reached: keys, host keys, a machine to jump over, and how long to wait."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl import settings
from tpuctl.remote.connection import Connection, Patience
from tpuctl.remote.host_keys import HostKeys
from tpuctl.remote.hosts import Host
from tpuctl.remote.keys import private_keys


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


def connector(access: Access, workers: int) -> AbstractAsyncContextManager[Connector]:
    """Open SSH for so many workers; raises MissingExtraError without asyncssh."""
    from tpuctl.remote._ssh import open_ssh

    return open_ssh(access, workers)
