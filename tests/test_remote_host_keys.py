"""Host keys of machines given with --host: what OpenSSH refuses, we refuse, and the reverse."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")

from tests.sharing import free_port
from tests.test_remote_sshd import SSHD
from tests.waiting import wait_until
from tests.workers import IMPATIENT, new_key, sshd_environment
from tpuctl.errors import HostKeyError, InvalidInputError, TpuctlError
from tpuctl.remote._known_hosts import host_key_rules
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.connection import Connection
from tpuctl.remote.fleet import on_every_worker, run_async
from tpuctl.remote.hosts import Host, parse_hosts
from tpuctl.remote.ssh import SharedSsh
from tpuctl.settings import home

pytestmark = pytest.mark.slow

KEYGEN = shutil.which("ssh-keygen")


@dataclass(frozen=True)
class Machine:
    """A running sshd with an ed25519 key, which is also signed by an authority."""

    folder: Path
    port: int

    def public(self, name: str) -> str:
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    @property
    def words(self) -> dict[str, str]:
        """What known_hosts files and configurations below are filled in with."""
        keys = {name: self.public(name) for name in ("host", "other", "ecdsa", "authority")}
        place, port = f"[127.0.0.1]:{self.port}", str(self.port)
        folder = str(self.folder)
        return {**keys, "place": place, "port": port, "folder": folder}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose key is signed, and also shown without the signature."""
    with running(tmp_path_factory.mktemp("machine"), is_signed=True) as found:
        yield found


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running(tmp_path_factory.mktemp("unsigned"), is_signed=False) as found:
        yield found


@contextmanager
def running(folder: Path, *, is_signed: bool, key: Path | None = None) -> Iterator[Machine]:
    if SSHD is None or KEYGEN is None or not shutil.which("ssh"):
        pytest.skip("OpenSSH is not installed (apt-get install openssh-server openssh-client)")
    for name in ("key", "host", "other", "authority"):
        new_key(folder / name)
    new_key(folder / "ecdsa", "ecdsa-sha2-nistp256")
    sign = [KEYGEN, "-q", "-s", "authority", "-h", "-I", "m", "-n", "127.0.0.1,named", "host.pub"]
    subprocess.run(sign, cwd=folder, check=True)
    for name in ("host", "other"):
        subprocess.run(
            [KEYGEN, "-q", "-k", "-f", f"{name}.krl", f"{name}.pub"], cwd=folder, check=True
        )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    lines = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", "StrictModes no",
        f"AuthorizedKeysFile {key or folder / 'key'}.pub", "LogLevel DEBUG1", "PidFile none",
        "UsePAM no", "MaxStartups 100", sshd_environment(),
        *([f"HostCertificate {folder}/host-cert.pub"] if is_signed else []),
    ]  # fmt: skip
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    log = folder / "log"
    with subprocess.Popen([SSHD, "-D", "-E", log, "-f", folder / "sshd_config"]) as server:
        try:
            wait_until(lambda: server.poll() is not None or b"listening" in read(log))
            if server.poll() is not None:
                pytest.skip("sshd does not start on this machine")
            yield Machine(folder, port)
        finally:
            server.kill()


def read(log: Path) -> bytes:
    return log.read_bytes() if log.exists() else b""


