"""SSH connections to workers, made with asyncssh."""

import asyncio
import os
import shlex
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tpuctl.errors import (
    HostKeyError,
    InvalidArgumentError,
    TpuctlError,
    WorkerAuthError,
    WorkerError,
    WorkerUnreachableError,
)
from tpuctl.remote._known_hosts import HostKeyRules, host_key_rules, jump_hosts, public_line
from tpuctl.remote._private_keys import PrivateKeys, asyncssh, load_keys
from tpuctl.remote.access import Access, HostKeys, fingerprint
from tpuctl.remote.connection import STDERR_BYTES, Connect, connection_lost
from tpuctl.remote.hosts import Host
from tpuctl.settings import home, user_name

if sys.version_info >= (3, 11):
    from asyncio import timeout as time_limit
else:
    from async_timeout import timeout as time_limit


# Handshakes cost CPU time on our side; with more at a time, all of them run into the timeout.
_HANDSHAKES = 24
_NEW_KEY_POLL_S = 1.0
# A worker that ends its output has to close the channel, too.
_CLOSE_S = 20.0
# All receive windows together, and the bounds of one: unread output stays on the workers.
_MEMORY_BYTES = 64 << 20
_WINDOW_BYTES = (1 << 17, 1 << 21)
_RSA = ("rsa-sha2-512", "rsa-sha2-256")
_CERTIFICATE = "-cert-v01@openssh.com"
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
          "ssh-rsa")  # fmt: skip
# AES-GCM first: asyncssh prefers chacha20, which is slower on processors with AES instructions.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com",
            "aes256-ctr", "aes128-ctr")  # fmt: skip


class _Client(asyncssh.SSHClient):
    """Checks the host key, and keeps the error for the caller of connect()."""

    def __init__(self, host: Host, host_keys: HostKeys, rules: HostKeyRules | None) -> None:
        self._host, self._host_keys, self._rules = host, host_keys, rules
        self.refusal: TpuctlError | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        shown, known = public_line(key), self._host_keys.find(self._host)
        try:
            if self._rules and self._rules.is_known(self._host, key, addr):
                return True
            if known is None:
                self._host_keys.remember(self._host, shown)
            elif known != shown:
                self.refusal = self._host_keys.changed(self._host, fingerprint(shown))
        except TpuctlError as error:
            self.refusal = error
        return self.refusal is None


