"""Who has the chips, on every worker, and ending these processes."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.workers import Slice, running_slice
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.chips import DEVICES, ENDED, LEFT_ALONE
from tpuctl.remote.agent.process import start_ticks
from tpuctl.remote.connection import Connection, call_agent
from tpuctl.remote.fleet import open_fleet, run_async
from tpuctl.remote.free import Holders, WorkerHolders, find_holders, free_chips
from tpuctl.remote.payload import COMMAND, request_bytes
from tpuctl.reporters import workers as report
from tpuctl.runtime.local import LocalMachine, nodes_of_chips
from tpuctl.runtime.machine import PciDevice

pytestmark = pytest.mark.slow

DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    """Two workers with two chips each, one as v4 shows them and one as v5e does."""
    root = tmp_path_factory.mktemp("slice")
    with running_slice(root, 2) as workers:
        for index, names in enumerate((("accel0", "accel1"), ("vfio/0", "vfio/1", "vfio/vfio"))):
            for name in names:
                path = root / "dev" / str(index) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            workers.refuse(index)
            bin = root / "bin"
            workers.come_back(
                index,
                env={
                    DEVICES: str(root / "dev" / str(index)),
                    "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
                },
            )
        yield workers


@contextmanager
def holding(workers: Slice, index: int, name: str, *argv: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has a chip open."""
    with (workers.root / "dev" / str(index) / name).open("rb") as chip:
        holder = subprocess.Popen(
            argv or ("sleep", "600"), stdin=chip, stdout=subprocess.PIPE, text=True
        )
    try:
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def where(workers: Slice) -> tuple[str, ...]:
    return ("--host", workers.option, "--key", str(workers.key))


def test_who_has_a_chip_is_found_on_accel_and_on_vfio_and_nothing_is_touched(
    tpuctl, own: Slice
) -> None:
    with holding(own, 0, "accel1") as first, holding(own, 1, "vfio/0") as second:
        result = tpuctl("free", *where(own), "--dry-run", "--json")
        assert result.exit_code == 0
        found = [worker["holders"] for worker in result.data["workers"]]
        assert [[(one["pid"], one["command"]) for one in worker] for worker in found] == [
            [(first.pid, "sleep …")],
            [(second.pid, "sleep …")],
        ]
        assert found[0][0]["device"].endswith("/accel1")
        assert found[1][0]["device"].endswith("/vfio/0")
        assert first.poll() is None
        assert second.poll() is None


def test_the_control_node_is_no_chip(tpuctl, own: Slice) -> None:
    with holding(own, 1, "vfio/vfio"):
        result = tpuctl("free", *where(own), "--yes", "--json")
        assert [worker["holders"] for worker in result.data["workers"]] == [[], []]
        assert [worker["chips"] for worker in result.data["workers"]] == [2, 2]


def test_without_a_terminal_nobody_is_ended_unless_yes_is_said(tpuctl, own: Slice) -> None:
    with holding(own, 0, "accel0") as holder:
        refused = tpuctl("free", *where(own))
        assert refused.exit_code == 2
        assert f"worker 0: {holder.pid}" in refused.stderr
        assert "End 1 process on 1 worker?" in refused.stderr
        assert "--yes" in refused.stderr
        assert holder.poll() is None
        done = tpuctl("free", *where(own), "--yes")
        assert done.exit_code == 0
        assert f"worker 0: {holder.pid}" in done.stdout
        assert ": ended" in done.stdout
        assert "worker 0-1: all chips are free" in done.stdout
        assert holder.wait() == -15


