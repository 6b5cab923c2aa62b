"""An interactive shell on a worker, with the system's ssh."""

import os
import shutil
from dataclasses import dataclass
from typing import NoReturn

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.outcome import Outcome
from tpuctl.remote.access import Access
from tpuctl.remote.hosts import SSH_PORT, Host
from tpuctl.storage.local import ensure_folder


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
    program = shutil.which("ssh")
    if program is None:
        raise NotFoundError(
            "The ssh program is not installed on this machine.",
            hint="Install it (apt-get install openssh-client), or use tpuctl run.",
        )
    (host,) = hosts
    ensure_folder(access.host_keys.path.parent)
    options = [f"UserKnownHostsFile={access.host_keys.path}", "StrictHostKeyChecking=accept-new"]
    if host.key_alias:
        options.append(f"HostKeyAlias={host.key_alias}")
    words = [program, *(word for option in options for word in ("-o", option))]
    words += [word for key in access.keys for word in ("-i", str(key))]
    if jump := access.jump:
        name = f"[{jump.address}]" if ":" in jump.address else jump.address
        words += ["-J", f"{jump.user}@{name}:{jump.port}"]
    if host.port != SSH_PORT:
        words += ["-p", str(host.port)]
    return Shell(host.index, host.address, (*words, "--", f"{host.user}@{host.address}"))


def open_shell(shell: Shell) -> NoReturn:
    """Replace this process by ssh."""
    os.execv(shell.argv[0], shell.argv)