KNOWN = {
    "known": "{place} {host}",
    "another key": "{place} {other}",
    "another type": "{place} {ecdsa}",
    "another type first": "{place} {ecdsa}\n{place} {host}",
    "one of two keys": "{place} {other}\n{place} {host}",
    "revoked": "{place} {host}\n@revoked {place} {host}",
    "revoked everywhere": "{place} {host}\n@revoked * {host}",
    "another key is revoked": "{place} {host}\n@revoked * {other}",
    "without a port": "127.0.0.1 {host}",
    "another key without a port": "127.0.0.1 {other}",
    "of another port": "[127.0.0.1]:1 {host}",
    "known beside another without a port": "127.0.0.1 {other}\n{place} {host}",
    "pattern": "[127.0.0.*]:{port} {host}",
    "negated pattern": "[127.0.0.*]:{port},!{place} {host}",
    "several names": "example,{place},other {host} a comment",
    "lines that mean nothing": "nonsense\n@what {place} {other}\n{place}\n|1|x|y {other}\n"
    "{place} ssh-ed25519 !!!!\n# {place} {other}\n{place} {host}",
    "empty name": ",, {host}",
    "authority": "@cert-authority {place} {authority}",
    "authority without a port": "@cert-authority 127.0.0.1 {authority}",
    "another authority": "@cert-authority {place} {other}",
    "authority and key": "@cert-authority {place} {authority}\n{place} {host}",
    "authority is revoked": "@cert-authority * {authority}\n@revoked * {authority}",
    "certified key is revoked": "@cert-authority * {authority}\n@revoked * {host}",
    "key that is called an authority": "@cert-authority {place} {host}",
}
CONFIG = {
    "strict, known": ("{place} {host}", "StrictHostKeyChecking yes"),
    "strict, unknown": ("", "StrictHostKeyChecking yes"),
    "strict, without a port": ("127.0.0.1 {host}", "StrictHostKeyChecking yes"),
    "strict for another": ("", "Host example\n  StrictHostKeyChecking yes\nHost *\n"
                           "  StrictHostKeyChecking accept-new"),
    "strict for this": ("", "Match host 127.0.0.*\n  StrictHostKeyChecking yes"),
    "accept-new, unknown": ("", "StrictHostKeyChecking accept-new"),
    "accept-new, another": ("{place} {other}", "StrictHostKeyChecking accept-new"),
    "accept-new, revoked": ("@revoked * {host}", "StrictHostKeyChecking accept-new"),
    "alias": ("named {host}", "HostKeyAlias named"),
    "alias, not the address": ("{place} {host}", "HostKeyAlias named"),
    "alias, another": ("named {other}\n{place} {host}", "HostKeyAlias named"),
    "other file": ("", 'UserKnownHostsFile "{folder}/a b" {folder}/c', "{place} {host}"),
    "other file, another": ("{place} {host}", "UserKnownHostsFile {folder}/c", "{place} {other}"),
    "no file": ("{place} {host}", "UserKnownHostsFile none"),
    "global file": ("", "GlobalKnownHostsFile {folder}/c", "{place} {host}"),
    "global file, revoked": ("{place} {host}", "GlobalKnownHostsFile {folder}/c",
                             "@revoked * {host}"),
    "included": ("", "Include {folder}/c", "StrictHostKeyChecking yes"),
    "revoked list": ("{place} {host}", "RevokedHostKeys {folder}/host.krl"),
    "revoked list, another": ("{place} {host}", "RevokedHostKeys {folder}/other.krl"),
    "revoked text": ("{place} {host}", "RevokedHostKeys {folder}/host.pub"),
    "revoked text, another": ("{place} {host}", "RevokedHostKeys {folder}/other.pub"),
    "revoked list is missing": ("{place} {host}", "RevokedHostKeys {folder}/missing"),
    "algorithms": ("{place} {host}", "HostKeyAlgorithms rsa-sha2-512"),
    "name, address": ("[localhost]:{port} {host}\n{place} {other}", "CheckHostIP yes\n"
                      "HostName localhost\nAddressFamily inet"),
    "name, address unchecked": ("[localhost]:{port} {host}\n{place} {other}",
                                "HostName localhost\nAddressFamily inet"),
    "name in capitals": ("[LocalHost]:{port} {host}", "HostName LOCALHOST\nAddressFamily inet"),
}  # fmt: skip


def connect(
    machine: Machine, folder: Path, said: list[str] | None = None, *, is_own: bool = True
) -> TpuctlError | None:
    """Connect and run nothing; returns why that failed."""

    async def nothing(connection: Connection) -> None:
        return None

    warn = (said if said is not None else []).append
    keys = HostKeys(folder / "ours")
    access = Access((machine.folder / "key",), keys, timeouts=IMPATIENT, on_warning=warn)
    user = pwd.getpwuid(os.getuid()).pw_name
    hosts = parse_hosts(f"{user}@127.0.0.1:{machine.port}")
    hosts = tuple(replace(host, is_own=is_own) for host in hosts)
    (answer,) = run_async(on_every_worker(hosts, access, nothing))
    return answer


