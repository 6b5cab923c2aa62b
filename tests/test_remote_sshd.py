"""The same commands against OpenSSH's own server, and what the agent may take for granted."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

import tpuctl
from tests.sharing import free_port
from tests.waiting import wait_until
from tests.workers import IMPATIENT, Heard, alive, new_key, sshd_environment
from tpuctl.errors import UsageError
from tpuctl.remote import agent
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.chips import DEVICES
from tpuctl.remote.agent.metrics import DUTY_CYCLE, HBM_USED
from tpuctl.remote.agent.top import PORTS
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import plan_copy
from tpuctl.remote.hosts import Host, parse_hosts
from tpuctl.remote.jobs import start_job, stop_job
from tpuctl.remote.logs import read_logs
from tpuctl.remote.payload import COMMAND, NEEDS, request_bytes
from tpuctl.remote.run import plan_command, run_command
from tpuctl.remote.ssh import plan_shell

pytestmark = pytest.mark.slow

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@dataclass(frozen=True)
class Server:
    """A running sshd, and how to reach it."""

    hosts: tuple[Host, ...]
    access: Access
    option: str
    key: Path
    pid: int


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Server]:
    with running_sshd(tmp_path) as server:
        yield server


@contextmanager
def running_sshd(
    tmp_path: Path,
    kind: str = "ssh-ed25519",
    env: dict[str, str] | None = None,
    *,
    key: Path | None = None,
    start: tuple[str, ...] = (),
) -> Iterator[Server]:
    if SSHD is None:
        pytest.skip("OpenSSH's sshd is not installed (apt-get install openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    key = key or tmp_path / "key"
    if not key.exists():
        new_key(key)
    new_key(tmp_path / "host", kind)
    port = free_port()
    config = tmp_path / "config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {key}.pub\nPidFile none\nUsePAM no\n" + sshd_environment(**(env or {}))
    )
    user = subprocess.check_output(["id", "-un"], text=True).strip()
    option = f"{user}@127.0.0.1:{port}"
    command = [*start, SSHD, "-D", "-e", "-f", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr
            while b"listening" not in (line := server.stderr.readline()):
                if not line:
                    pytest.skip("sshd does not start on this machine")
            keys = HostKeys(tmp_path / "known_hosts")
            access = Access((key,), keys, timeouts=IMPATIENT)
            yield Server(parse_hosts(option), access, option, key, server.pid)
        finally:
            server.kill()


def test_run_passes_words_output_and_exit_code(sshd: Server) -> None:
    heard = Heard()
    code = "import sys; sys.stdout.write(sys.argv[1]); sys.stderr.write('e'); sys.exit(9)"
    command = plan_command(["python3", "-c", code, "a 'b' \"c\" $d\nü"])
    result = run_command(sshd.hosts, command, sshd.access, sink=heard)
    assert result.exit_code == 9
    assert (heard.out.decode(), heard.err) == ("a 'b' \"c\" $d\nü", b"e")


def test_a_server_with_an_rsa_key_alone_is_known_again(tmp_path: Path) -> None:
    with running_sshd(tmp_path, "ssh-rsa") as server:
        for _ in range(2):
            ended = run_command(server.hosts, plan_command(["true"]), server.access, sink=Heard())
            assert ended.failures == ()
        assert (server.access.host_keys.find(server.hosts[0]) or "").startswith("ssh-rsa ")


def test_a_command_ends_when_its_connection_is_cut(sshd: Server) -> None:
    marker = f"sshd-{os.getpid()}"

    def cut(stream: int, data: bytes) -> None:
        children = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(sshd.pid)], text=True)
        subprocess.run(["kill", "-9", *children.split()], check=True)

    command = plan_command(["sh", "-c", "echo up; sleep 600; :", marker])
    result = run_command(sshd.hosts, command, sshd.access, sink=cut)
    assert result.failures[0].code == "worker_lost"
    wait_until(lambda: alive(marker) == [])


def test_a_job_is_followed_and_stopped(sshd: Server) -> None:
    job = f"test-{os.getpid()}"
    home = Path(os.path.expanduser(f"~{sshd.hosts[0].user}"))
    folder = home / ".tpuctl" / "jobs" / job
    try:
        command = plan_command(["sh", "-c", "for i in 1 2 3; do echo $i; done; exit 4"])
        assert start_job(sshd.hosts, command, sshd.access, job=job).exit_code == 0
        heard = Heard()
        ended = read_logs(
            sshd.hosts, sshd.access, sink=heard, note=lambda _: None, job=job, follow=True
        )
        assert (ended.exit_code, heard.out) == (4, b"1\n2\n3\n")
        assert stop_job(sshd.hosts, sshd.access, job=job).workers[0].was == "finished"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_folder_goes_there_and_comes_back(sshd: Server, tmp_path: Path) -> None:
    pytest.importorskip("pathspec")
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a").write_bytes(os.urandom(1 << 20))
    there, back = tmp_path / "there", tmp_path / "back"
    for origin, target in ((str(source), f":{there}"), (f":{there}", str(back))):
        assert (
            copy(sshd.hosts, sshd.access, plan_copy(origin, target, has_hosts=True)).exit_code == 0
        )
    assert (back / "sub" / "a").read_bytes() == (source / "sub" / "a").read_bytes()


@pytest.mark.slow
def test_chips_are_watched_and_freed(tpuctl, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed")
    from tpuctl.emulator._metrics import serve_metrics

    chip = tmp_path / "dev" / "accel0"
    chip.parent.mkdir()
    chip.touch()
    port = free_port()
    env = {DEVICES: str(chip.parent), PORTS: str(port)}
    with running_sshd(tmp_path, env=env) as server, chip.open("rb") as held:
        where = ("--host", server.option, "--key", str(server.key))
        metrics = serve_metrics(lambda: {DUTY_CYCLE: [12.5], HBM_USED: [7]}, port)
        with subprocess.Popen(["sleep", "600"], stdin=held) as holder:
            (worker,) = tpuctl("top", *where, "--json").data["workers"]
            assert worker["chips"][0]["duty_cycle_percent"] == 12.5
            assert worker["chips"][0]["hbm_used_bytes"] == 7
            assert worker["vcpu_percent"] is not None
            pids = {one["pid"] for one in holders(tpuctl("free", *where, "--dry-run", "--json"))}
            assert {holder.pid, os.getpid()} == pids
            held.close()
            freed = tpuctl("free", *where, "--yes", "--json")
            assert freed.exit_code == 0
            assert [one["outcome"] for one in holders(freed)] == ["ended"]
            assert holder.wait() == -15
        metrics.stop(grace=None).wait()


def holders(result: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.data["workers"][0]["holders"]
    return found


@pytest.mark.slow
def test_the_command_line_copies_starts_follows_and_stops(
    tpuctl, sshd: Server, tmp_path: Path
) -> None:
    pytest.importorskip("pathspec")
    where = ("--host", sshd.option, "--key", str(sshd.key))
    job, marker = f"cli-{os.getpid()}", f"sshd-cli-{os.getpid()}"
    home = Path(os.path.expanduser(f"~{sshd.hosts[0].user}"))
    script = tmp_path / "train.sh"
    script.write_text("echo begun; sleep 600; :\n")
    try:
        assert tpuctl("cp", str(script), f":{tmp_path}/there/", *where).exit_code == 0
        words = ("sh", f"{tmp_path}/there/train.sh", marker)
        assert tpuctl("run", *where, "--job", job, "--no-check", "--", *words).exit_code == 0
        follower = subprocess.Popen(
            [sys.executable, "-m", "tpuctl", "logs", *where, "-f", "--job", job],
            stdout=subprocess.PIPE,
        )
        assert follower.stdout
        assert follower.stdout.readline() == b"begun\n"
        assert "Stopped job" in tpuctl("stop", *where, "--job", job).stdout
        assert follower.communicate()[0] == b""
        assert follower.returncode == 143
        assert alive(marker) == []
    finally:
        shutil.rmtree(home / ".tpuctl" / "jobs" / job, ignore_errors=True)


def test_the_way_may_lead_over_another_machine(sshd: Server, tpuctl) -> None:
    where = ("--host", sshd.option, "--jump", sshd.option, "--key", str(sshd.key))
    result = tpuctl("run", *where, "--json", "--", "echo", "hi")
    assert result.data["workers"][0]["stdout"] == "hi\n"


def test_a_script_is_launched_there(tpuctl, sshd: Server, tmp_path: Path) -> None:
    job, code = f"launch-{os.getpid()}", tmp_path / f"code-{os.getpid()}"
    home = Path(os.path.expanduser(f"~{sshd.hosts[0].user}"))
    code.mkdir()
    (code / "train.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    words = (str(code / "train.py"), "--code", str(code), "--job", job)
    try:
        where = ("--host", sshd.option, "--key", str(sshd.key))
        result = tpuctl("launch", *words, *where, "--", "5")
        assert result.exit_code == 5, result.stderr
        assert (home / code.name / "train.py").exists()
    finally:
        shutil.rmtree(home / ".tpuctl" / "jobs" / job, ignore_errors=True)
        shutil.rmtree(home / code.name, ignore_errors=True)


def test_a_watch_keeps_a_job_alive_on_a_plain_sshd(tmp_path: Path) -> None:
    """The service is the emulator's, its one worker a machine that has sshd alone."""
    pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")
    from tests.watch_world import LATER_S, JumpingClock, WatchWorld, preempt
    from tpuctl.emulator.machines import Machines
    from tpuctl.emulator.server import serve
    from tpuctl.emulator.world import World
    from tpuctl.supervise.actions import Login

    class Behind(Machines):
        """One machine is every worker, and lives on when a TPU is taken away."""

        def __init__(self, port: int) -> None:
            self.port = port

        def sync(self, world: World) -> None:
            for node in world.nodes.values():
                node.addresses, node.ssh_port = (("127.0.0.1", "127.0.0.1"),), self.port

    for chip in range(8):
        (tmp_path / f"accel{chip}").touch()
    scenario, clock = {"provision_s": 60, "faults": [preempt()]}, JumpingClock()
    with (
        running_sshd(tmp_path, env={DEVICES: str(tmp_path)}) as server,
        serve(scenario, clock=clock) as emulator,
    ):
        (host,), world = server.hosts, WatchWorld(emulator, clock, tmp_path)
        world.login = Login(host.user, key=server.key)
        world.script("echo attempt $TPUCTL_ATTEMPT; [ $TPUCTL_ATTEMPT -gt 1 ] || sleep 600")
        world.strikes = {"before follow": LATER_S}
        emulator.machines = Behind(host.port)
        ended = world.watch(folder=str(tmp_path / "there"))
    home = Path(os.path.expanduser(f"~{host.user}"))
    for attempt in ended.attempts:
        shutil.rmtree(home / ".tpuctl" / "jobs" / attempt.job)
    assert (ended.exit_code, world.causes(ended)) == (0, ["preempted", "done"]), ended.error
    assert b"attempt 2\n" in world.heard.out


