"""What every worker is doing: the machine, its chips, and why a number is missing."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

pytest.importorskip("asyncssh")
pytest.importorskip("grpc", reason="grpcio is not installed")

from tests import contract
from tests.sharing import free_port
from tests.waiting import wait_until
from tests.workers import Slice, alive, running_slice
from tpuctl.emulator._metrics import serve_metrics
from tpuctl.protobuf_wire import Damaged
from tpuctl.remote.agent import metrics
from tpuctl.remote.agent.chips import DEVICES
from tpuctl.remote.agent.metrics import DUTY_CYCLE, HBM_TOTAL, HBM_USED, MetricsError, read_metrics
from tpuctl.remote.agent.top import PORTS, _by_chip
from tpuctl.remote.top import ChipUse, Usage, WorkerUse
from tpuctl.reporters import workers as report

pytestmark = pytest.mark.slow

GIB = 1 << 30


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    """Two workers with two chips each, and a port each for metrics."""
    root = tmp_path_factory.mktemp("slice")
    with running_slice(root, 2) as workers:
        workers.ports = [free_port(), free_port()]  # type: ignore[attr-defined]
        for index in (0, 1):
            folder = root / "dev" / str(index) / "vfio"
            folder.mkdir(parents=True)
            for name in ("0", "1"):
                (folder / name).touch()
            workers.refuse(index)
            workers.come_back(index, env=environment(workers, index))
        yield workers


def environment(workers: Slice, index: int) -> dict[str, str]:
    ports: list[int] = workers.ports  # type: ignore[attr-defined]
    return {DEVICES: str(workers.root / "dev" / str(index)), PORTS: str(ports[index])}


@contextmanager
def holding(workers: Slice, index: int) -> Iterator[int]:
    """A process that has the first chip open and serves nothing."""
    with (workers.root / "dev" / str(index) / "vfio" / "0").open("rb") as chip:
        holder = subprocess.Popen(["sleep", "600"], stdin=chip)
    try:
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


@contextmanager
def serving(port: int, values: dict[str, list[float | int]]) -> Iterator[None]:
    server = serve_metrics(lambda: values, port)
    try:
        yield
    finally:
        server.stop(grace=None).wait()


def port_of(workers: Slice, index: int) -> int:
    return int(environment(workers, index)[PORTS])


def top(tpuctl: Callable[..., Any], workers: Slice, *more: str) -> Any:
    where = ("--host", workers.option, "--key", str(workers.key))
    result = tpuctl("top", *where, "--once", "--json", *more)
    assert contract.problems(result.document, "top", contract.TOP) == []
    return result.data["workers"]


@pytest.mark.slow
def test_a_program_that_uses_the_chips_is_seen_with_its_numbers(tpuctl, own: Slice) -> None:
    module = "tpuctl.emulator.worker_processes"
    busy = [sys.executable, "-m", module, "--duty-cycle-percent", "87.5"]
    env = {**os.environ, **environment(own, 1), "TPUCTL_EMULATED_HBM_BYTES": str(16 * GIB)}
    with subprocess.Popen(busy, env=env) as program:
        wait_until(lambda: can_connect(port_of(own, 1)))
        idle, used = top(tpuctl, own)
        program.terminate()
    for chip in used["chips"]:
        assert (chip["duty_cycle_percent"], chip["hbm_used_bytes"]) == (87.5, 4 * GIB)
        assert (chip["hbm_bytes"], chip["holder_pid"]) == (16 * GIB, program.pid)
        assert chip["why_null"] is None
    for chip in idle["chips"]:
        assert (chip["duty_cycle_percent"], chip["hbm_used_bytes"]) == (None, None)
        assert chip["holder_pid"] is None
        assert chip["why_null"].startswith("no program has it open")
    for worker in (idle, used):
        assert 0 <= worker["vcpu_percent"] <= 100
        assert worker["vcpus"] == os.cpu_count()
        assert 0 < worker["memory_used_bytes"] < worker["memory_bytes"]


def can_connect(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_nothing_is_null_and_missing_is_not_nothing(tpuctl, own: Slice) -> None:
    with holding(own, 0) as pid, serving(port_of(own, 0), {DUTY_CYCLE: [0.0, 0.0]}):
        chips = top(tpuctl, own)[0]["chips"]
    assert [chip["duty_cycle_percent"] for chip in chips] == [0.0, 0.0]
    assert [chip["hbm_used_bytes"] for chip in chips] == [None, None]
    assert chips[0]["why_null"] == f"libtpu reports no value, but process {pid} has it open"
    assert chips[1]["why_null"] == "libtpu reports no value; no visible process has it open"


def test_what_is_no_number_is_missing(tpuctl, own: Slice) -> None:
    values: dict[str, list[float | int]] = {
        DUTY_CYCLE: [float("nan"), float("inf")],
        HBM_USED: [1, 2],
        HBM_TOTAL: [3, 4],
    }
    with serving(port_of(own, 0), values):
        chips = top(tpuctl, own)[0]["chips"]
    assert [chip["duty_cycle_percent"] for chip in chips] == [None, None]
    assert [chip["hbm_used_bytes"] for chip in chips] == [1, 2]


def test_a_holder_that_serves_no_metrics_is_named(tpuctl, own: Slice) -> None:
    with holding(own, 0) as pid:
        chips = top(tpuctl, own)[0]["chips"]
    assert chips[0]["holder_pid"] == pid
    assert chips[0]["why_null"] == (
        f"no process serves libtpu's metrics (port {port_of(own, 0)}), "
        f"but process {pid} has it open"
    )


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Something else that listens, and what it does with whoever comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    client, _ = listener.accept()
                    with client:
                        answer(client)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def asked(port: int, timeout_s: float = 5.0) -> str:
    with pytest.raises(MetricsError) as caught:
        read_metrics(port, [DUTY_CYCLE], timeout_s)
    return str(caught.value)


def test_something_else_on_the_port_is_said_to_be_that() -> None:
    other = "does not speak libtpu's metric service"
    with answering(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        assert asked(port) == f"port {port} {other}"
    with answering(lambda client: None) as port:
        assert asked(port) == f"port {port} {other}"
    with answering(lambda client: client.sendall(b"\xff" * 4096)) as port:
        assert asked(port) == f"port {port} {other}"


def test_a_service_that_hangs_is_not_waited_for() -> None:
    with answering(lambda client: list(iter(lambda: client.recv(1 << 16), b""))) as port:
        assert asked(port, 0.1) == f"port {port} did not answer within 0.1 s"


def test_nobody_there_is_said() -> None:
    assert "refused" in asked(free_port())


def test_a_service_without_that_method_is_no_failure_of_ours() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert read_metrics(port, [DUTY_CYCLE, HBM_USED], 5.0) == [{}, {}]
    server.stop(grace=None).wait()


@given(st.binary(max_size=200))
def test_no_answer_can_do_harm(answer: bytes) -> None:
    try:
        values = metrics._values(answer)
    except (Damaged, ValueError):
        return
    assert all(isinstance(value, float) for value in values.values())


@pytest.mark.parametrize(
    ("values", "chips", "per_chip", "together", "expected"),
    [
        ({0: 1.0, 1: 2.0}, 2, 1, False, [1, 2]),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, 2, 2, True, [3, 7]),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, 2, 2, False, [1.5, 3.5]),
        ({0: 1.0, 1: 2.0}, 2, 2, False, [1, 2]),
        ({4: 1.0, 5: 2.0}, 2, 1, False, [1, 2]),
        ({2: 9.0}, 4, 1, False, [None, None, 9, None]),
        ({9: 9.0}, 4, 1, False, [None] * 4),
        ({}, 2, 2, True, [None, None]),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, 2, None, True, [3, 7]),
    ],
)
def test_devices_become_chips(
    values: dict[int, float],
    chips: int,
    per_chip: int | None,
    together: bool,
    expected: list[float | None],
) -> None:
    assert _by_chip(values, chips, per_chip, together=together) == expected


def test_several_processes_each_serve_their_part(tpuctl, own: Slice) -> None:
    second = free_port()
    env = {**environment(own, 0), PORTS: f"{port_of(own, 0)},{second}"}
    own.refuse(0)
    own.come_back(0, env=env)
    with ExitStack() as stack:
        stack.enter_context(serving(port_of(own, 0), {DUTY_CYCLE: [10.0]}))
        stack.enter_context(serving(second, {DUTY_CYCLE: [99.0, 20.0]}))
        chips = top(tpuctl, own)[0]["chips"]
    assert [chip["duty_cycle_percent"] for chip in chips] == [10.0, 20.0]


def test_this_machine_needs_no_ssh(tpuctl, own: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(own, 0).items():
        monkeypatch.setenv(name, value)
    with holding(own, 0) as pid:
        for words in (("local",), ()):
            (worker,) = tpuctl("top", *words, "--json").data["workers"]
            assert worker["chips"][0]["holder_pid"] == pid
    monkeypatch.delenv(DEVICES)
    text = tpuctl("top")
    assert "worker 0: there are no chips" in text.stdout or "chip" in text.stdout


def test_a_worker_that_cannot_be_reached_is_a_failure_and_the_others_are_shown(
    tpuctl, own: Slice
) -> None:
    hosts = f"{own.option},me@127.0.3.77:{own.running[0].port}"
    result = tpuctl("top", "--host", hosts, "--key", str(own.key), "--json")
    assert result.exit_code == 3
    assert result.document["status"] == "partial"
    assert result.data["workers"][2]["why_null"].startswith("worker 2")
    assert len(result.data["workers"][0]["chips"]) == 2


@pytest.mark.slow
def test_the_table_lives_until_ctrl_c_and_shows_who_is_lost(own: Slice) -> None:
    terminal, end = pty.openpty()
    argv = [sys.executable, "-m", "tpuctl", "top", "--host", own.option, "--key", str(own.key)]
    child = subprocess.Popen([*argv, "--interval", "0.1s"], stdout=end, stderr=end, stdin=end)
    os.close(end)
    said = bytearray()

    def read_until(text: bytes) -> None:
        while text not in said:
            assert select.select([terminal], [], [], 60)[0], said
            said.extend(os.read(terminal, 1 << 16))

    read_until(b"no program has it open")
    said.clear()
    read_until(b"no program has it open")
    with holding(own, 0) as pid:
        read_until(str(pid).encode())
    own.drop(1)
    read_until(b"The connection to worker 1")
    said.clear()
    while b"The connection" in said or b"no program" not in said:
        said.clear()
        read_until(b"holder")
        assert select.select([terminal], [], [], 60)[0]
        said.extend(os.read(terminal, 1 << 16))
    child.send_signal(signal.SIGINT)
    while select.select([terminal], [], [], 0.1)[0]:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:
            break
    assert child.wait() == 130
    os.close(terminal)


def test_many_chips_make_one_line_for_each_worker(golden) -> None:
    chip = ChipUse(0, "/dev/vfio/0", 80.0, 4 * GIB, 16 * GIB, 41, "ana", "python train.py", None)
    unknown = ChipUse(3, "/dev/vfio/3", None, None, None, None, None, None, "nobody uses it")
    machine: dict[str, Any] = {"address": "h", "vcpus": 112}
    memory: dict[str, Any] = {"memory_bytes": 192 * GIB, "memory_used_bytes": 20 * GIB}
    busy = WorkerUse(index=0, **machine, **memory, vcpu_percent=31.7, chips=(chip,) * 4)
    chips = (chip, chip, chip, unknown)
    other = WorkerUse(index=1, **machine, chips=chips, why_null="no /proc")
    few, many = Usage((busy, other)), Usage((*(busy,) * 8, other))
    console = Console(width=100, record=True, file=StringIO(), color_system=None)
    console.print(report.render_usage(few))
    console.print(report.render_usage(many))
    golden("top.txt", console.export_text())


def test_the_document_never_holds_what_is_no_json(tpuctl, own: Slice) -> None:
    where = ("--host", own.option, "--key", str(own.key))
    text = tpuctl("top", *where, "--json").stdout
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert not alive("top.watch")
