"""Workers: fan-out over 64 and 256 of them, 100 MB of log, 5,000 small files against rsync."""

import hashlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh

from tpuctl.emulator._ssh_server import WorkerServers
from tpuctl.emulator.confine import Confinement

LINES, LINE_BYTES = 1_000_000, 100
FILES = 5_000
MEMORY = Path("/dev/shm")
WRITER = (
    f"import sys\nfor n in range({LINES}): sys.stdout.write(str(n).zfill({LINE_BYTES - 1}) + '\\n')"
)
SERVER = (
    "import sys; from benchmarks.remote_fanout import serve; serve(int(sys.argv[1]), sys.argv[2])"
)


def main() -> None:
    """Print what is promised, each as a ratio within this run."""
    with _place(None) as root:
        with _workers(root, 256) as hosts:
            _measure_fanout(root, hosts)
            _measure_log(root, hosts)
        _measure_copy(root, "on this disk, which the eight share")
    if MEMORY.is_dir():
        # Eight real workers have a disk each; memory is the nearest to that on one machine.
        with _place(MEMORY) as root:
            _measure_copy(root, "in memory")


@contextmanager
def _place(parent: Path | None) -> Iterator[Path]:
    """A folder for workers, with the key that opens them."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        root = Path(name)
        os.environ["TPUCTL_STATE_DIR"] = str(root / "state")
        key = asyncssh.generate_private_key("ssh-ed25519")
        (root / "key").write_bytes(key.export_private_key())
        (root / "key").chmod(0o600)
        (root / "key.pub").write_bytes(key.export_public_key())
        yield root


def serve(count: int, folder: str) -> None:
    """Be so many workers until stdin ends; says where each listens."""
    root, servers = Path(folder), WorkerServers()
    public = (root / "key.pub").read_text()
    for index in range(count):
        address = f"127.9.{index // 200}.{index % 200 + 1}"
        worker = servers.start(
            [address],
            0,
            confinement=Confinement(root / "homes" / str(index)),
            env={},
            host_key=root / "host_key",
            authorized_keys=lambda user: [public],
        )
        sys.stdout.write(f"me@{address}:{worker.port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    servers.close()


@contextmanager
def _workers(root: Path, count: int) -> Iterator[list[str]]:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(count), str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin
    assert server.stdout
    try:
        yield [server.stdout.readline().strip() for _ in range(count)]
    finally:
        server.communicate()


def _tpuctl(root: Path, hosts: list[str], command: str, *words: str) -> list[str]:
    where = ["--host", ",".join(hosts), "--key", str(root / "key")]
    return [sys.executable, "-m", "tpuctl", command, *where, *words]


def _measure_fanout(root: Path, hosts: list[str]) -> None:
    def true_on(count: int) -> list[str]:
        return _tpuctl(root, hosts[:count], "run", "--", "true")

    _seconds(true_on(256))
    one_s = _median_s(lambda: _seconds(true_on(1)))
    many_s = _median_s(lambda: _seconds(true_on(64)))
    print(f"run -- true: 64 workers / one: {many_s / one_s:.2f} (at most 6)")
    child = subprocess.Popen(true_on(256))
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    print(f"run -- true: 256 workers: {usage.ru_maxrss / 1024:.0f} MiB (at most 1024)")


def _measure_log(root: Path, hosts: list[str]) -> None:
    writing_s = _median_s(lambda: _write_alone(root))
    job = ["run", "--job", "log", "--", "python3", "-c", WRITER]
    subprocess.run(_tpuctl(root, hosts[:1], *job), check=True, stdout=subprocess.DEVNULL)
    start, digest = time.perf_counter(), hashlib.sha256()
    follower = subprocess.Popen(_tpuctl(root, hosts[:1], "logs", "-f"), stdout=subprocess.PIPE)
    assert follower.stdout
    while data := follower.stdout.read(1 << 20):
        digest.update(data)
    assert follower.wait() == 0
    following_s = time.perf_counter() - start
    whole = digest.digest() == hashlib.sha256((root / "alone").read_bytes()).digest()
    ratio = following_s / writing_s
    print(f"logs -f: 100 MB {'whole' if whole else 'DAMAGED'}; following / writing: {ratio:.2f}")


def _write_alone(root: Path) -> float:
    with (root / "alone").open("wb") as file:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", WRITER], stdout=file, check=True)
        return time.perf_counter() - start


def _measure_copy(root: Path, where: str) -> None:
    source = root / "source"
    for number in range(FILES):
        path = source / f"d{number // 100}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.randbytes(500) + b"x = 1\n" * random.randint(1, 300))
    rounds = iter(range(100))

    # Always to a new place: for a minute ext4 steps around every inode that was deleted.
    def copy(place: int) -> float:
        return _seconds(_tpuctl(root, hosts, "cp", str(source), f":code-{place}"))

    with _workers(root, 8) as hosts, _sshd(root) as rsync:
        if rsync is None:
            print("cp: there is no rsync or sshd here to compare with")
            return

        def both(place: int) -> tuple[float, float]:
            theirs = f"127.0.0.1:{root}/rsync-{place}/"
            return copy(place), _seconds([*rsync, f"{source}/", theirs])

        pairs = [both(next(rounds)) for _ in range(5)]
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(
            f"cp: {FILES:,} small files to 8 workers / rsync to one: {ratio:.2f} (at most 2)"
            f", {where}"
        )
        again = statistics.median(copy(place) / pair[0] for place, pair in enumerate(pairs))
        print(f"cp: again with nothing changed / the first time: {again:.2f}, {where}")


@contextmanager
def _sshd(root: Path) -> Iterator[list[str] | None]:
    """OpenSSH's server, and the rsync command that reaches it."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None or not shutil.which("rsync"):
        yield None
        return
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (root / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {root}/key\nStrictModes no\n"
        f"AuthorizedKeysFile {root}/key.pub\nPidFile none\nUsePAM no\n"
    )
    server = subprocess.Popen([program, "-D", "-e", "-f", root / "sshd"], stderr=subprocess.PIPE)
    assert server.stderr
    try:
        while b"listening" not in (line := server.stderr.readline()) and line:
            continue
        options = f"-p {port} -i {root}/key -o StrictHostKeyChecking=no -o LogLevel=ERROR"
        yield ["rsync", "-a", "-e", f"ssh {options} -o UserKnownHostsFile={root}/hosts"]
    finally:
        server.kill()
        server.wait()


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _median_s(measure: Callable[[], float], times: int = 3) -> float:
    return statistics.median(measure() for _ in range(times))
