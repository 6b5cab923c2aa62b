"""A tf.data service: real servers, kept alive, used by a real pipeline, ended with their owner."""

import asyncio
import http.server
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

import tpuctl
from tests.attackers import CONNECT, NOBODY, as_nobody, attack, listening_on, own_address
from tests.conftest import Tpuctl
from tests.sharing import free_port
from tests.training_runs import printed
from tpuctl.datasets import serve, serve_agent
from tpuctl.datasets.serve import Watch, line_of, plan_servers
from tpuctl.errors import UsageError
from tpuctl.remote.connection import Connection
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import Stopped

needs_tf = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
CLIENT = """
import sys
import tensorflow as tf
dataset = tf.data.Dataset.range(20).map(lambda number: number * number)
exec(sys.argv[1])
print(sorted(int(number) for number in dataset))
"""


def test_the_dispatcher_is_first_and_workers_are_dealt_out() -> None:
    one, two = plan_servers(["a", "b"], workers=3, port=5050, folder="/w", is_open=True)
    assert [(spec["name"], spec["address"], spec["port"]) for spec in one + two] == [
        ("dispatcher", "a:5050", 5050), ("worker-0", "a:5051", 5051), ("worker-2", "a:5053", 5053),
        ("worker-1", "b:5052", 5052),
    ]  # fmt: skip
    assert {spec.get("dispatcher") for spec in two} == {"a:5050"}
    one, two = plan_servers(["a", "b"], workers=2, port=5050, folder="/w")
    assert [spec["address"] for spec in one + two] == [
        "unix:/w/dispatcher", "unix:/w/worker-0", "unix:/w/worker-1",
    ]  # fmt: skip
    assert two[0]["dispatcher"] == "unix:/w/dispatcher"


def test_what_agents_say_becomes_one_announcement_and_notes() -> None:
    said: list[str] = []
    plans = plan_servers(["h"], workers=1, port=7000, folder="/w", is_open=True)
    watch = Watch(plans, lambda service: said.append(service.line), said.append)
    watch.take('{"event": "ready", "name": "worker-0"}')
    assert said == []
    watch.is_connected = False
    watch.take('{"event": "ready", "name": "dispatcher"}')
    assert said == []
    watch.is_connected = True
    watch.announce()
    assert said == [line_of("grpc://h:7000")]
    watch.take('{"event": "died", "name": "worker-0", "how": "signal 9", "said": ""}')
    watch.take('{"event": "ready", "name": "worker-0"}')
    watch.take("a warning of a library")
    assert said[1:] == [
        "worker-0 ended (signal 9) and is restarted.",
        "worker-0 is back.",
        "a warning of a library",
    ]
    assert watch.service().servers[1].restarts == 1
    watch.take('{"event": "failed", "name": "worker-0", "how": "exit code 1", "said": "why"}')
    assert str(watch.error) == "The worker-0 ended with exit code 1: why."


def test_a_service_without_workers_is_a_wrong_use(tpuctl: Tpuctl) -> None:
    assert tpuctl("data", "serve", "--workers", "0").exit_code == 2


@pytest.mark.parametrize("port", ["99999", "0", "-1", "http", "65535"])
def test_a_port_that_does_not_exist_is_a_wrong_use_at_once(tpuctl: Tpuctl, port: str) -> None:
    for where in ([], ["--host", "me@127.0.0.1"]):
        words = ["data", "serve", *where, "--allow-unauthenticated", "--port", port]
        assert tpuctl(*words).exit_code == 2


def test_a_port_from_python_is_checked_too_and_needs_the_flag_that_names_the_risk() -> None:
    with pytest.raises(UsageError, match="--port has to be from 1 to 65533"):
        tpuctl.data.serve(workers=2, port=99999, allow_unauthenticated=True)
    with pytest.raises(UsageError, match="--port needs --allow-unauthenticated"):
        tpuctl.data.serve(port=5050)


# A server as TensorFlow's are: on all interfaces, for everybody. It answers with its user, and
# with what a page outside of its network says.
BARE = """
import os, socket, urllib.request
server = socket.create_server(("0.0.0.0", int(server["port"])))
os.write(1, b"ready\\n")
while True:
    near = server.accept()[0]
    page = urllib.request.urlopen(near.recv(100).decode()).read()
    near.sendall(b"%d %s" % (os.getuid(), page))
    near.close()
"""
ISOLATE = """
import json, queue, sys, threading
from pathlib import Path
path, folder, port, bare = sys.argv[1:]
agent = {"__name__": "agent"}
exec(Path(path).read_text(), agent)
agent["CHILD"] = "import json, sys\\nserver = json.loads(sys.argv[2])" + bare
events = queue.Queue()
server = agent["Server"]({"name": "dispatcher", "port": int(port)}, events, threading.Event())
agent["isolated"]({"folder": folder, "machine": 3}, [server])
print(sorted(events.get(timeout=60)["event"] for _ in "12"), flush=True)
sys.stdin.read()
server.end()
"""


