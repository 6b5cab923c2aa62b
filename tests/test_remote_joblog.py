"""A job that prints for ever: its log is bounded, and what is gone is said to be gone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")

from tests.waiting import wait_until
from tests.workers import Heard, Slice, running_slice
from tpuctl.remote.agent.joblog import LogLimit, data_start, read_from, tail_offset
from tpuctl.remote.jobs import start_job
from tpuctl.remote.logs import read_logs
from tpuctl.remote.run import plan_command

pytestmark = pytest.mark.slow

MOST = 1 << 16
LINE = "%09d\n"


def write(path: Path, lines: int) -> None:
    with path.open("a") as file:
        file.writelines(LINE % number for number in range(lines))


def used_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "log"
    path.touch()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    write(path, 50_000)
    LogLimit(descriptor, MOST).enforce()
    if data_start(descriptor, 0) == 0:
        os.close(descriptor)
        pytest.skip("this file system cannot cut a file's beginning out")
    yield path, descriptor
    os.close(descriptor)


def test_only_the_end_is_kept_and_every_byte_in_its_place(log: tuple[Path, int]) -> None:
    path, descriptor = log
    assert path.stat().st_size == 500_000
    assert MOST <= used_bytes(path) <= MOST + 2 * 4096
    begin, data = read_from(descriptor, 0, 1 << 20)
    assert (data, begin % 10) == (b"", 0)
    assert 500_000 - MOST - 4096 <= begin <= 500_000 - MOST + 10
    assert read_from(descriptor, begin, 10) == (begin, (LINE % (begin // 10)).encode())
    assert read_from(descriptor, 500_000, 10) == (500_000, b"")


def test_who_reads_behind_the_hole_notices_nothing(log: tuple[Path, int]) -> None:
    _, descriptor = log
    assert read_from(descriptor, 499_990, 100) == (499_990, b"000049999\n")


def test_the_tail_stops_where_the_log_begins(log: tuple[Path, int]) -> None:
    _, descriptor = log
    assert tail_offset(descriptor, 3) == 499_970
    begin, _ = read_from(descriptor, 0, 10)
    assert tail_offset(descriptor, 10**9) == begin


def test_a_little_more_than_the_limit_is_not_worth_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, (MOST + 2000) // 10)
    descriptor = os.open(path, os.O_RDWR)
    LogLimit(descriptor, MOST).enforce()
    assert data_start(descriptor, 0) == 0
    LogLimit(descriptor, 0).enforce()
    assert data_start(descriptor, 0) == 0
    os.close(descriptor)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path, 1) as workers:
        yield workers


def follow(workers: Slice, *, live: bool) -> tuple[list[str], list[str], int]:
    heard, notes = Heard(), list[str]()
    ended = read_logs(workers.hosts, workers.access, sink=heard, note=notes.append, follow=live)
    return heard.out.decode().splitlines(), notes, ended.exit_code


@pytest.mark.slow
def test_a_job_that_prints_for_ever_fills_no_disk(own: Slice, log: tuple[Path, int]) -> None:
    code = (
        "import sys, os\nn = 0\nwhile not os.path.exists('enough'):\n"
        " for n in range(n, n + 1000): sys.stdout.write('%09d\\n' % n)\n n += 1\n"
    )
    argv = plan_command(["python3", "-c", code + " import time; time.sleep(0.001)"])
    assert start_job(own.hosts, argv, own.access, job="j", log_bytes=MOST).exit_code == 0
    path = own.folder(0) / ".tpuctl" / "jobs" / "j" / "log"
    wait_until(lambda: path.stat().st_size > 40 * MOST)
    (own.folder(0) / "enough").touch()
    lines, notes, code_ = follow(own, live=True)
    assert code_ == 0
    assert all(len(line) == 9 for line in lines)
    numbers = [int(line) for line in lines]
    assert numbers[-1] * 10 + 10 == path.stat().st_size
    assert any("worker 0" in note and "dropped" in note and "--log-limit" in note for note in notes)
    wait_until(lambda: used_bytes(path) < 2 * MOST)
    last, _, _ = follow(own, live=False)
    assert [int(line) for line in last] == list(range(int(last[0]), numbers[-1] + 1))


def test_without_a_limit_all_is_kept(tpuctl, own: Slice) -> None:
    where = ("--host", own.option, "--key", str(own.key))
    code = "for n in range(50_000): print('%09d' % n)"
    limit = ("--job", "j", "--log-limit", "0")
    assert tpuctl("run", *where, *limit, "--", "python3", "-c", code).exit_code == 0
    result = tpuctl("logs", *where, "-f")
    assert len(result.stdout.splitlines()) == 50_000
    assert "gone" not in result.stderr
    assert tpuctl("run", *where, "--job", "k", "--log-limit", "much", "--", "true").exit_code == 2