def openssh_accepts(machine: Machine, ssh: Path, config: str) -> bool:
    option = {
        "BatchMode": "yes", "UserKnownHostsFile": ssh / "known_hosts", "IdentitiesOnly": "yes",
        "GlobalKnownHostsFile": "/dev/null", "ControlPath": "none",
    }  # fmt: skip
    words = [f"-o{name}={value}" for name, value in option.items() if name not in config]
    where = ["-i", str(machine.folder / "key"), "-p", str(machine.port), "127.0.0.1", "true"]
    run = ["ssh", "-F", str(ssh / "config"), *words, *where]
    # It may add keys to the file.
    before = (ssh / "known_hosts").read_text()
    asked = subprocess.run(run, capture_output=True, stdin=subprocess.DEVNULL, text=True)
    (ssh / "known_hosts").write_text(before)
    refused = "verification failed" in asked.stderr or "no matching host key" in asked.stderr
    assert asked.returncode == 0 or refused, asked.stderr
    return asked.returncode == 0


def both(machine: Machine, tmp_path: Path, known: str, config: str, more: str) -> None:
    ssh = Path(os.environ["HOME"]) / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "config").write_text(config.format(**machine.words) + "\n")
    (ssh / "known_hosts").write_text(known.format(**machine.words) + "\n")
    (machine.folder / "c").write_text(more.format(**machine.words) + "\n")
    theirs, refusal = openssh_accepts(machine, ssh, config), connect(machine, tmp_path)
    if refusal:
        assert "worker 0" in str(refusal)
        assert refusal.code in ("host_key_changed", "worker_failed", "worker_unreachable")
        assert not theirs, refusal
    elif not theirs:
        # ssh would have asked, as it is a first use, which we announce. Nothing else may differ.
        assert HostKeys(tmp_path / "ours").path.exists()
        assert accepts_first_use(machine, ssh), "accepted although ssh refuses it"


def accepts_first_use(machine: Machine, ssh: Path) -> bool:
    """Whether ssh takes it for a first use, too."""
    config = ssh / "config"
    config.write_text("StrictHostKeyChecking accept-new\n" + config.read_text())
    return openssh_accepts(machine, ssh, config.read_text())


