"""The system's ssh: a shell on a worker, and one connection that several commands share.

A Colab runtime accepts a single connection at a time. So OpenSSH keeps one open in the background
(ControlMaster) for as long as it is used, and every command opens its channels in it. It ends by
itself a while after the last one.
"""

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    TpuctlError,
    UsageError,
    WorkerAuthError,
    WorkerError,
    WorkerUnreachableError,
)
from tpuctl.outcome import Outcome
from tpuctl.remote.access import SYSTEM_KNOWN_HOSTS, Access, HostKeys
from tpuctl.remote.connection import Channel, Connect, Connection, LocalConnection
from tpuctl.remote.hosts import SSH_PORT, Host
from tpuctl.start_python import absolute_entries, child_environment
from tpuctl.storage.local import ensure_folder, locked

PERSIST_S = 60
_START_S, _LOCK_S = 60, 90
_SILENT_S, _SILENT_COUNT = 10, 3


@dataclass(frozen=True)
class SharedSsh:
    """How to reach one worker: a proxy command that carries SSH, a key, and our known hosts.

    `alias` is unique for the machine; `errors` is a file in which the proxy command writes why it
    could not connect, as `code message`.
    """

    alias: str
    proxy: tuple[str, ...]
    key: Path
    known_hosts: Path
    errors: Path

    @property
    def control(self) -> Path:
        """The socket of the shared connection; short, because a socket's path has 104 bytes."""
        # Not in the state folder, whose path may be long.
        name = hashlib.sha256(f"{self.known_hosts}\0{self.alias}".encode()).hexdigest()[:20]
        return private_folder() / name

    def options(self) -> list[str]:
        """Return the options of ssh, those for sharing included."""
        return [
            f"ProxyCommand={shlex.join(self.proxy).replace('%', '%%')}",
            f"ControlPath={str(self.control).replace('%', '%%')}",
            f"ControlPersist={PERSIST_S}",
            f"HostKeyAlias={self.alias}",
            f"ServerAliveInterval={_SILENT_S}",
            f"ServerAliveCountMax={_SILENT_COUNT}",
        ]

    def command(self, host: Host, *words: str) -> list[str]:
        """Return the ssh command that uses the shared connection and asks nothing."""
        known = str(self.known_hosts).replace("%", "%%")
        options = [
            *self.options(),
            f'UserKnownHostsFile="{known}"',
            "StrictHostKeyChecking=accept-new",
            f'IdentityFile="{str(self.key).replace("%", "%%")}"',
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "LogLevel=ERROR",
        ]
        flags = [word for option in options for word in ("-o", option)]
        return [find_ssh(), "-F", "none", "-T", *flags, *words, "--", f"{host.user}@{host.address}"]

    def start(self, host: Host) -> None:
        """Open the shared connection unless it is open; raises why it cannot be opened."""
        ensure_folder(self.known_hosts.parent, private=True)
        busy = f"Another command is connecting to {host.label}."
        with locked(self.control.with_suffix(".lock"), wait_s=_LOCK_S, busy=busy):
            if self._run(host, "-O", "check").returncode == 0:
                return
            # A killed connection leaves its socket, which ssh would take for one that works.
            self.control.unlink(missing_ok=True)
            self.errors.unlink(missing_ok=True)
            done = self._run(host, "-o", "ControlMaster=yes", "-N", "-f")
            if done.returncode:
                raise self._why(host, done.stderr.strip())

    def stop(self, host: Host) -> None:
        """Close the shared connection, if there is one."""
        if self.control.exists():
            self._run(host, "-O", "exit")

    def _run(self, host: Host, *words: str) -> "subprocess.CompletedProcess[str]":
        # In a file, because the connection in the background would keep a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            try:
                done = subprocess.run(  # noqa: S603 (ssh, by an absolute path)
                    self.command(host, *words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env=child_environment(),
                    timeout=_START_S,
                    start_new_session=True,
                    check=False,
                )
                code = done.returncode
            except subprocess.TimeoutExpired:
                code = 255
            said.seek(0)
            return subprocess.CompletedProcess([], code, "", said.read())

    def _why(self, host: Host, stderr: str) -> TpuctlError:
        """Make the error for a connection that failed, from what the proxy command wrote."""
        try:
            code, _, text = self.errors.read_text(encoding="utf-8").partition(" ")
        except OSError:
            code, text = "", ""
        if text:
            for kind in (WorkerUnreachableError, WorkerAuthError, WorkerError):
                if kind.code == code:
                    return kind(text)
            return WorkerError(text)
        if "Host key verification failed" in stderr:
            shown = re.search(r"SHA256:[\w+/]+", stderr)
            return HostKeys(self.known_hosts).changed(host, shown[0] if shown else "another")
        last = stderr.splitlines()[-1] if stderr else "no error message"
        kind = WorkerAuthError if "Permission denied" in last else WorkerUnreachableError
        return kind(f"Could not connect to {host.label}: {last}", hint="Run the command again.")

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Connect]:
        """Yield the function that connects to the worker."""

        async def connect(host: Host) -> Connection:
            await asyncio.get_running_loop().run_in_executor(None, self.start, host)
            return _SharedConnection(host, self)

        yield connect


