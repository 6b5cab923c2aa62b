"""The emulator as a process: started, killed, started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from tests.conftest import Tpuctl
from tests.emulator_world import RUNTIME, open_channel
from tests.waiting import wait_until
from tpuctl.emulator.process import EmulatorFolder

pytestmark = pytest.mark.slow

RAW: tuple[Any, Any] = (None, None)
PLACE = "projects/practice/locations/us-central1-a"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "emulator"


@pytest.fixture
def stopped_at_the_end(folder: Path, tpuctl: Tpuctl) -> Iterator[None]:
    yield
    tpuctl("emulator", "stop")


def kill(folder: Path) -> None:
    """End the emulator of a folder the hard way, and wait until it has gone."""
    pid = EmulatorFolder(folder).holder()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: EmulatorFolder(folder).holder() is None)


def asked(endpoint: str, ask: Callable[[tpu_v2.TpuClient], Any]) -> tuple[Any, str]:
    """What Google's client got, and the emulated time then."""
    token = Path(os.environ["TPUCTL_STATE_DIR"], "emulator", "token").read_text()
    with open_channel(endpoint, token) as channel:
        answer = ask(tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel)))
        call: Any = channel.unary_unary("/google.cloud.location.Locations/ListLocations", *RAW)
        _, reply = call.with_call(b"\n\x11projects/practice")
        return answer, dict(reply.initial_metadata())["tpuctl-emulator-time"]


@pytest.mark.usefixtures("stopped_at_the_end")
def test_killed_during_a_create_it_resumes(folder: Path, tpuctl: Tpuctl, tmp_path: Path) -> None:
    scenario = tmp_path / "slow.json"
    scenario.write_text('{"provision_s": 500000, "time_scale": 1000}')
    start = ("emulator", "start", "--detach", "--json")
    endpoint = tpuctl(*start, "--scenario", str(scenario)).data["endpoint"]
    node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=RUNTIME)
    operation, first_time = asked(
        endpoint, lambda client: client.create_node(parent=PLACE, node_id="t1", node=node)
    )
    before, _ = asked(endpoint, lambda client: client.get_node(name=f"{PLACE}/nodes/t1"))
    kill(folder)
    with (folder / "state" / "requests.jsonl").open("ab") as log:
        log.write(b'{"at": "2026-')

    again = tpuctl(*start).data
    assert (again["resumed"], again["endpoint"]) == (True, endpoint)
    after, second_time = asked(endpoint, lambda client: client.get_node(name=f"{PLACE}/nodes/t1"))
    assert after == before
    assert second_time > first_time
    name = operation.operation.name
    found, _ = asked(endpoint, lambda client: client.get_operation({"name": name}))
    assert (found.name, found.done) == (name, False)


@pytest.mark.usefixtures("stopped_at_the_end")
def test_there_is_one_emulator_for_a_state_folder(folder: Path, tpuctl: Tpuctl) -> None:
    first = tpuctl("emulator", "start", "--detach", "--json").data
    again = tpuctl("emulator", "start", "--detach", "--json").data
    assert (again["was_running"], again["exports"]) == (True, first["exports"])
    assert "is running already" in tpuctl("emulator", "start", "--detach").stdout
    second = tpuctl("emulator", "start", "--detach", "--fresh")
    assert second.exit_code == 1
    assert first["endpoint"] in second.stderr
    status = tpuctl("emulator", "status", "--json").data
    assert (status["running"], status["pid"]) == (True, first["pid"])
    assert status["exports"]["TPUCTL_TPU_ENDPOINT"] == first["endpoint"]
    assert tpuctl("emulator", "stop", "--json").data["was_running"] is True
    assert tpuctl("emulator", "stop", "--json").data["was_running"] is False


