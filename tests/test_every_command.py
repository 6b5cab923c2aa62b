"""Every command where nothing is as usual: no home, user name, stdout or UTF-8, and umask 000."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_hostile_folder import Trap
from tpuctl.cli import app as program
from tpuctl.cli.contents import CONTENTS
from tpuctl.start_python import ROOT

# What each command is started with: enough to begin, and to end without a cloud or a training.
ARGUMENTS = {
    "doctor": "", "explain": "out of memory", "config": "", "types": "", "quota": "--project p",
    "offers": "v5e-8",
    "create": "t1 --type v5e-8 --project p --zone us-central1-a --yes",
    "list": "--project p", "show": "t1 --project p", "wait": "t1 --for ready --project p",
    "watch": "t1 --project p -- true", "delete": "t1 --yes --project p", "gc": "--project p",
    "migrate": "t1 --project p",
    "run": "--host me@127.0.0.1:1 -- true", "cp": "--host me@127.0.0.1:1 missing :there",
    "logs": "--host me@127.0.0.1:1", "stop": "--host me@127.0.0.1:1",
    "ssh": "--host me@127.0.0.1:1 --json", "top": "local --once", "free": "local",
    "profile run": "missing", "profile watch": "-- missing", "profile trace": "missing",
    "profile show": "missing", "profile diff": "missing missing",
    "data presize": "missing out", "data cache": "missing.py:f out", "data verify": "missing",
    "data show": "missing", "data serve": "--workers 0",
    "templates list": "", "templates show": "images", "templates new": "images {new}",
    "launch": "missing.py", "fit": "missing --type v5e-8", "bench": "--batch 0",
    "bench compare": "missing missing", "lint": "missing.py",
    "demo": "--images missing --out {new}/demo",
    "emulator start": "--detach", "emulator stop": "", "emulator status": "",
}  # fmt: skip

# The same commands on their other ways, each under a name of its own.
VARIANTS = {
    "launch on gke": "launch train.py --on gke --type v6e-16 --dry-run",
    "launch on kaggle": "launch train.py --on kaggle --dry-run",
    "launch on colab": "launch train.py --on colab:v5e-1 --dry-run",
    "launch on auto": "launch train.py --on auto --max-usd 1 --dry-run --project p",
    "watch on": "watch t1 --on colab,kaggle --checkpoints {new}/ck --dry-run -- train.py",
    "create colab": "create t1 --provider colab --type v5e-1 --yes",
    "create gce": "create t1 --provider gce --type v6e-8 --project p --zone us-central1-a --yes",
    "migrate to gce": "migrate t1 --to gce --project p",
    "doctor provider": "doctor --provider kaggle", "list gke": "list --provider gke",
    "data serve host": "data serve --host me@127.0.0.1:1",
}  # fmt: skip

PACKAGES = [ROOT, str(Path(pytest.__file__).parents[1])]
# Started once, it forks for every command, so that Python's own start is paid for once.
DRIVER = """
import json, os, sys
from tpuctl.__main__ import main
ends = {}
import typer
import tpuctl.cloud._google_api, tpuctl.cloud._google_quotas
for name, words in json.loads(sys.argv[1]).items():
    said = os.open(os.path.join(sys.argv[2], name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    if not (pid := os.fork()):
        os.dup2(said, 2)
        os.closerange(0, 2)
        sys.stdin = sys.stdout = None
        sys.argv = ["tpuctl", *words]
        code = 99
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            os._exit(code or 0)
    os.close(said)
    ends[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(ends))
"""


def leaves(words: tuple[str, ...], command: Any) -> Iterator[str]:
    below = getattr(command, "commands", {})
    if not below or words == ("bench",):
        yield " ".join(words)
    for name, child in below.items():
        yield from leaves((*words, name), child)


def test_every_command_is_started() -> None:
    names = [name for entry in CONTENTS for name in leaves((entry.name,), program._load(entry))]
    assert sorted(names) == sorted(ARGUMENTS)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user can reach; pytest closes those of its own."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-every-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def stranger() -> list[str]:
    """Python as a user without an entry in /etc/passwd, if possible, or else as ourselves."""
    words = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--bounding-set"]
    words += ["-all", "--inh-caps", "-all"]
    if os.getuid() == 0 and shutil.which("setpriv"):
        # One that can be reached by this user, also by a child without the rights of root.
        for python in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
            child = "subprocess.run([sys.executable, '-c', '']).check_returncode()"
            test = f"import subprocess, sys; sys.path[1:1] = {PACKAGES!r}; import typer; {child}"
            if subprocess.run([*words, python, "-c", test], capture_output=True).returncode == 0:
                return [*words, python]
    return [sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_state",
    [pytest.param(False, id="no state", marks=pytest.mark.soak), pytest.param(True, id="state")],
)
def test_no_command_breaks_where_nothing_is_as_usual(place: Path, has_state: bool) -> None:
    for name in ("said", "new"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    trap = Trap(place)
    trap.marks.touch()
    trap.marks.chmod(0o666)
    words = {
        name: [*name.split(), *shlex.split(line.format(new=place / "new"))]
        for name, line in ARGUMENTS.items()
    }
    words |= {name: shlex.split(line.format(new=place / "new")) for name, line in VARIANTS.items()}
    state = {"TPUCTL_STATE_DIR": str(place / "state")} if has_state else {}
    env = {
        "LANG": "C", "LC_ALL": "C", "PATH": f":{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(PACKAGES), **state,
    }  # fmt: skip
    script = place / "driver.py"
    script.write_text(DRIVER)
    done = subprocess.run(
        [*stranger(), str(script), json.dumps(words), str(place / "said")],
        cwd=trap.folder, env=env, umask=0, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    said = {name: (place / "said" / name).read_text() for name in words}
    wrong = {
        name: (ends[name], text)
        for name, text in said.items()
        if ends[name] not in (0, 1, 2, 3) or "is a bug" in text or "Traceback" in text
    }
    assert not wrong, json.dumps(wrong, indent=1)
    assert trap.caught == []
    open_files = [
        str(path.relative_to(place))
        for path in (place / "state").rglob("*")
        if path.lstat().st_mode & 0o077 and not path.is_symlink()
    ]
    assert open_files == []
    if has_state:
        assert ends["emulator start"] == ends["emulator stop"] == 0, said["emulator start"]
        assert len(list((place / "state").rglob("*"))) > 5
