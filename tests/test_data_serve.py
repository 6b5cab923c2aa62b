"""A tf.data service: real servers, kept alive, used by a real pipeline, ended with their owner."""

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Tpuctl
from tpuctl.datasets.serve import Watch, line_of, plan_servers

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
    one, two = plan_servers(["a", "b"], workers=3, port=5050, work_dir="/w")
    assert [(spec["name"], spec["address"], spec["port"]) for spec in one + two] == [
        ("dispatcher", "a", 5050), ("worker-0", "a", 5051), ("worker-2", "a", 5053),
        ("worker-1", "b", 5052),
    ]  # fmt: skip
    assert {spec.get("dispatcher") for spec in two} == {"a:5050"}


def test_what_agents_say_becomes_one_announcement_and_notes() -> None:
    said: list[str] = []
    plans = plan_servers(["localhost"], workers=1, port=7000, work_dir="/w")
    watch = Watch(plans, lambda service: said.append(service.line), said.append)
    watch.take('{"event": "ready", "name": "worker-0"}')
    assert said == []
    watch.take('{"event": "ready", "name": "dispatcher"}')
    assert said == [line_of("grpc://localhost:7000")]
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


def use(line: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-c", CLIENT, line]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
def test_a_pipeline_runs_on_it_and_its_servers_are_kept_alive() -> None:
    with serving("--workers", "2") as (process, document):
        data = document["data"]
        assert data["target"].startswith("grpc://localhost:")
        assert [server["name"] for server in data["servers"]] == [
            "dispatcher", "worker-0", "worker-1",
        ]  # fmt: skip
        first = named(process, "worker-0")
        first.kill()
        named(process, "dispatcher").kill()
        client = use(data["line"])
        stdout, stderr = client.communicate(timeout=120)
        assert client.returncode == 0, stderr
        # OFF gives the elements once per worker that takes part.
        assert sorted(set(json.loads(stdout))) == EXPECTED
        assert named(process, "worker-0").pid != first.pid
        everybody = children(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert psutil.wait_procs(everybody, timeout=120)[1] == []
        assert process.stderr is not None
        said = process.stderr.read()
        assert "worker-0 ended (signal 9) and is restarted." in said
        assert "The service has stopped." in said


@needs_tf
@pytest.mark.tf
def test_the_servers_of_a_killed_command_end_with_it_and_a_port_in_use_is_said() -> None:
    with serving() as (process, document):
        port = document["data"]["target"].rpartition(":")[2]
        everybody = children(process)
        words = [sys.executable, "-m", "tpuctl", "data", "serve", "--json", "--port", port]
        second = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert second.returncode == 1
        (error,) = json.loads(second.stdout)["errors"]
        assert error["code"] == "service_failed"
        assert f"port {port} is in use" in error["message"]
        assert "--port" in error["hint"]
        process.kill()
        assert psutil.wait_procs(everybody, timeout=120)[1] == []


def work_dirs() -> set[Path]:
    """Where dispatchers on other machines keep their journals."""
    return set(Path("/tmp").glob("tpuctl-serve-*"))


@needs_tf
@pytest.mark.tf
def test_it_runs_on_other_machines_over_ssh(tmp_path: Path) -> None:
    pytest.importorskip("asyncssh")
    from tests.workers import running_slice

    before = work_dirs()
    with running_slice(tmp_path, 2) as slice_:
        options = ["--host", slice_.option, "--key", str(slice_.key), "--python", sys.executable]
        with serving(*options, "--port", "5650") as (process, document):
            data = document["data"]
            assert data["target"] == "grpc://127.0.3.1:5650"
            client = use(data["line"])
            stdout, stderr = client.communicate(timeout=120)
            assert client.returncode == 0, stderr
            assert sorted(set(json.loads(stdout))) == EXPECTED
            journals = work_dirs() - before
            assert journals
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        assert not journals & work_dirs()