def test_a_shell_uses_the_systems_ssh_with_our_keys_and_host_keys(sshd: Server) -> None:
    if not shutil.which("ssh"):
        pytest.skip("there is no ssh client (apt-get install openssh-client)")
    assert run_command(sshd.hosts, plan_command(["true"]), sshd.access, sink=Heard()).exit_code == 0
    argv = plan_shell(sshd.hosts, sshd.access).argv
    strict = [word.replace("accept-new", "yes") for word in argv]
    shell = subprocess.run(
        [strict[0], "-T", *strict[1:]],
        input="echo $((6 * 7))\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert shell.stderr == ""
    assert shell.stdout.endswith("42\n")


def test_a_shell_needs_one_worker(sshd: Server) -> None:
    with pytest.raises(UsageError):
        plan_shell(sshd.hosts * 2, sshd.access)


ROOT = Path(tpuctl.__file__).parents[1]
SHARED = {name for needs in NEEDS.values() for name in needs if "." in name}
AGENT = [
    *sorted(Path(agent.__file__ or "").parent.glob("*.py")),
    *(ROOT / f"{name.replace('.', '/')}.py" for name in sorted(SHARED)),
]


@pytest.mark.parametrize("path", AGENT, ids=lambda path: path.name)
def test_the_agent_is_python_3_8_and_imports_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules - {"tpuctl"} <= set(sys.stdlib_module_names)
    assert all(
        (node.module or "").startswith(("tpuctl.remote.agent", *SHARED))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tpuctl")
    )


REQUESTS: dict[str, dict[str, Any]] = {
    "run.run": {"argv": ["true"], "env": {}, "folder": None, "lease_s": 9.0},
    "jobs.show": {},
    "copy.deliver": {"path": "/etc/hostname"},
    "chips.probe": {"known": {}, "packages": ["numpy"]},
    "chips.look": {"known": {}},
    "top.watch": {"known": {}, "interval_s": 0.01, "count": 1, "lease_s": 9.0},
}


@pytest.mark.parametrize("operation", REQUESTS)
def test_the_agent_runs_on_the_oldest_python_that_is_promised(operation: str) -> None:
    python = shutil.which("python3.8")
    # A shim of pyenv may stand for a version that is not there.
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip("python3.8 is not installed")
    command = ["sh", "-c", COMMAND.replace("python3", python)]
    talk = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert talk.stdin
    assert talk.stdout
    talk.stdin.write(request_bytes(operation, **REQUESTS[operation]))
    talk.stdin.flush()
    said, frames = talk.stdout.read(len(wire.MARK)), bytearray()
    while not (found := list(wire.split_frames(frames))):
        frames += talk.stdout.read(1)
    talk.stdin.close()
    talk.stdout.read()
    talk.stdout.close()
    assert said == wire.MARK
    assert talk.wait() == (1 if operation == "copy.deliver" else 0)
    assert b"refused" not in found[0][1]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "csh", "tcsh"])
