"""The live machine, on a file system made for it: what it sees, and what it never touches."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.machines import codes
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.runtime.chips import find_chips
from tpuctl.runtime.live import LiveMachine
from tpuctl.runtime.metadata_server import MetadataServer


def write(root: Path, path: str, text: str = "") -> None:
    target = root / path.strip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def device(root: Path, path: str) -> None:
    """A character device that anybody may make: a link to one."""
    target = root / path.strip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to("/dev/null")


def chip(root: Path, addr: str, kind: str, *, group: int | None = None, sub: str = "") -> None:
    folder = root / "sys/bus/pci/devices" / addr
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1ae0\n")
    (folder / "device").write_text(f"{kind}\n")
    (folder / "subsystem_device").write_text(f"{sub}\n")
    if group is not None:
        (folder / "driver").symlink_to("/bus/pci/drivers/vfio-pci")
        (folder / "iommu_group").symlink_to(f"/kernel/iommu_groups/{group}")


def process(
    root: Path, pid: int, *, ppid: int = 1, cmdline: str = "", files: tuple[str, ...] = ()
) -> None:
    write(root, f"/proc/{pid}/status", f"Name:\tx\nPPid:\t{ppid}\nUid:\t0\t0\t0\t0\n")
    write(root, f"/proc/{pid}/cmdline", cmdline.replace(" ", "\0"))
    write(root, f"/proc/{pid}/comm", cmdline.partition(" ")[0])
    folder = root / f"proc/{pid}/fd"
    folder.mkdir()
    for number, path in enumerate(files):
        (folder / str(number)).symlink_to(path)


def live(root: Path, **env: str) -> LiveMachine:
    return LiveMachine(root=root, env={"TPU_SKIP_MDS_QUERY": "1", **env}, path=[], server=DEAF)


DEAF = MetadataServer({"GCE_METADATA_IP": "127.0.0.1:1"})


def test_chips_groups_and_nodes_are_read_from_sysfs_and_dev(tmp_path: Path) -> None:
    for number in range(4):
        chip(tmp_path, f"0000:00:0{number + 4}.0", "0x006f", group=number)
        device(tmp_path, f"/dev/vfio/{number}")
    chip(tmp_path, "0000:00:1e.0", "0x0042")
    device(tmp_path, "/dev/vfio/vfio")
    device(tmp_path, "/dev/vfio/9")
    found = find_chips(live(tmp_path))
    assert (found.generation, found.count, found.devices) == ("v6e", 4, 4)
    assert found.nodes == tuple(f"/dev/vfio/{n}" for n in range(4))
    assert found.usable


def test_a_folder_called_accel_and_a_plain_file_are_no_chips(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x005e")
    (tmp_path / "dev/accel").mkdir(parents=True)
    write(tmp_path, "/dev/accel0", "a plain file")
    assert find_chips(live(tmp_path)).nodes == ()
    device(tmp_path, "/dev/accel1")
    assert find_chips(live(tmp_path)).nodes == ("/dev/accel1",)


@pytest.mark.slow
def test_the_holder_is_found_among_ten_thousand_processes(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    device(tmp_path, "/dev/vfio/0")
    for pid in range(2, 10_002):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)
    process(tmp_path, 20_000, cmdline="python train.py --key s3cret", files=("/dev/vfio/0",))
    found = diagnose(live(tmp_path))
    assert [(h.pid, h.command, h.user) for h in found.holders] == [
        (20_000, "python train.py …", "root")
    ]
    assert "F05" in codes(found)


@pytest.mark.slow
def test_scanning_ten_thousand_processes_costs_little_beside_listing_them(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    device(tmp_path, "/dev/vfio/0")
    for pid in range(2, 10_002):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)

    def listing() -> None:
        for name in os.listdir(tmp_path / "proc"):
            os.listdir(tmp_path / "proc" / name / "fd")

    def seconds(act: object) -> float:
        began = time.process_time()
        act()  # type: ignore[operator]
        return time.process_time() - began

    bare = min(seconds(listing) for _ in range(3))
    whole = min(seconds(lambda: diagnose(live(tmp_path))) for _ in range(3))
    assert whole < 5 * bare


def test_a_machine_without_chips_does_not_look_at_processes(tmp_path: Path) -> None:
    process(tmp_path, 700, cmdline="python", files=("/dev/vfio/0",))
    assert diagnose(live(tmp_path)).holders == ()


class Refusing(LiveMachine):
    """What another user's processes are like: they may be seen, not looked into."""

    def _open_files(self, pid: str, wanted: Callable[[str], bool]) -> set[str]:
        raise PermissionError(pid)