@pytest.mark.parametrize("case", KNOWN)
def test_known_hosts_means_the_same_to_us_and_to_ssh(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    both(machine, tmp_path, KNOWN[case], "", "")


@pytest.mark.parametrize("case", [case for case in KNOWN if "authorit" in case])
def test_an_authority_means_the_same_where_it_has_signed_nothing(
    unsigned: Machine, tmp_path: Path, case: str
) -> None:
    both(unsigned, tmp_path, KNOWN[case], "", "")


@pytest.mark.parametrize("case", ["known", "another key", "another type"])
def test_hashed_names_mean_the_same(machine: Machine, tmp_path: Path, case: str) -> None:
    lines = tmp_path / "lines"
    lines.write_text(KNOWN[case].format(**machine.words) + "\n")
    subprocess.run([KEYGEN or "", "-H", "-f", lines], capture_output=True)
    assert "127.0.0.1" not in lines.read_text()
    both(machine, tmp_path, lines.read_text().strip(), "", "")


@pytest.mark.parametrize("case", CONFIG)
def test_a_configuration_means_the_same_to_us_and_to_ssh(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    known, config, *more = CONFIG[case]
    both(machine, tmp_path, known, config, *(more or [""]))


def test_the_first_key_is_announced_with_its_fingerprint_and_only_once(
    machine: Machine, tmp_path: Path
) -> None:
    said: list[str] = []
    for _ in range(2):
        assert connect(machine, tmp_path, said) is None
    (announced,) = said
    assert f"ssh-ed25519 {fingerprint(machine, 'host')}" in announced
    assert "worker 0 ([127.0.0.1]:" in announced


def fingerprint(machine: Machine, name: str) -> str:
    shown = subprocess.check_output([KEYGEN or "", "-l", "-f", machine.folder / f"{name}.pub"])
    return shown.decode().split()[1]


@pytest.mark.parametrize("is_hashed", [False, True])
def test_a_key_that_differs_from_our_own_record_is_refused(
    machine: Machine, tmp_path: Path, is_hashed: bool
) -> None:
    """The system's ssh adds to that record too, in Debian with hashed names."""
    record = tmp_path / "ours"
    for known in ("other", "ecdsa", "host"):
        record.write_text(f"[127.0.0.1]:{machine.port} {machine.public(known)}\n")
        if is_hashed:
            subprocess.run([KEYGEN or "", "-q", "-H", "-f", record], capture_output=True)
        refusal = connect(machine, tmp_path)
        if known == "host":
            assert refusal is None
            continue
        assert refusal
        assert refusal.code == "host_key_changed"
        for part in ("[127.0.0.1]:", fingerprint(machine, known), fingerprint(machine, "host")):
            assert part in str(refusal)
        subprocess.run(shlex.split(str(refusal.hint).partition(": ")[2]), check=True)
        assert "127.0.0.1" not in record.read_text()
        assert connect(machine, tmp_path) is None


def test_a_key_that_differs_from_the_users_record_is_refused_with_both_fingerprints(
    machine: Machine, tmp_path: Path
) -> None:
    ssh = home() / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "known_hosts2").write_text(f"[127.0.0.1]:{machine.port} {machine.public('other')}\n")
    refusal = connect(machine, tmp_path)
    assert refusal
    for part in ("[127.0.0.1]:", fingerprint(machine, "other"), fingerprint(machine, "host")):
        assert part in str(refusal)
    subprocess.run(shlex.split(str(refusal.hint).partition(": ")[2]), check=True)
    assert connect(machine, tmp_path) is None


def test_a_shared_connection_refuses_another_key(machine: Machine, tmp_path: Path) -> None:
    """As on Colab: the system's ssh notices, through a proxy command."""
    (tmp_path / "known").write_text(f"colab.m {machine.public('other')}\n")
    proxy = (SSHD or "", "-i", "-f", str(machine.folder / "sshd_config"))
    key = machine.folder / "key"
    shared = SharedSsh("colab.m", proxy, key, tmp_path / "known", tmp_path / "errors")
    host = Host(0, "m", pwd.getpwuid(os.getuid()).pw_name, key_alias="colab.m")
    with pytest.raises(HostKeyError) as refusal:
        shared.start(host)
    for part in ("worker 0 (m)", fingerprint(machine, "other"), fingerprint(machine, "host")):
        assert part in str(refusal.value)
    subprocess.run(shlex.split(str(refusal.value.hint).partition(": ")[2]), check=True)
    shared.start(host)
    shared.stop(host)


def test_without_an_ssh_program_a_configuration_means_known_keys_only(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = parse_hosts(f"me@127.0.0.1:{machine.port}")[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_key_rules(user).strict == "ask"
    (home() / ".ssh").mkdir()
    (home() / ".ssh" / "config").write_text("Host *\n")
    assert host_key_rules(user).strict == "yes"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_private_key_that_others_can_read_is_refused_as_ssh_refuses_it(
    machine: Machine, tmp_path: Path, mode: int
) -> None:
    key = machine.folder / "key"
    try:
        key.chmod(mode)
        words = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
        words += ["-o", "UserKnownHostsFile=/dev/null", "-i", str(key), "-p", str(machine.port)]
        asked = subprocess.run(["ssh", *words, "127.0.0.1", "true"], capture_output=True)
        assert b"UNPROTECTED PRIVATE KEY" in asked.stderr
        with pytest.raises(InvalidInputError, match="Other users can read") as refused:
            connect(machine, tmp_path)
        assert refused.value.hint == f"chmod 600 {key}"
    finally:
        key.chmod(0o600)


JUMPS = {
    "one": "Host {address}\n  ProxyJump gate",
    "two": "Host {address}\n  ProxyJump gate,second",
    "user and port of the gate are in its own entry": "Host {address}\n  ProxyJump ssh://gate",
    "over a jump of its own": "Host {address}\n  ProxyJump second\nHost second\n  ProxyJump gate",
    "a command": "Host {address}\n  ProxyCommand {tell} %h %p",
    "loop": "Host *\n  ProxyJump second",
    "to itself": "Host {address} gate\n  ProxyJump gate",
    "none": "Host {address}\n  ProxyJump none\n  ProxyCommand none",
}
"""What leads to a machine, and what the gate has to say about it in the end."""
TELL = """#!{python}
import os, socket, sys, threading
open({mark!r}, "a").write("command\\n")
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := there.recv(65536):
        os.write(1, data)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""


@pytest.fixture(scope="module")
def gate(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that forwards connections for who may log in to the other one."""
    key = machine.folder / "key"
    with running(tmp_path_factory.mktemp("gate"), is_signed=False, key=key) as found:
        yield found


def forwards(gate: Machine) -> int:
    """How many connections the gate was asked to forward."""
    return read(gate.folder / "log").count(b"server_request_direct_tcpip")


@pytest.mark.parametrize("case", JUMPS)
def test_a_jump_host_of_the_configuration_is_used(
    machine: Machine, gate: Machine, tmp_path: Path, case: str
) -> None:
    (home() / ".ssh").mkdir()
    mark, tell = tmp_path / "mark", tmp_path / "tell"
    tell.write_text(TELL.format(python=sys.executable, mark=str(mark)))
    tell.chmod(0o755)
    known = f"[127.0.0.1]:{gate.port} {gate.public('host')}\n"
    known += f"[127.0.0.1]:{machine.port} {machine.public('host')}\n"
    (home() / ".ssh/known_hosts").write_text(known)
    user = pwd.getpwuid(os.getuid()).pw_name
    (home() / ".ssh/config").write_text(
        JUMPS[case].format(address="127.0.0.1", tell=tell) + "\n"
        f"Host gate\n  Hostname 127.0.0.1\n  Port {gate.port}\n  User {user}\n"
        f"Host second\n  Hostname 127.0.0.1\n  Port {gate.port}\n  User {user}\n"
        "Host *\n  StrictHostKeyChecking yes\n"
    )
    before = forwards(gate)
    refusal = connect(machine, tmp_path)
    if case in ("loop", "to itself"):
        assert refusal
        assert "leads back to itself" in str(refusal)
        return
    assert refusal is None
    wanted = {"none": 0, "a command": 0, "two": 2, "over a jump of its own": 2}.get(case, 1)
    assert forwards(gate) - before == wanted
    assert mark.exists() == (case == "a command")


def test_the_configuration_does_not_lead_to_tpus_elsewhere(
    machine: Machine, gate: Machine, tmp_path: Path
) -> None:
    """Only for machines given with --host: a TPU's address is that of the service."""
    (home() / ".ssh").mkdir()
    (home() / ".ssh/config").write_text("Host *\n  HostName nowhere.invalid\n  Port 1\n")
    assert connect(machine, tmp_path, is_own=False) is None
    refusal = connect(machine, tmp_path)
    assert refusal
    assert "unknown host name" in str(refusal)


def test_a_jump_host_with_another_key_is_refused(
    machine: Machine, gate: Machine, tmp_path: Path
) -> None:
    (home() / ".ssh").mkdir()
    (home() / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{gate.port} {gate.public('other')}\n")
    (home() / ".ssh/config").write_text(
        f"Host 127.0.0.1\n  ProxyJump localhost:{gate.port}\nHost localhost\n  Hostname 127.0.0.1\n"
    )
    before = forwards(gate)
    refusal = connect(machine, tmp_path)
    assert refusal
    assert refusal.code == "host_key_changed"
    assert forwards(gate) == before


def test_without_an_ssh_program_a_jump_host_is_still_used(
    machine: Machine, gate: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home() / ".ssh").mkdir()
    known = f"[127.0.0.1]:{gate.port} {gate.public('host')}\n"
    known += f"[127.0.0.1]:{machine.port} {machine.public('host')}\n"
    (home() / ".ssh/known_hosts").write_text(known)
    jump = f"Host 127.0.0.1\n  ProxyJump localhost:{gate.port}\nHost localhost\n"
    jump += f"  Hostname 127.0.0.1\n  ProxyJump none\n  IdentityFile {machine.folder}/key\n"
    (home() / ".ssh/config").write_text(jump)
    monkeypatch.setenv("PATH", str(tmp_path))
    before = forwards(gate)
    assert connect(machine, tmp_path) is None
    assert forwards(gate) == before + 1