def test_what_start_prints_can_be_evaluated_by_a_shell(folder: Path) -> None:
    script = f"""
        eval "$({sys.executable} -m tpuctl emulator start --detach)"
        echo "$TPUCTL_TPU_ENDPOINT $TPUCTL_PROJECT $STORAGE_EMULATOR_HOST"
        {sys.executable} -m tpuctl emulator stop > /dev/null
    """
    words = subprocess.check_output(["sh", "-c", script], text=True).split()
    assert words[0].startswith("127.0.0.1:")
    assert words[1] == "practice"
    assert words[2].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_runs_until_a_signal(folder: Path, number: int) -> None:
    command = [sys.executable, "-m", "tpuctl", "emulator", "start", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.send_signal(number)
        assert process.wait() == 0
    assert lines[1].startswith("export TPUCTL_TPU_ENDPOINT=127.0.0.1:")
    assert EmulatorFolder(folder).holder() is None


# A second Ctrl-C ends the runs whose first one came before the waiting, or never.
STRUCK = """
import faulthandler, os, signal, sys, threading
from tpuctl.emulator.process import stop_signals

faulthandler.dump_traceback_later(60, exit=True)
for nth in range(1, 40):
    lines = 0

    def trace(frame, event, arg):
        global lines
        lines += event == "line"
        if event == "line" and lines == nth:
            signal.raise_signal(signal.SIGINT)
        return trace

    with stop_signals() as signals:
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        again.start()
        sys.settrace(trace)
        signals.get()
        sys.settrace(None)
        again.join()
"""


def test_a_signal_at_any_line_of_the_waiting_ends_it() -> None:
    subprocess.run([sys.executable, "-c", STRUCK], check=True)


def test_an_invalid_scenario_is_one_error_that_names_the_place(
    folder: Path, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    scenario = tmp_path / "bad.json"
    scenario.write_text('{"faults": [{"on": "create_node", "eror": "stockout"}]}')
    for options in (["--detach"], []):
        result = tpuctl("emulator", "start", "--scenario", str(scenario), *options)
        assert result.exit_code == 1
        assert f"{scenario}: faults[0].eror" in result.stderr


@pytest.mark.usefixtures("stopped_at_the_end")
def test_another_scenario_starts_over_where_no_tpus_are_left(
    folder: Path, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    scenario = tmp_path / "other.json"
    scenario.write_text('{"provision_s": 7}')
    tpuctl("emulator", "start", "--detach")
    tpuctl("emulator", "stop")
    other = tpuctl("emulator", "start", "--detach", "--scenario", str(scenario), "--json")
    assert (other.exit_code, other.data["resumed"]) == (0, False)
    tpuctl("emulator", "stop")
    again = tpuctl("emulator", "start", "--detach", "--scenario", str(scenario), "--json")
    assert again.data["resumed"] is True


@pytest.mark.usefixtures("stopped_at_the_end")
def test_another_scenario_needs_fresh_while_there_are_tpus(
    folder: Path, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    scenario = tmp_path / "other.json"
    scenario.write_text('{"provision_s": 7}')
    endpoint = tpuctl("emulator", "start", "--detach", "--json").data["endpoint"]
    node = tpu_v2.Node(accelerator_type="v5litepod-8", runtime_version=RUNTIME)
    asked(endpoint, lambda client: client.create_node(parent=PLACE, node_id="t1", node=node))
    tpuctl("emulator", "stop")
    refused = tpuctl("emulator", "start", "--detach", "--scenario", str(scenario))
    assert refused.exit_code == 1
    assert "--fresh" in refused.stderr
    options = ("--fresh", "--scenario", str(scenario), "--json")
    assert tpuctl("emulator", "start", "--detach", *options).data["resumed"] is False


def test_a_damaged_state_is_an_error_that_says_how_to_start_over(
    folder: Path, tpuctl: Tpuctl
) -> None:
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "requests.jsonl").write_text('{"format": 99}\n')
    result = tpuctl("emulator", "start", "--detach")
    assert result.exit_code == 1
    assert "--fresh" in result.stderr


def test_a_port_that_is_taken_is_an_error_that_names_it(folder: Path, tpuctl: Tpuctl) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = tpuctl("emulator", "start", "--port", str(port), "--json")
    assert result.exit_code == 1
    assert str(port) in json.loads(result.stdout)["errors"][0]["message"]


def test_without_googles_libraries_it_says_what_to_install(
    folder: Path, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tpuctl.emulator._grpc", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    result = tpuctl("emulator", "start")
    assert result.exit_code == 1
    assert "pip install 'tpuctl[gcp]'" in result.stderr


def test_without_an_emulator_status_says_how_to_start_one(folder: Path, tpuctl: Tpuctl) -> None:
    result = tpuctl("emulator", "status")
    assert result.exit_code == 0
    assert "tpuctl emulator start" in result.words
    assert not folder.exists()
