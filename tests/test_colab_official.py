"""The unmodified official command line of Colab works against the emulator.

It wants Python 3.12 and an environment of its own: `make test-hosted` makes it.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.workers import new_key
from tpuctl.emulator.colab._server import Colab

pytestmark = pytest.mark.hosted

CLI = Path(__file__).parents[1] / ".venv-colab" / "bin" / "colab"
if not CLI.exists():
    pytest.skip("google-colab-cli is not installed: make test-hosted", allow_module_level=True)


@pytest.fixture
def colab(colab_world: ColabWorld) -> Colab:
    return colab_world({"balance": 50.0})


def run(colab: Colab, *words: str, code: int = 0, stdin: str = "") -> str:
    home = colab.ca_file.parent / "cli"
    pairs = (line.partition("=") for line in (home / "env").read_text().splitlines())
    env = {**os.environ, **{name: value for name, _, value in pairs}}
    done = subprocess.run(
        [CLI, *words],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_it_creates_lists_executes_copies_and_stops(colab: Colab, tmp_path: Path) -> None:
    run(colab, "new", "-s", "s1", "--tpu", "v5e1")
    (runtime,) = colab.account.runtimes.values()
    assert runtime.accelerator == "V5E1"
    assert runtime.endpoint in run(colab, "sessions")
    assert "50" in run(colab, "usage") or "49." in run(colab, "usage")
    script = tmp_path / "job.py"
    script.write_text("import os\nprint('cwd', os.path.basename(os.getcwd()))\n")
    said = run(colab, "exec", "-s", "s1", "-f", str(script), "--timeout", "600")
    assert "cwd content" in said
    (tmp_path / "data.txt").write_text("hello")
    run(colab, "upload", "-s", "s1", str(tmp_path / "data.txt"), "content/data.txt")
    assert "data.txt" in run(colab, "ls", "-s", "s1", "content")
    run(colab, "download", "-s", "s1", "content/data.txt", str(tmp_path / "back.txt"))
    assert (tmp_path / "back.txt").read_text() == "hello"
    run(colab, "stop", "-s", "s1")
    assert not colab.account.runtimes


def test_run_gives_the_exit_code_and_deletes(colab: Colab, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("print('ran')\nraise SystemExit(7)\n")
    said = run(colab, "run", "--tpu", "v6e1", "--timeout", "600", str(script), code=7)
    assert "ran" in said
    assert not colab.account.runtimes


def test_ssh_through_its_proxy_command(colab: Colab, tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    run(colab, "new", "-s", "s1", "--tpu", "v5e1")
    pairs = (
        line.partition("=")
        for line in (colab.ca_file.parent / "cli" / "env").read_text().splitlines()
    )
    proxy = f"{CLI} ssh --proxy-mode -s s1 -i {tmp_path / 'key'}"
    options = [f"ProxyCommand={proxy}", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
    done = subprocess.run(
        ["ssh", "-F", "none", "-i", str(tmp_path / "key"),
         *(word for option in options for word in ("-o", option)), "root@any", "echo $0; exit 5"],
        env={**os.environ, **{name: value for name, _, value in pairs}},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr


def test_a_refusal_is_told(tmp_path: Path, colab_world: ColabWorld) -> None:
    full = colab_world({"faults": [{"on": "post_assign", "status": 412, "every": True}]})
    assert "precondition" in run(full, "new", "-s", "s1", "--tpu", "v5e1", code=1)