def test_processes_that_refuse_are_counted_and_kernel_threads_are_not(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    process(tmp_path, 700, cmdline="python train.py")
    process(tmp_path, 2, cmdline="")
    machine = Refusing(root=tmp_path, env={"TPU_SKIP_MDS_QUERY": "1"}, path=[])
    assert diagnose(machine).uninspected_processes == 1


def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    write(tmp_path, "/proc/701/fd", "not even a folder")
    (tmp_path / "proc/702").mkdir()
    assert diagnose(live(tmp_path)).holders == ()


def test_a_lock_is_matched_by_its_inode_and_a_waiting_process_does_not_hold_it(
    tmp_path: Path,
) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    device(tmp_path, "/dev/vfio/0")
    write(tmp_path, "/tmp/libtpu_lockfile")
    inode = os.stat(tmp_path / "tmp/libtpu_lockfile").st_ino
    lines = (
        f"1: POSIX  ADVISORY  WRITE 810 fe:00:{inode} 0 EOF",
        f"1: -> POSIX  ADVISORY  WRITE 811 fe:00:{inode} 0 EOF",
        f"2: POSIX  ADVISORY  WRITE 812 fe:00:{inode + 1} 0 EOF",
    )
    write(tmp_path, "/proc/locks", "\n".join(lines))
    process(tmp_path, 810, cmdline="python -m ipykernel_launcher", files=("/dev/vfio/0",))
    found = diagnose(live(tmp_path))
    assert [holder.pid for holder in found.holders] == [810]
    assert codes(found) == {"F01"}
    assert "Another notebook" in found.problems[0].fix


@contextmanager
def server(answer: bytes | None, *, drip_s: float = 0.0) -> Iterator[str]:
    """A metadata server on a local port; None accepts and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()
    open_ones: list[socket.socket] = []

    def serve() -> None:
        while not over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            open_ones.append(client)
            if answer is None:
                continue
            try:
                client.recv(4096)
                for byte in answer if drip_s else ():
                    client.sendall(bytes([byte]))
                    over.wait(drip_s)
                if not drip_s:
                    client.sendall(answer)
            except OSError:
                pass
            client.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()
        for client in open_ones:
            client.close()


GOOD = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n\r\n3"
MISSING = b"HTTP/1.1 404 Not Found\r\nMetadata-Flavor: Google\r\n\r\nno"
STRANGER = b"HTTP/1.1 200 OK\r\nServer: router\r\n\r\n<html>log in</html>"


@pytest.mark.parametrize(
    ("reply", "answers", "value"),
    [(GOOD, True, "3"), (MISSING, True, None), (STRANGER, False, None), (b"junk", False, None)],
)
def test_only_a_metadata_server_is_believed(reply: bytes, answers: bool, value: str | None) -> None:
    with server(reply) as address:
        asked = MetadataServer({"GCE_METADATA_HOST": address})
        assert asked.answers is answers
        assert asked.get("instance/attributes/agent-worker-number") == value


class Watch:
    """Adds up how long the metadata server was waited for, without asserting seconds."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return time.monotonic()


@pytest.mark.parametrize("drip_s", [0.0, 0.05])
def test_a_server_that_hangs_or_drips_is_waited_for_once(drip_s: float, tmp_path: Path) -> None:
    write(tmp_path, "/sys/class/dmi/id/product_name", "Google Compute Engine")
    with server(GOOD * 3 if drip_s else None, drip_s=drip_s) as address:
        watch = Watch()
        asked = MetadataServer({"GCE_METADATA_IP": address}, budget_s=0.1, clock=watch)
        machine = LiveMachine(root=tmp_path, env={}, path=[], server=asked)
        assert diagnose(machine).runtime == "gce-vm"
        assert not machine.metadata_answers
        assert watch.calls == 2


def test_patience_is_shared_by_all_questions() -> None:
    ticks = iter([0.0, 0.3, 0.3, 0.6, 0.9])
    with server(GOOD) as address:
        asked = MetadataServer({"GCE_METADATA_IP": address}, clock=lambda: next(ticks))
        assert asked.get("first") == "3"
        assert asked.get("second") == "3"
        assert asked.get("third") is None


@pytest.mark.parametrize(
    "env", [{"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, {"TBE_RUNTIME_ADDR": "172.28.0.1:8011"}, {}]
)
def test_where_there_is_no_metadata_server_nobody_is_asked(
    tmp_path: Path, env: dict[str, str]
) -> None:
    watch = Watch()
    asked = MetadataServer({"GCE_METADATA_IP": "127.0.0.1:1"}, clock=watch)
    diagnose(LiveMachine(root=tmp_path, env=env, path=[], server=asked))
    assert watch.calls == 0


SPY = """
import sys
opened, imported = [], []
def spy(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
    if event == "import":
        imported.append(arguments[0].partition(".")[0])
sys.addaudithook(spy)
{before}
from pathlib import Path
from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.runtime.live import LiveMachine
diagnose(LiveMachine(root=Path({root!r}), env={{"TPU_SKIP_MDS_QUERY": "1"}}))
heavy = {{"tensorflow", "jax", "torch", "torch_xla", "libtpu", "keras", "numpy"}}
bad = [path for path in opened if "/dev/" in path or "lockfile" in path]
print(bad + sorted(heavy & set(imported)))
"""


def spied(root: Path, before: str = "") -> str:
    code = SPY.format(root=str(root), before=before)
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_nothing_opens_a_device_or_the_lock_file_or_imports_a_framework(tmp_path: Path) -> None:
    chip(tmp_path, "0000:00:04.0", "0x0063", group=0)
    device(tmp_path, "/dev/vfio/0")
    device(tmp_path, "/dev/accel0")
    write(tmp_path, "/tmp/libtpu_lockfile")
    assert spied(tmp_path) == "[]"


@pytest.mark.slow
def test_the_spy_would_notice(tmp_path: Path) -> None:
    write(tmp_path, "/tmp/libtpu_lockfile")
    before = f"open({str(tmp_path / 'tmp/libtpu_lockfile')!r}).close(); import numpy"
    assert "lockfile" in spied(tmp_path, before)
    assert "numpy" in spied(tmp_path, before)


def test_installed_distributions_match_what_importlib_says() -> None:
    from importlib.metadata import distributions

    from tpuctl.runtime.local import installed
    from tpuctl.runtime.machine import normalized

    ours = {name: version for name, (version, _) in installed(sys.path).items()}
    theirs: dict[str, str] = {}
    for found in distributions():
        theirs.setdefault(normalized(found.metadata["Name"]), found.version)
    assert ours == theirs


def test_declared_requirements_are_read_from_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "jax-0.7.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Name: jax\nRequires-Dist: jaxlib<=0.7.2,>=0.7.2\n\nRequires-Dist: no, this is prose\n"
    )
    (tmp_path / "jaxlib-0.7.1.dist-info").mkdir()
    machine = LiveMachine(root=tmp_path, env={}, path=[str(tmp_path)])
    assert machine.requires("jax") == ("jaxlib<=0.7.2,>=0.7.2",)
    assert machine.requires("jaxlib") is None
    assert codes(diagnose(machine)) == {"F19"}


HEAVY = ("rich", "socket", "tensorflow", "jax", "tpuctl.notebook")


def loaded_after(code: str) -> set[str]:
    probe = f"{code}\nimport sys; print(*[m for m in sys.modules if m in {HEAVY!r}])"
    words = [sys.executable, "-c", probe]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return set(out.splitlines()[-1].split())


def test_the_doctor_loads_nothing_that_json_can_do_without() -> None:
    code = "from tpuctl.cli.app import app\ntry: app(['doctor', '--json'])\nexcept SystemExit: pass"
    # Where Google's machines are concerned, the metadata server is asked through a socket.
    assert loaded_after(code) <= {"socket"}


def test_the_probe_for_heavy_modules_would_notice() -> None:
    assert loaded_after("import rich, tpuctl.notebook") >= {"rich", "tpuctl.notebook"}