@pytest.fixture
def page() -> Iterator[str]:
    """A web page on this machine's loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + self.path.encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x?y=1"
        server.shutdown()


@pytest.mark.parametrize("is_root", [True, False])
def test_a_server_is_reached_by_the_socket_of_its_owner_only(is_root: bool, page: str) -> None:
    port = str(free_port())
    folder = f"/tmp/tpuctl-serve-test-{secrets.token_hex(6)}"
    words = [ISOLATE, serve_agent.__file__, folder, port, BARE]
    words = [sys.executable, "-c", *words] if is_root else as_nobody(*words)
    pipes: Any = {"stdin": -1, "stdout": -1, "stderr": -1, "text": True}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stdout
        assert process.stderr
        first = process.stdout.readline()
        if not first and "unshare" in (problem := process.stderr.read()):
            pytest.skip(f"this machine allows no namespaces: {problem[-100:]}")
        assert first == "['machine', 'ready']\n"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{folder}/dispatcher")
            client.sendall(page.encode())
            uid = os.getuid() if is_root else NOBODY
            assert client.recv(100) == f"{uid} /x?y=1".encode()
        for host in ("127.0.0.1", own_address()):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        if is_root:
            said = attack(CONNECT, f"unix:{folder}/dispatcher", f"127.0.0.1:{port}").stdout
            assert said.split()[::2] == ["PermissionError", "ConnectionRefusedError"]
        process.communicate()
    shutil.rmtree(folder)


def test_a_folder_that_somebody_else_made_first_is_not_used(tmp_path: Path) -> None:
    for place in (tmp_path / "open", tmp_path / "link"):
        if place.name == "open":
            place.mkdir(mode=0o755)
        else:
            place.symlink_to(tmp_path)
        with pytest.raises(PermissionError, match="only we can enter"):
            serve_agent.claim_folder(str(place))
    serve_agent.claim_folder(str(tmp_path / "new"))
    serve_agent.claim_folder(str(tmp_path / "new"))


@needs_tf
def test_without_namespaces_it_refuses_and_names_the_flag_with_the_risk() -> None:
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    words = [sys.executable, "-m", "tpuctl", "data", "serve", "--json"]
    try:
        subprocess.run(["unshare", "-Ur", "sh", "-c", forbid, "sh", "true"], check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"this machine allows no user namespaces: {problem}")
    refused = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", forbid, "sh", *words], capture_output=True, text=True
    )
    assert refused.returncode == 1
    (error,) = json.loads(refused.stdout)["errors"]
    assert "does not allow a private network: unshare: " in error["message"]
    assert "Invalid argument" not in error["message"]
    assert error["hint"].endswith("--allow-unauthenticated")


@contextmanager
def serving(*options: str) -> "Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]":
    words = [sys.executable, "-m", "tpuctl", "data", "serve", "--json", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        document = ""
        while line := process.stdout.readline():
            document += line
            if line.startswith("}") or _is_json(document):
                break
        yield process, json.loads(document)
    finally:
        process.kill()
        process.communicate()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def used(line: str, folder: Path) -> list[int]:
    """The elements that a client gets; OFF gives them once per worker that takes part."""
    found: list[int] = json.loads(printed("tensorflow", CLIENT, folder, line))
    return sorted(set(found))


def children(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def named(process: "subprocess.Popen[str]", name: str) -> psutil.Process:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in children(process):
            with suppress(psutil.Error):  # it has just ended
                words = child.cmdline()
                if "-c" in words and f'"name": "{name}"' in words[-1]:
                    return child
    raise AssertionError(f"there is no {name}")


EXPECTED = [number * number for number in range(20)]


@needs_tf
@pytest.mark.tf
def test_a_pipeline_runs_on_it_and_its_servers_are_kept_alive(tmp_path: Path) -> None:
    with serving("--workers", "1") as (process, document):
        data = document["data"]
        assert data["target"].startswith("grpc://unix:/tmp/tpuctl-serve-")
        assert document["warnings"] == []
        assert [server["name"] for server in data["servers"]] == ["dispatcher", "worker-0"]
        first = named(process, "worker-0")
        first.kill()
        named(process, "dispatcher").kill()
        assert listening_on([psutil.Process(process.pid), *children(process)]) == []
        if os.geteuid() == 0:
            said = attack(CONNECT, *(server["address"] for server in data["servers"])).stdout
            assert said.split()[::2] == ["PermissionError"] * 2
        assert used(data["line"], tmp_path) == EXPECTED
        assert named(process, "worker-0").pid != first.pid
        everybody = children(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert psutil.wait_procs(everybody, timeout=120)[1] == []
        assert process.stderr is not None
        said = process.stderr.read()
        assert "worker-0 ended (signal 9) and is restarted." in said
        assert "The service has stopped." in said


THIEF = """
import sys
sys.modules.update(keras=None, jax=None)
import tensorflow as tf
dataset = tf.data.Dataset.range(1).map(lambda _: tf.io.read_file(sys.argv[2])).repeat()
exec(sys.argv[1])
print(next(iter(dataset)).numpy().decode())
"""


@needs_tf
@pytest.mark.tf
def test_an_open_service_gives_files_away_and_says_so_and_its_port_in_use_is_said(
    tmp_path: Path,
) -> None:
    """The twin of the tests above: what they try works on a bare service."""
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    secret.chmod(0o600)
    with serving("--allow-unauthenticated", "--port", str(free_port())) as (process, document):
        assert "without authentication" in document["warnings"][0]
        target = document["data"]["target"]
        assert "localhost" not in target
        everybody = children(process)
        assert len(listening_on(everybody)) == 2
        if os.geteuid() == 0:
            stolen = attack(THIEF, document["data"]["line"], str(secret))
            assert stolen.stdout == "do not tell\n", stolen.stderr
        words = [sys.executable, "-m", "tpuctl", "data", "serve", "--json"]
        words += ["--allow-unauthenticated", "--port", target.rpartition(":")[2]]
        second = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert second.returncode == 1
        (error,) = json.loads(second.stdout)["errors"]
        assert error["code"] == "service_failed"
        assert f"port {target.rpartition(':')[2]} is in use" in error["message"]
        assert "--port" in error["hint"]
        process.kill()
        assert psutil.wait_procs(everybody, timeout=120)[1] == []


# Another machine, as far as /tmp goes: an sshd that sees only the test's own folder there.
ELSEWHERE = """
mount --make-rprivate / && mount -t tmpfs none /mnt && mkdir /mnt/kept &&
mount --bind "$1" /mnt/kept && mount -t tmpfs none /tmp && mkdir -p "$1" &&
mount --bind /mnt/kept "$1" && shift && exec "$@"
"""


@needs_tf
@pytest.mark.tf
def test_it_runs_on_other_machines_over_ssh(tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    from tests.test_remote_sshd import running_sshd

    elsewhere: tuple[str, ...] = ("unshare", "-m", "sh", "-c", ELSEWHERE, "sh", str(tmp_path))
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        elsewhere = ()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        running_sshd(tmp_path / "a", start=elsewhere) as one,
        running_sshd(tmp_path / "b", start=elsewhere, key=one.key) as two,
    ):
        hosts = f"{one.option},{two.option}"
        options = ["--host", hosts, "--key", str(one.key), "--python", sys.executable]
        with serving(*options) as (process, document):
            data = document["data"]
            folder = Path(data["target"].removeprefix("grpc://unix:")).parent
            # Of the machines in between, this one has the ends of the tunnels only.
            assert (folder / "journal").exists() == (not elsewhere)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            servers = [psutil.Process(pid) for pid in alive_in(folder)]
            assert len(servers) >= 3
            assert listening_on(servers) == []
            assert used(data["line"], tmp_path) == EXPECTED
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        assert not folder.exists()
        assert alive_in(folder) == []


def alive_in(folder: Path) -> list[int]:
    """The processes on any machine here that have the folder of a service in their arguments."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def test_a_machine_that_never_reports_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REPORT_S", 0.0)
    hosts = tuple(Host(index, f"10.0.0.{index}", "me") for index in range(2))
    plans = plan_servers(["a", "b"], workers=2, port=5050, folder="/x", is_open=False)
    watch = Watch(plans, lambda service: None, lambda note: None, False)
    watch.machines[0] = "here"
    tunnels = serve._Tunnels("/x", hosts, watch)
    with pytest.raises(Stopped):
        asyncio.run(tunnels.open(cast(Connection, SimpleNamespace(host=hosts[0]))))
    assert "machine 1 within" in str(watch.error)
