"""The user's own rules for the host keys of machines given with --host, as OpenSSH applies them.

`ssh -G` evaluates the user's and the system's configuration. Where there is no ssh program to do
that, only keys that are known already are accepted if the user has a configuration.
"""

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from shutil import which
from typing import Any

from tpuctl.errors import HostKeyError
from tpuctl.remote._private_keys import asyncssh
from tpuctl.remote.access import SYSTEM_KNOWN_HOSTS, fingerprint
from tpuctl.remote.hosts import SSH_PORT, Host, parse_hosts
from tpuctl.settings import home

_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_UNSET = "tpuctl-unset"
_STRICT, _ASK = ("yes", "true"), "ask"
_KRL = b"SSHKRL"
_G_TIMEOUT_S = 20


@dataclass(frozen=True)
class HostKeyRules:
    """Where to look up a machine's keys, and what to do about others.

    `names` are the names in known_hosts files: with the port, then without. `strict` is the value
    of StrictHostKeyChecking, `jump` that of ProxyJump; None without ssh.
    """

    names: tuple[str, ...]
    files: tuple[Path, ...]
    strict: str
    checks_address: bool = False
    revoked: Path | None = None
    algorithms: frozenset[str] | None = None
    jump: str | None = None

    def find(self, name: str) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the known keys, authorities and revoked keys of a name."""
        found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        for file in self.files:
            for all_keys, keys in zip(
                found, _load(file).match(name.lower(), "", None), strict=False
            ):
                all_keys.extend(keys)
        return found

    def is_known(self, host: Host, key: Any, address: str) -> bool:
        """Whether a key is known; raises HostKeyError for one that must not be accepted."""
        keys, authorities, _ = self.find(self.names[0])
        is_known = _is_among(key, keys) or any(
            _is_among(key, self.find(name)[0]) for name in self.names[1:] if not keys
        )
        if self._is_revoked(key):
            raise _refused(host, key, "its host key is revoked", "Do not connect to it.")
        if keys and not is_known:
            raise _refused(host, key, _others("it", keys), self._remove_hint())
        is_remote = address and not address.startswith("127.") and address != "::1"
        if self.checks_address and is_remote and self.strict in (*_STRICT, _ASK):
            place = self.names[0].replace(self.names[-1], address, 1)
            if (others := self.find(place)[0]) and not _is_among(key, others):
                raise _refused(host, key, _others(address, others), self._remove_hint(place))
        if not is_known and (self.strict in _STRICT or (authorities and self.strict == _ASK)):
            why = "your ssh configuration accepts only known host keys (StrictHostKeyChecking)"
            if self.strict not in _STRICT:
                why = "known_hosts names an authority for it, which has not signed its host key"
            raise _refused(host, key, why, f"Add the key of that machine to {self.files[0]}")
        return is_known

    def _is_revoked(self, key: Any) -> bool:
        if any(_is_among(key, self.find(name)[2]) for name in self.names):
            return True
        if self.revoked is None:
            return False
        try:
            text = self.revoked.read_bytes()
        except OSError:
            return True
        if not text.startswith(_KRL):
            return public_line(key).split()[1].encode() in text.split()
        query = [_program("ssh-keygen") or "false", "-Q", "-f", str(self.revoked), "/dev/stdin"]
        done = subprocess.run(  # noqa: S603 (ssh-keygen, by an absolute path)
            query, input=public_line(key).encode(), capture_output=True
        )
        return done.returncode != 0

    def _remove_hint(self, name: str | None = None) -> str:
        name = name or self.names[0]
        file = next(each for each in self.files if _load(each).match(name.lower(), "", None)[0])
        remove = f"ssh-keygen -R '{name}' -f '{file}'"
        return f"If you know that the change is legitimate, remove the old keys: {remove}"


def host_key_rules(host: Host) -> HostKeyRules:
    """Evaluate the user's configuration for a machine."""
    options = _configuration(host.address, "-p", str(host.port), "-l", host.user)
    name, port = options.get("hostname", host.address), int(options.get("port", host.port))
    alias, files = options.get("hostkeyalias"), options.get("userknownhostsfile", _UNSET)
    names = (name,) if port == SSH_PORT else (f"[{name}]:{port}", name)
    own = tuple(home() / ".ssh" / each for each in ("known_hosts", "known_hosts2"))
    system = _paths(options["globalknownhostsfile"]) if options else SYSTEM_KNOWN_HOSTS
    revoked, algorithms = options.get("revokedhostkeys", "none"), options.get("hostkeyalgorithms")
    # A command that lists keys is not run; and without a file, ssh keeps no first key either.
    is_strict = options.get("knownhostscommand", "none") != "none" or files == "none"
    if not options:
        is_strict = _user_config().exists()
    return HostKeyRules(
        (alias,) if alias else names,
        (*(own if files == _UNSET else _paths(files)), *system),
        _STRICT[0] if is_strict else options.get("stricthostkeychecking", _ASK),
        options.get("checkhostip") == "yes" and not alias,
        None if revoked == "none" else Path(revoked),
        frozenset(algorithms.split(",")) if algorithms else None,
        options.get("proxyjump", "") if options else None,
    )


