"""SSH connections to workers, made with asyncssh."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpuctl.errors import (
    InvalidInputError,
    MissingExtraError,
    TpuctlError,
    WorkerAuthError,
    WorkerError,
    WorkerUnreachableError,
)
from tpuctl.remote.access import Access, HostKeys, host_key_changed
from tpuctl.remote.connection import connection_lost
from tpuctl.remote.hosts import Host


@contextmanager
def _without_a_compiler() -> Iterator[None]:
    """Where no program is found by its name.

    asyncssh looks for two libraries it can do without, and for that Python's `find_library` has
    gcc and ld link something whenever the loader's own list does not know them.
    """
    before = os.environ.get("PATH")
    os.environ["PATH"] = os.devnull
    try:
        yield
    finally:
        del os.environ["PATH"]
        if before is not None:
            os.environ["PATH"] = before


try:
    with _without_a_compiler():
        import asyncssh
except ModuleNotFoundError as error:
    raise MissingExtraError("Reaching a worker", extra="ssh", module="asyncssh") from error


if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit


# Handshakes are work for this side's processor; more at a time only time out together.
_HANDSHAKES = 24
_NEW_KEY_POLL_S = 1.0
_MEMORY_BYTES = 64 << 20
_WINDOW_BYTES = (1 << 17, 1 << 21)
_COMPLAINT_BYTES = 4096
_RSA = ("rsa-sha2-512", "rsa-sha2-256")
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
          "ssh-rsa")  # fmt: skip
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com",
            "aes256-ctr", "aes128-ctr")  # fmt: skip


class _Client(asyncssh.SSHClient):
    """Judges the host key, and remembers why a connection ended."""

    def __init__(self, host: Host, host_keys: HostKeys) -> None:
        self._host, self._host_keys = host, host_keys
        self.refusal: TpuctlError | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        shown = " ".join(key.export_public_key().decode().split()[:2])
        known = self._host_keys.find(self._host)
        try:
            if known is None:
                self._host_keys.remember(
                    self._host, _check_users_known_hosts(self._host, key, shown)
                )
            elif known != shown:
                keys = self._host_keys
                published = keys.is_published(self._host)
                self.refusal = host_key_changed(
                    self._host, known, shown, keys.path, is_published=published
                )
        except TpuctlError as error:
            self.refusal = error
        return self.refusal is None


def _check_users_known_hosts(host: Host, key: Any, shown: str) -> str:
    """The key, unless the user's own `known_hosts` knows another for a machine of theirs."""
    path = Path(os.path.expanduser("~/.ssh/known_hosts"))
    if not host.is_own or not path.is_file():
        return shown
    theirs = asyncssh.match_known_hosts(str(path), host.address, "", host.port)[0]
    same_type = [known for known in theirs if known.get_algorithm() == key.get_algorithm()]
    if same_type and key.convert_to_public() not in same_type:
        known = " ".join(same_type[0].export_public_key().decode().split()[:2])
        raise host_key_changed(host, known, shown, path)
    return shown