@pytest.mark.slow
def test_at_a_terminal_the_answer_counts(own: Slice) -> None:
    with holding(own, 0, "accel0") as holder:
        for answer, ended in (("n\n", False), ("y\n", True)):
            terminal, end = pty.openpty()
            child = subprocess.Popen(
                [sys.executable, "-m", "tpuctl", "free", *where(own)],
                stdin=end,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            os.close(end)
            os.write(terminal, answer.encode())
            _, said = child.communicate()
            os.close(terminal)
            assert "End 1 process on 1 worker?" in said
            assert child.returncode == (0 if ended else 1)
            if ended:
                holder.wait()
            assert (holder.poll() is not None) is ended


def test_what_ignores_term_is_killed(own: Slice) -> None:
    with holding(own, 0, "accel0", sys.executable, "-c", f"{DEAF}time.sleep(600)") as holder:
        assert holder.stdout
        holder.stdout.readline()
        held = find_holders(own.hosts, own.access)
        done = free_chips(held, own.hosts, own.access, grace_s=0.1)
        assert [one.outcome for worker in done.workers for one in worker.holders] == ["killed"]
        assert done.exit_code == 0
        assert holder.wait() == -9


def test_a_process_that_has_got_the_id_since_is_left_alone(own: Slice) -> None:
    async def release(pid: int, ticks: int | None) -> Any:
        async with open_fleet(own.hosts[:1], own.access) as fleet:
            request = {"known": {}, "processes": [(pid, ticks)], "grace_s": 1, "settle_s": 1}

            async def one(connection: Connection) -> Any:
                async with call_agent(connection, "chips.release", **request) as call:
                    return await call.reply()

            (answer,) = await fleet.each(one)
            return answer

    with holding(own, 0, "accel0") as holder, subprocess.Popen(["sleep", "600"]) as bystander:
        ticks = start_ticks(holder.pid)
        assert run_async(release(holder.pid, (ticks or 0) + 1))["outcomes"] == [
            [holder.pid, "gone"]
        ]
        assert holder.poll() is None
        other = (bystander.pid, start_ticks(bystander.pid))
        assert run_async(release(*other))["outcomes"] == [[bystander.pid, LEFT_ALONE]]
        assert bystander.poll() is None
        bystander.kill()
        assert run_async(release(holder.pid, ticks))["outcomes"] == [[holder.pid, ENDED]]


def test_who_has_taken_chips_meanwhile_is_not_ended_but_told(own: Slice) -> None:
    one = own.hosts[:1]
    with holding(own, 0, "accel0") as first:
        held = find_holders(one, own.access)
        with holding(own, 0, "accel1") as second:
            done = free_chips(held, one, own.access)
            assert first.wait() == -15
            assert second.poll() is None
            assert (done.exit_code, done.failures[0].code) == (1, "chips_held")
            assert f"process {second.pid} (sleep …) has opened chips in the meantime" in str(
                done.failures[0]
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="being another user needs root")
def test_processes_of_other_users_that_cannot_be_looked_into_are_counted(own: Slice) -> None:
    with TemporaryDirectory() as place, holding(own, 0, "accel0"):
        os.chmod(place, 0o755)
        Path(place, "accel0").touch()
        said = subprocess.run(
            ["sh", "-c", COMMAND],
            input=request_bytes("chips.look", known={}),
            env={"PATH": os.defpath, DEVICES: place},
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            check=True,
        ).stdout
        ((_, seen),) = wire.split_frames(bytearray(said.removeprefix(wire.MARK)))
        assert wire.read_note(seen)["uninspected"] > 0
    worker = WorkerHolders(index=0, address="h", chips=1, uninspected=7)
    assert "7 processes of other users" in Holders((worker,)).warnings[0]
    assert "--sudo" in Holders((worker,)).warnings[0]


class Board(LocalMachine):
    """A machine with these device nodes."""

    def __init__(self, *nodes: str) -> None:
        super().__init__("/nowhere")
        self.nodes = nodes

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(node.rpartition("/")[2] for node in self.nodes if node.startswith(folder))

    def is_device(self, path: str) -> bool:
        return path in self.nodes


def a_chip(number: int, *groups: int | None) -> list[PciDevice]:
    addr = f"0000:00:{number:02x}"
    return [PciDevice(f"{addr}.{at}", "0x1ae0", "x", iommu_group=g) for at, g in enumerate(groups)]


def test_each_node_belongs_to_the_chip_that_libtpu_counts() -> None:
    accel = Board("/dev/accel10", "/dev/accel2")
    chips = [*a_chip(1, None), *a_chip(2, None)]
    assert nodes_of_chips(accel, chips) == [("/dev/accel2",), ("/dev/accel10",)]
    vfio = Board("/dev/vfio/3", "/dev/vfio/10", "/dev/vfio/5", "/dev/vfio/vfio")
    assert nodes_of_chips(vfio, [*a_chip(9, 3), *a_chip(1, 10)]) == [
        ("/dev/vfio/3",),
        ("/dev/vfio/10",),
    ]
    tpu7x = Board(*(f"/dev/vfio/{number}" for number in range(4)))
    assert nodes_of_chips(tpu7x, [*a_chip(1, 0, 1), *a_chip(2, 2, 3)]) == [
        ("/dev/vfio/0", "/dev/vfio/1"),
        ("/dev/vfio/2", "/dev/vfio/3"),
    ]
    assert nodes_of_chips(tpu7x, [*a_chip(1, None, None), *a_chip(2, None, None)]) == [
        ("/dev/vfio/0", "/dev/vfio/1"),
        ("/dev/vfio/2", "/dev/vfio/3"),
    ]
    assert nodes_of_chips(Board(), a_chip(1, 0)) == []


def test_sudo_runs_the_agent_as_root_or_says_why_not(tpuctl, own: Slice) -> None:
    bin = own.root / "bin"
    bin.mkdir()
    sudo = bin / "sudo"
    sudo.write_text('#!/bin/sh\necho asked >> ~/asked; shift; exec "$@"\n')
    sudo.chmod(0o755)
    with holding(own, 1, "vfio/0"):
        assert tpuctl("free", *where(own), "--sudo", "--dry-run").exit_code == 0
        assert (own.folder(1) / "asked").exists()
        sudo.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n")
        refused = tpuctl("free", *where(own), "--sudo", "--dry-run")
        assert refused.exit_code == 1
        assert "a password is required" in refused.stderr
        assert "leave --sudo out" in refused.stderr


def test_a_worker_that_cannot_be_reached_keeps_no_other_from_being_freed(
    tpuctl, own: Slice
) -> None:
    hosts = f"{own.option},me@127.0.3.77:{own.running[0].port}"
    with holding(own, 0, "accel0") as holder:
        result = tpuctl("free", "--host", hosts, "--key", str(own.key), "--yes", "--json")
        assert holder.wait() == -15
        assert result.exit_code == 3
        assert result.document["status"] == "partial"


def test_this_machine_is_looked_at_without_ssh(
    tpuctl, own: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICES, str(own.root / "dev" / "0"))
    with holding(own, 0, "accel0") as holder:
        result = tpuctl("free", "local", "--yes")
        assert result.exit_code == 0
        assert f"worker 0: {holder.pid}" in result.stdout
        assert holder.wait() == -15


def test_a_parent_of_ours_is_never_ended(own: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICES, str(own.root / "dev" / "0"))
    code = "import os; os.open(os.environ['CHIP'], 0); import tpuctl.cli.app as a; a.main()"
    env = {**os.environ, "CHIP": str(own.root / "dev" / "0" / "accel0")}
    child = subprocess.run(
        [sys.executable, "-c", code, "free", "local", "--yes", "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    data = json.loads(child.stdout)["data"]
    assert (child.returncode, data["workers"][0]["holders"][0]["outcome"]) == (0, None)


def test_whose_chips_must_be_said(tpuctl) -> None:
    result = tpuctl("free")
    assert result.exit_code == 2
    assert "tpuctl free local" in result.stderr


def test_the_report_of_nothing_to_do(own: Slice) -> None:
    text = report.render_held(find_holders(own.hosts, own.access))
    assert text == "worker 0-1: all chips are free, as far as can be seen"
