"""How workers are reached: keys, host keys, a machine to jump over, and how long to wait."""

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tpuctl import settings
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.errors import TpuctlError
from tpuctl.remote.connection import Connection, Patience
from tpuctl.remote.find import worker_alias
from tpuctl.remote.here import HereConnector
from tpuctl.remote.host_keys import HostKeys, published_key
from tpuctl.remote.hosts import Host
from tpuctl.remote.keys import ensure_key, key_for_tpus, private_keys
from tpuctl.remote.os_login import login_hint

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
    patience: Patience = field(default_factory=Patience)


class Connector(Protocol):
    """Something that opens connections to workers; closes what they share at its end."""

    async def connect(self, host: Host) -> Connection:
        """Connect and authenticate; raises a TpuctlError that names the worker."""


def require_extra(*, for_folders: bool) -> None:
    """Raise MissingExtraError now, before anything is made that nothing could be done with."""
    import tpuctl.remote._ssh

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
    return Access((pair.path,), host_keys, jump, hint, Patience(new_key_s=wait_s))


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
        return nullcontext(HereConnector())
    from tpuctl.remote._ssh import open_ssh

    return open_ssh(access, workers)