def jump_hosts(text: str) -> tuple[Host, ...]:
    """Read the value of ProxyJump; what it leaves open, the configuration says."""
    found = []
    for word in text.replace("ssh://", "").split(","):
        (host,) = parse_hosts(word)
        flags = ["-l", host.user] if "@" in word else []
        flags += ["-p", str(host.port)] if word.endswith(f":{host.port}") else []
        options = _configuration(host.address, *flags)
        user, port = options.get("user", host.user), int(options.get("port", host.port))
        found.append(replace(host, user=user, port=port))
    return tuple(found)


def public_line(key: Any) -> str:
    """Return the type and the data of a key."""
    return " ".join(key.export_public_key().decode().split()[:2])


def _user_config() -> Path:
    return home() / ".ssh" / "config"


def _configuration(address: str, *flags: str) -> dict[str, str]:
    """Return what `ssh -G` says of a machine; nothing without ssh."""
    program = _program("ssh")
    if program is None:
        return {}
    # ssh itself looks for its files in the home folder of /etc/passwd, whatever HOME is.
    lines = [f'Include "{path}"' for path in (_user_config(), _SYSTEM_CONFIG) if path.is_file()]
    config = "\n".join([*lines, f"UserKnownHostsFile {_UNSET}"])
    command = [program, "-G", "-F", "/dev/stdin", *flags]
    done = subprocess.run(  # noqa: S603 (ssh, by an absolute path)
        [*command, "--", address],
        input=config.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=_G_TIMEOUT_S,
        check=False,
    )
    lines = (
        done.stdout.decode("utf-8", "surrogateescape").splitlines() if not done.returncode else []
    )
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def _program(name: str) -> str | None:
    """Find a program, but not in a folder of PATH that is relative to the current one."""
    found = which(name)
    return found if found and found.startswith("/") else None


def _paths(text: str) -> tuple[Path, ...]:
    """Split a list of absolute paths, which may contain spaces."""
    return tuple(Path(each) for each in re.split(r" (?=/)", text) if each.startswith("/"))


def _load(path: Path) -> Any:
    try:
        return _parse(path, path.stat().st_mtime_ns, path.stat().st_size)
    except OSError:
        return asyncssh.SSHKnownHosts()


@lru_cache(maxsize=8)
def _parse(path: Path, mtime_ns: int, size: int) -> Any:
    """Read a known_hosts file without the lines that are not valid, as ssh does."""
    known = asyncssh.SSHKnownHosts()
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        words = line.split()
        place = bool(words) and words[0].startswith("@")
        if len(words) > place and not words[place].startswith("|"):
            words[place] = ",".join(filter(None, words[place].lower().split(",")))
        try:
            known.load(" ".join(words))
        except ValueError:
            continue
    return known


def _is_among(key: Any, keys: Iterable[Any]) -> bool:
    return any(key.public_data == each.public_data for each in keys)


def _others(name: str, keys: Iterable[Any]) -> str:
    known = sorted({fingerprint(public_line(key)) for key in keys})
    return f"known_hosts has {' and '.join(known)} for {name}, not the key that it shows"


def _refused(host: Host, key: Any, why: str, hint: str) -> HostKeyError:
    shown = fingerprint(public_line(key))
    return HostKeyError(f"{host.label} is not trusted: {why} ({shown}).", hint=hint)