class _SharedConnection(LocalConnection):
    """The port `Connection` over `ssh` processes, each a channel of the shared connection."""

    def __init__(self, host: Host, shared: SharedSsh) -> None:
        super().__init__(host)
        self._shared = shared

    async def open(self, command: str) -> Channel:
        """Start a command there."""
        return await self.start(*self._shared.command(self.host, "-o", "ControlMaster=no"), command)

    async def forward_socket(self, path: str, *, from_worker: bool) -> None:
        """Forward a socket file in the shared connection."""
        flag = "-L" if from_worker else "-R"
        done = self._shared._run(self.host, "-O", "forward", flag, f"{path}:{path}")
        if done.returncode:
            raise WorkerError(
                f"{self.host.label} does not forward socket files: {done.stderr.strip()}."
            )


def find_ssh() -> str:
    """Return the path of the ssh program; raises NotFoundError."""
    program = shutil.which("ssh", path=absolute_entries(os.environ.get("PATH", os.defpath)))
    if program is None:
        raise NotFoundError(
            "The ssh program is not installed on this machine.",
            hint="Install it: apt-get install openssh-client",
        )
    return program


def private_folder() -> Path:
    """Return a folder for sockets that only this user can enter; raises WorkerError."""
    folder = Path(tempfile.gettempdir()) / f"tpuctl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise WorkerError(
            f"{folder} is not a folder that only you can enter.", hint=f"rm -r {folder}"
        )
    return folder


@dataclass(frozen=True)
class Shell(Outcome):
    """The command that opens a shell on a worker."""

    index: int
    address: str
    argv: tuple[str, ...]


def plan_shell(hosts: tuple[Host, ...], access: Access) -> Shell:
    """Build the ssh command for a worker, with our keys and known host keys.

    Raises UsageError for more than one worker, NotFoundError if ssh is not installed.
    """
    if len(hosts) != 1:
        raise UsageError("A shell needs exactly one worker.", hint="Choose one: --worker 0")
    program = find_ssh()
    (host,) = hosts
    record = access.host_keys.path
    ensure_folder(record.parent, private=True)
    if host.is_own:
        # The user's own files and rules decide, and ours only adds to them. This option is the one
        # in which % has no meaning.
        files = (_quote(path).replace("%%", "%") for path in (record, *SYSTEM_KNOWN_HOSTS))
        options = [f"GlobalKnownHostsFile={' '.join(files)}"]
    else:
        options = [f"UserKnownHostsFile={_quote(record)}", "StrictHostKeyChecking=accept-new"]
        if access.shared:
            options += ["ControlMaster=auto", "IdentitiesOnly=yes", *access.shared.options()]
        else:
            options.append(f"HostKeyAlias={host.key_alias}")
    if host.proxy:
        options.append(f"ProxyCommand={host.proxy.replace('%', '%%')}")
    # -i would not find a file with a % in its name.
    options += [f"IdentityFile={_quote(key)}" for key in access.keys]
    words = [program, *(word for option in options for word in ("-o", option))]
    if jump := access.jump:
        name = f"[{jump.address}]" if ":" in jump.address else jump.address
        words += ["-J", f"{jump.user}@{name}:{jump.port}"]
    if host.port != SSH_PORT:
        words += ["-p", str(host.port)]
    return Shell(host.index, host.address, (*words, "--", f"{host.user}@{host.address}"))


def _quote(path: Path) -> str:
    """Quote a path for the value of ssh's -o; raises InvalidInputError."""
    text = os.path.abspath(path)
    if "${" in text:
        raise InvalidInputError(
            f"ssh would replace the ${{ in {text}.", hint="Choose another path without it."
        )
    for character, escaped in (("\\", r"\\"), ('"', r"\""), ("%", "%%")):
        text = text.replace(character, escaped)
    return f'"{text}"'


def open_shell(shell: Shell) -> NoReturn:
    """Replace this process by ssh."""
    os.execv(shell.argv[0], shell.argv)  # noqa: S606 (ssh, by an absolute path)