class _Ssh:
    """Opens connections with the same keys, over the same jump hosts."""

    def __init__(self, access: Access, workers: int) -> None:
        self._access, self._keys = access, load_keys(access.keys)
        smallest, largest = _WINDOW_BYTES
        self._window = min(largest, max(smallest, _MEMORY_BYTES // max(1, workers)))
        self._handshakes = asyncio.Semaphore(_HANDSHAKES)
        self._jumps: dict[str, asyncio.Task[Any]] = {}
        self.jump: Any = None
        self.opened: list[Any] = []

    async def connect(self, host: Host) -> "_Connection":
        """Connect to a worker, and retry while it may not know a new key yet."""
        deadline = time.monotonic() + self._access.timeouts.new_key_s
        while True:
            try:
                async with self._handshakes:
                    return _Connection(host, await self.handshake(host), self._window)
            except WorkerAuthError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_NEW_KEY_POLL_S)

    async def over(self, jumps: tuple[Host, ...], before: tuple[str, ...] = ()) -> Any:
        """Connect to jump hosts, to each over the one before it; returns the last connection."""
        tunnel = None
        for host in jumps:
            tunnel = await self.handshake(host, tunnel, before)
            self.opened.append(tunnel)
        return tunnel

    async def _configured_jump(self, jump: str, before: tuple[str, ...]) -> Any:
        """Connect as ProxyJump says, once for all workers."""
        if jump in before:
            raise WorkerError(f"ProxyJump {jump} in {home() / '.ssh/config'} leads back to itself.")
        if jump not in self._jumps:
            hosts = await asyncio.to_thread(jump_hosts, jump)
            task = self._jumps.get(jump) or asyncio.create_task(self.over(hosts, (*before, jump)))
            self._jumps[jump] = task
        return await asyncio.shield(self._jumps[jump])

    async def handshake(self, host: Host, tunnel: Any = None, before: tuple[str, ...] = ()) -> Any:
        """Connect to a machine; raises the TpuctlError that says why it failed."""
        rules = await asyncio.to_thread(host_key_rules, host) if host.is_own else None
        tunnel = tunnel or self.jump
        if rules and rules.jump and not tunnel:
            tunnel = await self._configured_jump(rules.jump, before)
        elif rules and rules.jump is None and not tunnel:
            # Without ssh, asyncssh reads ProxyJump, and accepts known keys only.
            tunnel = ()
        # Given with the host, because most of it is said of some hosts only.
        user_config = home() / ".ssh" / "config"
        config = [str(user_config)] if host.is_own and user_config.is_file() else None
        client = _Client(host, self._access.host_keys, rules)
        try:
            async with time_limit(self._access.timeouts.connect_s):
                return await asyncssh.connect(
                    host.address,
                    host.port,
                    config=config,
                    options=self._options(host, rules),
                    client_factory=lambda: client,
                    tunnel=tunnel,
                )
        except (OSError, asyncio.TimeoutError, asyncssh.Error) as error:
            if getattr(error, "filename", None):
                raise  # A file of this machine, not the network.
            raise client.refusal or self._connect_error(host, error) from error

    def _connect_error(self, host: Host, error: Exception) -> TpuctlError:
        if isinstance(error, asyncssh.PermissionDenied):
            return _auth_error(host, self._keys, self._access.login_hint)
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            hint = f"Find out who answers there: ssh {host.user}@{host.address} -p {host.port}"
            return HostKeyError(f"{host.label} is not trusted: {error.reason}.", hint=hint)
        if isinstance(error, (asyncssh.KeyExchangeFailed, asyncssh.ProtocolError)):
            return WorkerError(f"SSH with {host.label} failed, no common protocol: {error.reason}.")
        return _unreachable_error(host, error, self._access.timeouts.connect_s)

    def _options(self, host: Host, rules: HostKeyRules | None) -> Any:
        timeouts = self._access.timeouts
        keys, authorities, revoked = rules.find(rules.names[0]) if rules else ([], [], [])
        known = [key.get_algorithm() for key in keys]
        if ours := not known and self._access.host_keys.find(host):
            known = [ours.split()[0]]
        # The types of known keys first: a server has keys of several types.
        kinds = [*known, *(kind for kind in _KEY_TYPES if kind not in known)]
        algorithms = [name for kind in kinds for name in (_RSA if kind == "ssh-rsa" else (kind,))]
        if rules and authorities and not rules.revoked:
            algorithms = [f"{name}{_CERTIFICATE}" for name in algorithms] + algorithms
        if rules and rules.algorithms:
            algorithms = [name for name in algorithms if name in rules.algorithms]
        public = (path.with_name(f"{path.name}.pub") for path in self._keys.locked)
        locked = [str(path) for path in public if path.is_file()]
        return asyncssh.SSHClientConnectionOptions(
            username=host.user,
            proxy_command=host.proxy or (),
            client_keys=list(self._keys.ours),
            # A TPU is offered no other key of the agent: a server disconnects after six attempts.
            agent_path=os.environ.get("SSH_AUTH_SOCK") if host.is_own or locked else None,
            agent_identities=None if host.is_own else locked,
            # No keys, so that every one comes to _Client.validate_host_public_key().
            known_hosts=([], authorities, revoked),
            server_host_key_algs=algorithms,
            encryption_algs=_CIPHERS,
            # The agent compresses what gets smaller.
            compression_algs=None,
            gss_auth=False,
            gss_kex=False,
            keepalive_interval=timeouts.keepalive_s,
            keepalive_count_max=timeouts.keepalives_missed,
            login_timeout=timeouts.connect_s,
        )


@asynccontextmanager
async def open_ssh(access: Access, workers: int) -> AsyncIterator[Connect]:
    """Load the keys and connect to the jump host, if there is one."""
    # asyncssh asks for both, and a container's user may have neither.
    os.environ.setdefault("HOME", str(home()))
    if user_name() is None:
        os.environ["LOGNAME"] = str(os.getuid())
    ssh = _Ssh(access, workers)
    try:
        ssh.jump = await ssh.over((access.jump,)) if access.jump else None
        yield ssh.connect
    finally:
        for jump in reversed(ssh.opened):
            jump.close()
            await jump.wait_closed()


class _Connection:
    """The port `Connection` over asyncssh."""

    def __init__(self, host: Host, connection: Any, window: int) -> None:
        self.host = host
        self._connection, self._window = connection, window

    async def open(self, command: str) -> "_Channel":
        with _translated_errors(self.host):
            process = await self._connection.create_process(
                command, encoding=None, window=self._window
            )
        return _Channel(self.host, process)

    async def forward_socket(self, path: str, *, from_worker: bool) -> None:
        try:
            if from_worker:
                # A server that does not allow it would only show at a connection.
                (await self._connection.open_unix_connection(path))[1].close()
                await self._connection.forward_local_path(path, path)
            else:
                await self._connection.forward_remote_path(path, path)
        except (asyncssh.ChannelOpenError, asyncssh.ChannelListenError) as error:
            raise WorkerError(
                f"{self.host.label} does not forward socket files: {_reason(error)}.",
                hint="Set AllowStreamLocalForwarding yes in its sshd_config.",
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise connection_lost(self.host, _reason(error)) from error

    async def close(self) -> None:
        self._connection.close()
        # A worker that is gone would never confirm.
        try:
            async with time_limit(1.0):
                await self._connection.wait_closed()
        except (asyncio.TimeoutError, OSError, asyncssh.Error):
            self._connection.abort()


class _Channel:
    """The port `Channel` over asyncssh."""

    def __init__(self, host: Host, process: Any) -> None:
        self._host, self._process = host, process
        self._stderr = b""
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    async def read(self, size: int) -> bytes:
        with _translated_errors(self._host):
            data: bytes = await self._process.stdout.read(size)
            if not data:
                # Without a return code it was the connection that ended, not the command.
                async with time_limit(_CLOSE_S):
                    await self._process.wait_closed()
                if self._process.returncode is None:
                    raise connection_lost(self._host)
            return data

    async def write(self, data: bytes) -> None:
        with _translated_errors(self._host):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def write_soon(self, data: bytes) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def close_stdin(self) -> None:
        if not self._process.stdin.is_closing():
            self._process.stdin.write_eof()

    async def stderr_tail(self) -> str:
        with _translated_errors(self._host):
            async with time_limit(_CLOSE_S):
                await self._reading_stderr
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        self._reading_stderr.cancel()
        self._process.close()

    async def _read_stderr(self) -> None:
        try:
            while data := await self._process.stderr.read(STDERR_BYTES):
                self._stderr = (self._stderr + data)[-STDERR_BYTES:]
        except (asyncssh.Error, OSError):
            return


@contextmanager
def _translated_errors(host: Host) -> Iterator[None]:
    """Raise an error on an open connection as a TpuctlError that names the worker."""
    try:
        yield
    except asyncssh.ChannelOpenError as error:
        raise WorkerError(
            f"{host.label} does not allow another session: {error.reason}.",
            hint="Raise MaxSessions in its sshd_config, or stop another command there.",
        ) from error
    except (OSError, asyncio.TimeoutError, asyncssh.Error) as error:
        raise connection_lost(host, _reason(error)) from error


def _auth_error(host: Host, keys: PrivateKeys, login_hint: str | None) -> WorkerAuthError:
    offered = len(keys.ours)
    what = f"accepts none of the {offered} keys found here"
    if offered < 2:
        what = "does not accept our only key" if offered else "needs a key, and none was found here"
    hint = "Check the user name, and that the public key is in authorized_keys; or use --key FILE."
    if login_hint and not host.is_own:
        hint = login_hint
    if keys.exposed:
        hint = f"Other users can read {keys.exposed[0]}; to have it used: chmod 600"
        hint = f"{hint} {shlex.quote(str(keys.exposed[0]))}"
    if keys.locked:
        hint = (
            f"{keys.locked[0]} has a passphrase, so add it to ssh-agent: ssh-add {keys.locked[0]}"
        )
    return WorkerAuthError(f"{host.label} {what} (user {host.user}).", hint=hint)


def _unreachable_error(host: Host, error: Exception, connect_s: float) -> TpuctlError:
    hint = "Check that it is READY and that a firewall rule allows SSH, or use --jump user@ip."
    if isinstance(error, ConnectionRefusedError):
        what = "refuses connections"
        hint = "It may still be booting: try again in a minute, or check that sshd is running."
    elif isinstance(error, socket.gaierror):
        what, hint = "has an unknown host name", "Check the spelling of the name."
        if host.is_own and error.errno != socket.EAI_AGAIN:
            # A name server said that there is no such name: waiting does not help.
            return InvalidArgumentError(f"{host.label} {what}.", hint=hint)
    elif isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        what = f"did not answer within {connect_s:g} s"
    else:
        what = f"cannot be reached: {_reason(error)}"
    return WorkerUnreachableError(f"{host.label} {what}.", hint=hint)


def _reason(error: Exception) -> str:
    text = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(text).rstrip(".") or type(error).__name__
