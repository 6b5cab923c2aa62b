import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tpuctl.errors import TryAgainError, WriteError
from tpuctl.storage.local import append_line, free_bytes, locked, publish


def test_a_published_file_has_its_new_name_only(tmp_path: Path) -> None:
    (tmp_path / "part").write_text("new")
    (tmp_path / "final").write_text("old")
    publish(tmp_path / "part", tmp_path / "final")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"final": "new"}


def test_publishing_what_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"Could not write .*final"):
        publish(tmp_path / "part", tmp_path / "final")


def test_lines_are_added_one_below_the_other(tmp_path: Path) -> None:
    for line in ("one", "zwei ü"):
        append_line(tmp_path / "journal", line)
    assert (tmp_path / "journal").read_text(encoding="utf-8") == "one\nzwei ü\n"
    with pytest.raises(WriteError):
        append_line(tmp_path / "gone" / "journal", "x")


def test_free_space_is_that_of_the_folder_to_come(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") > 0


def test_a_lock_keeps_others_out_until_it_is_left(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait_s=0, busy="Busy."):
        with (
            pytest.raises(TryAgainError, match="Busy") as refused,
            locked(tmp_path / "lock", wait_s=0.1, busy="Busy."),
        ):
            pass
        assert refused.value.exit_code == 3
    with locked(tmp_path / "lock", wait_s=0, busy="Busy."):
        pass


def test_a_child_that_inherits_the_lock_keeps_it_and_its_death_frees_it(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", wait_s=0, busy="Busy.") as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
        )
    with (
        pytest.raises(TryAgainError),
        locked(tmp_path / "lock", wait_s=0, busy="Busy."),
    ):
        pass
    child.kill()
    child.communicate()
    with locked(tmp_path / "lock", wait_s=5, busy="Busy."):
        pass


def _opened(path: Path) -> int:
    """How many descriptors of this process are that file."""
    return sum(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())


def test_a_lock_file_that_its_last_holder_removed_is_made_again(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with ThreadPoolExecutor(1) as other, locked(lock, wait_s=0, busy="Busy."):

        def hold() -> bool:
            with locked(lock, wait_s=120, busy="Busy.") as second:
                return os.path.samestat(os.fstat(second), lock.stat())

        is_there = other.submit(hold)
        wait_until(lambda: _opened(lock) == 2)
        lock.unlink()
    assert is_there.result()


def test_a_lock_in_a_missing_folder_is_a_write_error(tmp_path: Path) -> None:
    with (
        pytest.raises(WriteError, match="does not exist"),
        locked(tmp_path / "gone" / "lock", wait_s=0, busy="Busy."),
    ):
        pass
    assert not os.path.exists(tmp_path / "gone")
