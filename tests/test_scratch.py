"""Folders that are gone afterwards, also where their owner was killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.conftest import Tpuctl
from tpuctl.errors import TargetError
from tpuctl.usercode.scratch import scratch_folder
from tpuctl.usercode.scratch_cleanup import remove

LIMIT_S = 60.0
OWNER = """
import sys, threading
from tpuctl.usercode.scratch import scratch_folder
with scratch_folder("tpuctl-test-") as scratch:
    (scratch.path / "file").write_text("large")
    child = "import os, time; print(os.getpid(), file=open(%r, 'w'), flush=True); time.sleep(600)"
    place = str(scratch.path.parent / (scratch.path.name + ".pid"))
    print(scratch.path, flush=True)
    scratch.run([sys.executable, "-c", child % place], limit_s=600)
"""


def comes_true(claim: object) -> bool:
    """Whether something holds before long."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        if claim():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_there_inside_the_block_and_gone_after_it() -> None:
    with scratch_folder("tpuctl-test-") as scratch:
        (scratch.path / "file").write_text("large")
        assert scratch.path.is_dir()
    assert not scratch.path.exists()


def test_a_killed_owner_leaves_neither_the_folder_nor_what_it_ran() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout
        folder = Path(owner.stdout.readline().strip())
        place = folder.with_name(folder.name + ".pid")
        assert comes_true(lambda: place.exists() and place.read_text().strip())
        pid = int(place.read_text())
        assert folder.is_dir()
        assert is_running(pid)
        os.kill(owner.pid, signal.SIGKILL)
    place.unlink()
    assert comes_true(lambda: not folder.exists())
    assert comes_true(lambda: not is_running(pid))


def test_a_command_that_fails_is_told_by_its_last_words() -> None:
    with scratch_folder("tpuctl-test-") as scratch:
        scratch.run([sys.executable, "-c", "print('fine')"], limit_s=LIMIT_S)
        with pytest.raises(TargetError, match="no room left"):
            scratch.run([sys.executable, "-c", "raise SystemExit('no room left')"], limit_s=LIMIT_S)


def test_a_command_that_takes_too_long_is_ended() -> None:
    with (
        scratch_folder("tpuctl-test-") as scratch,
        pytest.raises(TargetError, match="timed out after 0 s"),
    ):
        scratch.run([sys.executable, "-c", "import time; time.sleep(600)"], limit_s=0.1)


def test_it_is_gone_at_the_end_although_a_process_that_was_forked_inside_lives_on() -> None:
    with scratch_folder("tpuctl-test-") as scratch:
        pid = os.fork()
        if not pid:
            time.sleep(LIMIT_S)
            os._exit(0)
    try:
        assert is_running(pid)
        assert not scratch.path.exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


WRITER = """
import sys
import tempfile
from pathlib import Path
place = Path(sys.argv[1], "stacks")
while place.parent.exists():
    try:
        place.with_suffix(".new").write_text("seen")
        place.with_suffix(".new").replace(place)
    except OSError:
        pass
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_folder_that_others_write_into_meanwhile(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-S", "-c", WRITER, str(folder)]):
            assert comes_true((folder / "stacks").exists)
            remove(str(folder))
    assert list(tmp_path.iterdir()) == []


def test_no_place_for_temporary_files_is_an_error_and_not_a_bug(
    tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    done = tpuctl("profile", "run", "--", sys.executable, "train.py")
    assert "Error: No usable temporary directory found in ['/nowhere']." in done.stderr
    assert "set TMPDIR" in done.stderr