class _Ssh:
    def __init__(self, access: Access, workers: int) -> None:
        self._access = access
        self._keys = replace(_load_keys(access.keys), hint=access.login_hint)
        smallest, largest = _WINDOW_BYTES
        self._window = min(largest, max(smallest, _MEMORY_BYTES // max(1, workers)))
        self._turn = asyncio.Semaphore(_HANDSHAKES)
        self._jump: Any = None

    async def open_jump(self) -> None:
        """Connect to the machine over which the workers are reached, if there is one."""
        if self._access.jump:
            self._jump = await self._handshake(self._access.jump)

    async def close_jump(self) -> None:
        """Leave that machine."""
        if self._jump:
            self._jump.close()
            await self._jump.wait_closed()

    async def connect(self, host: Host) -> "_Connection":
        """Connect to a worker, a few at a time."""
        deadline = time.monotonic() + self._access.patience.new_key_s
        while True:
            try:
                async with self._turn:
                    return _Connection(host, await self._handshake(host), self._window)
            except WorkerAuthError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_NEW_KEY_POLL_S)

    async def _handshake(self, host: Host) -> Any:
        client = _Client(host, self._access.host_keys)
        patience = self._access.patience
        with _translated_errors(host, client, patience.connect_s, self._keys):
            async with time_limit(patience.connect_s):
                return await asyncssh.connect(
                    host.address,
                    host.port,
                    options=self._options(host),
                    client_factory=lambda: client,
                    tunnel=self._jump,
                )

    def _options(self, host: Host) -> Any:
        known = self._access.host_keys.find(host)
        patience = self._access.patience
        user_config = Path(os.path.expanduser("~/.ssh/config"))
        public = (path.with_name(f"{path.name}.pub") for path in self._keys.locked)
        locked = [str(path) for path in public if path.is_file()]
        return asyncssh.SSHClientConnectionOptions(
            config=[str(user_config)] if host.is_own and user_config.is_file() else None,
            username=host.user,
            client_keys=list(self._keys.ours),
            agent_path=os.environ.get("SSH_AUTH_SOCK") if host.is_own or locked else None,
            agent_identities=None if host.is_own else locked,
            known_hosts=([], [], []),
            server_host_key_algs=_signature_algorithms(known),
            encryption_algs=_CIPHERS,
            compression_algs=None,
            gss_auth=False,
            gss_kex=False,
            keepalive_interval=patience.keepalive_s,
            keepalive_count_max=patience.keepalives_missed,
            login_timeout=patience.connect_s,
        )


def _signature_algorithms(known: str | None) -> Sequence[str]:
    """How a worker may sign: with the kind of key that we know it by, else the best one first."""
    kinds = [known.split()[0]] if known else _KEY_TYPES
    return [name for kind in kinds for name in (_RSA if kind == "ssh-rsa" else (kind,))]


@asynccontextmanager
async def open_ssh(access: Access, workers: int) -> AsyncIterator[_Ssh]:
    """Load the keys and reach the machine to jump over."""
    ssh = _Ssh(access, workers)
    await ssh.open_jump()
    try:
        yield ssh
    finally:
        await ssh.close_jump()


class _Connection:
    def __init__(self, host: Host, connection: Any, window: int) -> None:
        self.host = host
        self._connection, self._window = connection, window

    async def open(self, command: str) -> "_Channel":
        """Start a command on a channel of its own."""
        with _translated_errors(self.host):
            process = await self._connection.create_process(
                command, encoding=None, window=self._window
            )
        return _Channel(self.host, process)

    async def close(self) -> None:
        """Say goodbye, without waiting for somebody who is gone."""
        self._connection.close()
        try:
            async with time_limit(1.0):
                await self._connection.wait_closed()
        except (asyncio.TimeoutError, OSError, asyncssh.Error):
            self._connection.abort()


class _Channel:
    def __init__(self, host: Host, process: Any) -> None:
        self._host, self._process = host, process
        self._said = b""
        self._listening = asyncio.create_task(self._listen())

    async def read(self, size: int) -> bytes:
        """Read what there is, up to `size`."""
        with _translated_errors(self._host):
            data: bytes = await self._process.stdout.read(size)
            if not data:
                await self._check_that_it_ended()
            return data

    async def _check_that_it_ended(self) -> None:
        """Tell the end of a command from the end of the connection under it."""
        await self._process.wait_closed()
        if self._process.returncode is None:
            raise connection_lost(self._host)

    async def write(self, data: bytes) -> None:
        """Write at the pace of the worker."""
        with _translated_errors(self._host):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def write_soon(self, data: bytes) -> None:
        """Write a few bytes, if anybody is still there."""
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def close_stdin(self) -> None:
        """Say that nothing more comes."""
        if not self._process.stdin.is_closing():
            self._process.stdin.write_eof()

    async def complaint(self) -> str:
        """The end of what came on stderr."""
        await self._listening
        return self._said.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the channel."""
        self._listening.cancel()
        self._process.close()

    async def _listen(self) -> None:
        try:
            while data := await self._process.stderr.read(_COMPLAINT_BYTES):
                self._said = (self._said + data)[-_COMPLAINT_BYTES:]
        except (asyncssh.Error, OSError):
            return


@dataclass(frozen=True)
class _Keys:
    """The keys we can use ourselves, and those that only ssh-agent can, for a passphrase."""

    ours: tuple[Any, ...]
    locked: tuple[Path, ...]
    hint: str | None = None


def _load_keys(paths: tuple[Path, ...]) -> _Keys:
    """Read private keys; raises InvalidInputError when the only one is none."""
    ours, locked = [], []
    for path in paths:
        try:
            ours.append(asyncssh.read_private_key(str(path)))
        except asyncssh.KeyEncryptionError:
            locked.append(path)
        except (asyncssh.KeyImportError, OSError) as error:
            if "passphrase" in str(error).lower():
                locked.append(path)
            elif len(paths) == 1:
                why = getattr(error, "strerror", None) or str(error)
                raise InvalidInputError(
                    f"{path} is no private key: {why}.",
                    hint="Say which: --key FILE, or leave it out. ssh-keygen makes one.",
                ) from error
    return _Keys(tuple(ours), tuple(locked))


@contextmanager
def _translated_errors(
    host: Host,
    client: _Client | None = None,
    connect_s: float = 0.0,
    keys: "_Keys | None" = None,
) -> Iterator[None]:
    """Raise what went wrong with a worker as the error that names it and the next step."""
    try:
        yield
    except TpuctlError:
        raise
    except (OSError, asyncio.TimeoutError, asyncssh.Error) as error:
        if client and client.refusal:
            raise client.refusal from error
        raise _translate(host, error, client is not None, connect_s, keys) from error


def _translate(
    host: Host, error: Exception, connecting: bool, connect_s: float, keys: "_Keys | None"
) -> TpuctlError:
    if isinstance(error, asyncssh.PermissionDenied):
        return _auth_error(host, keys or _Keys((), ()))
    if isinstance(error, asyncssh.ChannelOpenError):
        return WorkerError(
            f"{host.label} opens no further session: {error.reason}.",
            hint="Raise MaxSessions in its sshd_config, or end something else there.",
        )
    if not connecting:
        return connection_lost(host, _reason(error))
    if isinstance(error, (asyncssh.KeyExchangeFailed, asyncssh.ProtocolError)):
        return WorkerError(f"{host.label} and we have no SSH in common: {error.reason}.")
    return _unreachable_error(host, error, connect_s)


def _auth_error(host: Host, keys: _Keys) -> WorkerAuthError:
    offered = len(keys.ours)
    what = "lets nobody in without a key, and we have none"
    if offered:
        what = "does not accept the one key that we have"
    if offered > 1:
        what = f"accepts none of the {offered} keys that we have"
    hint = "Say which: --key FILE, or as user@ip. Is the public one in its authorized_keys?"
    if keys.hint and not host.is_own:
        hint = keys.hint
    if keys.locked:
        hint = f"A passphrase locks {keys.locked[0]}: ssh-add {keys.locked[0]}"
    return WorkerAuthError(f"{host.label} {what} for the user {host.user}.", hint=hint)


def _unreachable_error(host: Host, error: Exception, connect_s: float) -> WorkerUnreachableError:
    see = "Is it READY, and does a firewall rule admit you? Behind a bastion: --jump user@ip."
    if isinstance(error, ConnectionRefusedError):
        what = "refuses connections"
        see = "It may still be booting: try again in a minute. Otherwise its sshd is not running."
    elif isinstance(error, socket.gaierror):
        what, see = "has no known address", "Check the spelling of the name."
    elif isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        what = f"did not answer within {connect_s:g} s"
    else:
        what = f"cannot be reached: {_reason(error)}"
    return WorkerUnreachableError(f"{host.label} {what}.", hint=see)


def _reason(error: Exception) -> str:
    text = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(text).rstrip(".") or type(error).__name__


def new_key() -> tuple[bytes, str]:
    """Make a private key, and its public half as a line."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode()
    return key.export_private_key(), " ".join(public.split()[:2])
