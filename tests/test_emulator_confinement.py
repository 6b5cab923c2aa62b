"""What runs on an emulated worker does no harm to this machine, and scp reaches the worker."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")

from tests.waiting import wait_until
from tests.workers import alive, new_key
from tpuctl.emulator._ssh_server import EmulatedWorker, WorkerServers
from tpuctl.emulator.confine import Confinement
from tpuctl.emulator.worker_processes import DEVICES, MARK

pytestmark = pytest.mark.slow


@pytest.fixture
def confined(tmp_path: Path) -> Iterator[Confinement]:
    home = tmp_path / "worker" / "home"
    home.mkdir(parents=True)
    found = Confinement(home, tmp_path / "worker" / "tmp", {MARK: str(home)})
    if not found.is_supported:
        pytest.skip("this system has no namespaces for us")
    yield found
    found.close()


def run(confined: Confinement, command: str) -> "subprocess.CompletedProcess[str]":
    whole = confined.command(["/bin/sh", "-c", command])
    return subprocess.run(whole, capture_output=True, text=True, timeout=60)


def test_a_worker_writes_its_home_and_a_tmp_of_its_own(
    confined: Confinement, tmp_path: Path
) -> None:
    done = run(confined, "pwd; echo a > a && echo b > /tmp/b && cat a /tmp/b; exit 7")
    assert (done.returncode, done.stdout) == (7, f"{confined.home}\na\nb\n")
    assert (confined.home / "a").read_text() == "a\n"
    assert (tmp_path / "worker" / "tmp" / "b").read_text() == "b\n"
    assert not Path("/tmp/b").exists() or Path("/tmp/b").read_text() != "b\n"


@pytest.mark.parametrize(
    "attack",
    [
        "rm -rf {victim}",
        "rm -rf /etc/hostname {victim}",
        "mount -o remount,rw / ; rm -rf {victim}",
        "unshare --user -r --mount sh -c 'mount -o remount,bind,rw /; rm -rf {victim}'",
        "umount -l /; umount -l {victim}; rm -rf {victim}",
        "echo broken > {victim}/file",
        "chmod 000 {victim}/file",
        "mv {victim} {victim}2",
        "ln -s {victim} here; rm -rf here/",
        "{python} -c \"import shutil; shutil.rmtree('{victim}')\"",
    ],
)
def test_a_worker_cannot_change_the_files_of_this_machine(
    confined: Confinement, attack: str
) -> None:
    victim = Path(sys.prefix, f"victim-{os.getpid()}")
    victim.mkdir()
    try:
        (victim / "file").write_text("kept")
        before = (victim / "file").stat().st_mode
        run(confined, attack.format(victim=victim, python=sys.executable))
        assert (victim / "file").read_text() == "kept"
        assert (victim / "file").stat().st_mode == before
    finally:
        shutil.rmtree(victim)


def test_a_worker_cannot_read_the_keys_and_settings_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = Path(sys.prefix, f"user-{os.getpid()}")
    secrets = [user / ".ssh" / "id", user / ".config" / "gcloud" / "adc.json", user / ".netrc"]
    program = user / ".tools" / "bin" / "tool"
    try:
        for path in (*secrets, program, user / "notes"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("secret")
        monkeypatch.setenv("HOME", str(user))
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        home = tmp_path / "worker" / "home"
        home.mkdir(parents=True)
        confined = Confinement(home, tmp_path / "worker" / "tmp", {MARK: str(home)})
        if not confined.is_supported:
            pytest.skip("this system has no namespaces for us")
        for path in secrets:
            assert "secret" not in run(confined, f"cat {path}").stdout
        for path in (program, user / "notes"):
            assert run(confined, f"cat {path}").stdout == "secret"
        confined.close()
    finally:
        shutil.rmtree(user)


def test_the_same_command_does_harm_without_the_confinement(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    subprocess.run(Confinement(tmp_path).command(["rm", "-rf", str(victim)]), check=True)
    assert not victim.exists()


def test_a_worker_neither_sees_nor_ends_the_processes_of_this_machine(
    confined: Confinement,
) -> None:
    outside = subprocess.Popen(["sleep", "1000000"])
    try:
        run(confined, f"kill -9 {outside.pid}; kill -9 -1; kill -9 1")
        assert outside.poll() is None
        assert "1000000\n" not in run(confined, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'").stdout
    finally:
        outside.kill()
        outside.wait()


@pytest.mark.parametrize("command", ["reboot", "shutdown -h now", "poweroff -f", "systemctl halt"])
def test_a_worker_cannot_turn_this_machine_off(confined: Confinement, command: str) -> None:
    # Tried in the confinement only, after a check that it hides what turns a machine off.
    hidden = "ls /run | wc -l; grep CapEff /proc/self/status"
    empty, capabilities = run(confined, hidden).stdout.splitlines()
    assert (empty.strip(), capabilities.split()[1].strip("0")) == ("0", "")
    # Its first process begins as Python.
    wait_until(lambda: run(confined, "cat /proc/1/comm").stdout == "sleep\n")
    assert run(confined, command).returncode != 0


def test_the_processes_of_a_worker_end_with_it(confined: Confinement) -> None:
    run(confined, "setsid sleep 7654321 > /dev/null 2>&1 < /dev/null &")
    wait_until(lambda: alive("7654321"))
    confined.close()
    wait_until(lambda: not alive("7654321"))


def test_a_later_session_sees_what_an_earlier_one_started(confined: Confinement) -> None:
    pid = run(confined, "sleep 1234567 > /dev/null 2>&1 & echo $!").stdout.strip()
    assert run(confined, f"kill {pid}").returncode == 0
    wait_until(lambda: not alive("1234567"))


def test_a_signal_is_passed_on(confined: Confinement) -> None:
    assert run(confined, "kill -9 $$").returncode == -9


@pytest.fixture
def worker(confined: Confinement, tmp_path: Path) -> Iterator[EmulatedWorker]:
    key = tmp_path / "key"
    new_key(key)
    public = key.with_suffix(".pub").read_text()
    servers = WorkerServers()
    yield servers.start(
        ["127.0.0.1"],
        0,
        confinement=confined,
        env={DEVICES: str(tmp_path)},
        host_key=tmp_path / "host_key",
        authorized_keys=lambda _: [public],
    )
    servers.close()


def scp(worker: EmulatedWorker, tmp_path: Path, *arguments: str) -> int:
    if not shutil.which("scp"):
        pytest.skip("scp is not installed")
    options = ["-i", str(tmp_path / "key"), "-P", str(worker.port), "-F", "/dev/null"]
    options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    return subprocess.run(["scp", *options, *arguments], capture_output=True, timeout=60).returncode


def test_scp_reaches_the_home_and_the_tmp_of_a_worker(
    worker: EmulatedWorker, confined: Confinement, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("1")
    there = "me@127.0.0.1:"
    assert scp(worker, tmp_path, "-r", str(tmp_path / "code"), there) == 0
    assert (confined.home / "code" / "a.py").read_text() == "1"
    assert (confined.home / "code").stat().st_mode & 0o777 == 0o755
    assert scp(worker, tmp_path, str(tmp_path / "code" / "a.py"), f"{there}/tmp/b.py") == 0
    assert run(confined, "cat /tmp/b.py").stdout == "1"
    assert scp(worker, tmp_path, f"{there}/tmp/b.py", str(tmp_path / "back")) == 0
    assert (tmp_path / "back").read_text() == "1"


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../" * 40 + "etc/hostname", "/tmp/../etc/hostname"]
)
def test_scp_reaches_nothing_else(worker: EmulatedWorker, tmp_path: Path, path: str) -> None:
    assert scp(worker, tmp_path, f"me@127.0.0.1:{path}", str(tmp_path / "stolen")) != 0
    assert scp(worker, tmp_path, str(tmp_path / "key.pub"), f"me@127.0.0.1:{path}-new") != 0
    assert not (tmp_path / "stolen").exists()
    assert not Path(f"{path}-new").exists()