def test_the_agents_command_means_the_same_to_every_shell(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    request: dict[str, Any] = {"argv": ["echo", "hi"], "env": {}, "folder": None, "lease_s": 9.0}
    talk = subprocess.Popen([shell, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert talk.stdin
    assert talk.stdout
    talk.stdin.write(request_bytes("run.run", **request))
    talk.stdin.flush()
    said = bytearray(talk.stdout.read())
    talk.stdin.close()
    talk.stdout.close()
    assert talk.wait() == 0
    assert said.startswith(wire.MARK)
    del said[: len(wire.MARK)]
    assert (wire.STDOUT, b"hi\n") in list(wire.split_frames(said))


def test_a_command_that_nobody_watches_any_more_is_stopped_by_its_worker() -> None:
    marker = f"lease-{os.getpid()}"
    request: dict[str, Any] = {
        "argv": ["sh", "-c", "sleep 600; :", marker],
        "env": {},
        "folder": None,
    }
    talk = subprocess.Popen(["sh", "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert talk.stdin
    assert talk.stdout
    talk.stdin.write(request_bytes("run.run", **request, lease_s=0.2))
    talk.stdin.flush()
    talk.stdout.read()
    talk.stdin.close()
    talk.stdout.close()
    assert talk.wait() == 0
    assert alive(marker) == []
