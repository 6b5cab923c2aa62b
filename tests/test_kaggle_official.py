"""The unmodified command line of Kaggle against the emulated Kaggle."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import EMULATOR_TOKEN
from tests.kaggle_world import Kaggles, World, fault
from tests.kaggle_world import kaggle as kaggle

KAGGLE = Path(__file__).parents[1] / ".venv-hosted" / "bin" / "kaggle"

pytestmark = [
    pytest.mark.hosted,
    pytest.mark.skipif(
        not KAGGLE.exists(), reason="the official command lines are not installed: make test-hosted"
    ),
]


class Official:
    """Runs `kaggle`, led to an emulator by nothing but its environment."""

    def __init__(self, world: World, folder: Path) -> None:
        proxy = f"http://{urlsplit(world.emulator.http).netloc}"
        self._env = {
            "HOME": str(folder), "PATH": os.environ["PATH"], "http_proxy": proxy, "no_proxy": "",
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST", "KAGGLE_API_TOKEN": EMULATOR_TOKEN,
        }  # fmt: skip

    def __call__(self, *words: str, code: int = 0, **env: str) -> str:
        done = subprocess.run(
            [str(KAGGLE), *words], env=self._env | env, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return lambda world: Official(world, tmp_path)


def project(folder: Path, text: str, **more: Any) -> str:
    about = {
        "id": "practice/hello-one", "title": "hello one", "code_file": "a.py",
        "language": "python", "kernel_type": "script", "machine_shape": "TpuV5E8",
    }  # fmt: skip
    place = folder / "project"
    place.mkdir(exist_ok=True)
    (place / "a.py").write_text(text)
    (place / "kernel-metadata.json").write_text(json.dumps(about | more))
    return str(place)


def test_push_status_logs_output_and_quota(kaggle: Kaggles, run: Any, tmp_path: Path) -> None:
    kaggle_cli = run(kaggle(fault("kaggle_logs", "cut", after_bytes=100)))
    text = (
        "import os, time\nfor i in range(4): print('line', i, flush=True); time.sleep(.1)\n"
        "os.makedirs('d'); open('d/o.txt', 'w').write('x' * 1000)"
    )
    pushed = kaggle_cli("kernels", "push", "-p", project(tmp_path, text), "-t", "600")
    assert "Kernel version 1 successfully pushed" in pushed
    # The stream is cut once, and replayed from the start: it skips what it has shown.
    followed = kaggle_cli("kernels", "logs", "-f", "practice/hello-one")
    assert followed == "line 0\nline 1\nline 2\nline 3\n"
    assert "COMPLETE" in kaggle_cli("kernels", "status", "practice/hello-one/1")
    assert len(json.loads(kaggle_cli("kernels", "logs", "practice/hello-one"))) == 4
    kaggle_cli("kernels", "output", "practice/hello-one", "-p", str(tmp_path / "out"))
    assert (tmp_path / "out/d/o.txt").read_text() == "x" * 1000
    assert "practice/hello-one" in kaggle_cli("kernels", "list", "--mine")
    (_, tpu) = json.loads(kaggle_cli("quota", "--format", "json"))
    assert (tpu["resource"], tpu["total"]) == ("TPU", "20.00h")
    assert "deleted" in kaggle_cli("kernels", "delete", "-y", "practice/hello-one")


def test_data_sets(kaggle: Kaggles, run: Any, tmp_path: Path) -> None:
    kaggle_cli = run(kaggle())
    place = tmp_path / "data"
    place.mkdir()
    (place / "f.bin").write_bytes(b"x" * 100_000)
    about = {"id": "practice/mydata", "title": "mydata", "licenses": [{"name": "CC0-1.0"}]}
    (place / "dataset-metadata.json").write_text(json.dumps(about))
    assert "private Dataset is being created" in kaggle_cli("datasets", "create", "-p", str(place))
    assert kaggle_cli("datasets", "status", "practice/mydata").strip() in (
        "ready",
        "blobs_received",
    )
    made = kaggle_cli("datasets", "version", "-p", str(place), "-m", "two")
    assert "version is being created" in made


def test_refusals_and_failures(kaggle: Kaggles, run: Any, tmp_path: Path) -> None:
    kaggle_cli = run(kaggle({"kaggle": {"used_hours": 20}, **fault("kaggle_quota", "rate_limit")}))
    place = project(tmp_path, "print(1)")
    # Its exit code is 0 for a push that was refused.
    assert "push error: Maximum weekly" in kaggle_cli("kernels", "push", "-p", place)
    assert "Too many requests" in kaggle_cli("quota", code=1)
    assert "wrong kernel slug" in kaggle_cli("kernels", "status", "practice/nothing", code=1)
    key = {"KAGGLE_API_TOKEN": "", "KAGGLE_USERNAME": "practice", "KAGGLE_KEY": EMULATOR_TOKEN}
    assert "TPU" in kaggle_cli("quota", **key)
    assert "Authentication required" in kaggle_cli(
        "quota", code=1, **{**key, "KAGGLE_KEY": "wrong"}
    )
    # A shape without a machine runs on the CPU, with a warning and without an error.
    retired = project(tmp_path, "print(1)", machine_shape="TpuV232")
    assert "retired" in kaggle_cli("kernels", "push", "-p", retired)


def test_a_finished_session_of_ours_can_be_read_by_it(
    kaggle: Kaggles, run: Any, tmp_path: Path
) -> None:
    world = kaggle()
    world.client.push(world.push("print('ours')"))
    list(world.client.log("tpuctl-by-hand", 1))
    assert "ours" in run(world)("kernels", "logs", "-f", "practice/tpuctl-by-hand")
