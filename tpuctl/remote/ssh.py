"""An interactive shell on a worker, with the system's ssh."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.outcome import Outcome
from tpuctl.remote.access import SYSTEM_KNOWN_HOSTS, Access
from tpuctl.remote.hosts import SSH_PORT, Host
from tpuctl.remote.shared_ssh import find_ssh
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
