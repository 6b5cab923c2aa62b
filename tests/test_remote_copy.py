"""`tpuctl cp` in both directions, against friends and enemies."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("asyncssh")
pytest.importorskip("pathspec")

from tests.waiting import wait_until
from tests.workers import Slice, running_slice
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.progress import Progress
from tpuctl.remote.agent.tree import CHANGED, RECORD, WHOLE, TreeEntry, pack, read_entries, scan
from tpuctl.remote.agent.unpack import Receiver
from tpuctl.remote.agent.wire import Refusal, WireError
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyResults, plan_copy
from tpuctl.remote.local_tree import read_tree

pytestmark = pytest.mark.slow


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path / "slice", 2) as workers:
        yield workers


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with all that a folder may hold."""
    root = tmp_path / "code"
    (root / "pkg" / "empty").mkdir(parents=True)
    (root / "train.py").write_text("print('train')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "pkg" / "secret").write_bytes(b"\0\xff" * 300_000)
    (root / "pkg" / "secret").chmod(0o400)
    (root / "pkg" / "shared").write_text("")
    (root / "pkg" / "shared").chmod(0o666)
    (root / "pkg" / "up").symlink_to("../train.py")
    (root / "pkg" / "broken").symlink_to("no/such")
    (root / os.fsdecode(b"n\xff\n'\" ")).write_text("odd name")
    (root / "pkg" / "empty").chmod(0o555)
    return root


def up(workers: Slice, source: Path, target: str = ":code", hosts: int = 2) -> CopyResults:
    plan = plan_copy(str(source), target, has_hosts=True)
    return copy(workers.hosts[:hosts], workers.access, plan)


def down(workers: Slice, source: str, target: "Path | str", hosts: int = 2) -> CopyResults:
    plan = plan_copy(source, str(target), has_hosts=True)
    return copy(workers.hosts[:hosts], workers.access, plan)


def sent(result: CopyResults) -> list[int]:
    return [worker.sent for worker in result.workers]


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a folder that a copy must keep."""
    entries, _ = scan(str(root), lambda *_: True)
    content = {
        entry.path: (root / entry.path).read_bytes() for entry in entries if entry.kind == "f"
    }
    return {entry.path: (*entry.as_list()[1:], content.get(entry.path)) for entry in entries}


def test_a_folder_arrives_whole_and_comes_back_the_same(
    own: Slice, code: Path, tmp_path: Path
) -> None:
    result = up(own, code)
    assert (result.exit_code, sent(result)) == (0, [5, 5])
    assert picture(own.folder(0) / "code") == picture(own.folder(1) / "code") == picture(code)
    assert down(own, ":code", tmp_path / "back").exit_code == 0
    assert sorted(os.listdir(tmp_path / "back")) == ["worker-0", "worker-1"]
    assert picture(tmp_path / "back" / "worker-1") == picture(code)
    down(own, ":code", tmp_path / "one", hosts=1)
    assert picture(tmp_path / "one") == picture(code)


def test_nothing_is_sent_when_nothing_has_changed(own: Slice, code: Path, tmp_path: Path) -> None:
    up(own, code)
    assert sent(up(own, code)) == [0, 0]
    down(own, ":code", tmp_path / "back")
    assert sent(down(own, ":code", tmp_path / "back")) == [0, 0]


def test_only_what_has_changed_is_sent_to_whom_it_is_missing(own: Slice, code: Path) -> None:
    up(own, code)
    (code / "train.py").write_text("print('other')\n")
    (own.folder(1) / "code" / "run.sh").unlink()
    assert sent(up(own, code)) == [1, 2]
    assert picture(own.folder(0) / "code") == picture(own.folder(1) / "code") == picture(code)


def test_a_file_with_only_another_time_is_compared_not_sent(own: Slice, code: Path) -> None:
    up(own, code)
    os.utime(code / "train.py", (1, 1))
    assert sent(up(own, code)) == [0, 0]
    assert (own.folder(0) / "code" / "train.py").stat().st_mtime == 1
    text = (code / "train.py").read_text()
    (code / "train.py").write_text(text.upper())
    assert sent(up(own, code)) == [1, 1]


def test_a_mode_and_a_link_that_changed_follow(own: Slice, code: Path) -> None:
    up(own, code)
    (code / "run.sh").chmod(0o700)
    (code / "pkg" / "up").unlink()
    (code / "pkg" / "up").symlink_to("shared")
    assert sent(up(own, code)) == [0, 0]
    assert picture(own.folder(0) / "code") == picture(code)


def test_what_is_only_over_there_stays(own: Slice, code: Path) -> None:
    up(own, code)
    (own.folder(0) / "code" / "checkpoint").write_text("precious")
    up(own, code)
    assert (own.folder(0) / "code" / "checkpoint").read_text() == "precious"


@pytest.mark.parametrize(
    ("target", "arrives"),
    [
        (":b.txt", "b.txt"),
        (":", "a.txt"),
        (":d/", "d/a.txt"),
        (":~/c", "c"),
        (":home", "home/a.txt"),
    ],
)
def test_one_file_goes_where_cp_would_put_it(
    own: Slice, tmp_path: Path, target: str, arrives: str
) -> None:
    (tmp_path / "a.txt").write_text("a")
    (own.folder(0) / "home").mkdir()
    assert up(own, tmp_path / "a.txt", target, hosts=1).exit_code == 0
    assert (own.folder(0) / arrives).read_text() == "a"


def test_one_file_comes_back_under_the_name_that_is_wanted(own: Slice, tmp_path: Path) -> None:
    (own.folder(0) / "log").write_text("l")
    (own.folder(1) / "log").write_text("l")
    (own.folder(0) / "link").symlink_to("log")
    down(own, ":log", tmp_path / "mine.txt", hosts=1)
    down(own, ":link", f"{tmp_path}/new/", hosts=1)
    down(own, ":log", tmp_path / "all")
    assert (tmp_path / "mine.txt").read_text() == (tmp_path / "new" / "link").read_text() == "l"
    assert (tmp_path / "all" / "worker-1" / "log").read_text() == "l"


def test_a_link_to_a_file_is_followed_when_it_is_named(own: Slice, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("r")
    (tmp_path / "link.txt").symlink_to("real.txt")
    up(own, tmp_path / "link.txt", ":", hosts=1)
    assert (own.folder(0) / "link.txt").read_text() == "r"


def test_ignored_files_stay_here_and_there(own: Slice, code: Path, tmp_path: Path) -> None:
    (code / ".git").mkdir()
    (code / ".git" / "HEAD").write_text("x")
    (code / ".gitignore").write_text("*.pyc\n/data/\n!keep.pyc\n")
    (code / ".tpuignore").write_text("*.ckpt\n")
    (code / "pkg" / ".gitignore").write_text("!again.ckpt\nsecret\n")
    for name in ("a.pyc", "keep.pyc", "x.ckpt", "pkg/b.pyc", "pkg/again.ckpt", "pkg/data"):
        (code / name).write_text("x")
    (code / "data").mkdir()
    (code / "data" / "huge").write_text("x")
    up(own, code)
    there = picture(own.folder(0) / "code")
    assert {"keep.pyc", "pkg/again.ckpt", "pkg/data", ".gitignore", ".tpuignore"} <= set(there)
    assert {"a.pyc", "x.ckpt", "pkg/b.pyc", "pkg/secret", "data", ".git"} & set(there) == set()
    (own.folder(0) / "code" / "made.pyc").write_text("x")
    down(own, ":code", tmp_path / "back", hosts=1)
    assert picture(tmp_path / "back") == there


def test_the_rules_of_the_repository_above_count(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\nout/\n")
    (tmp_path / "sub" / "out").mkdir(parents=True)
    for name in ("sub/a.log", "sub/a.py", "sub/out/model"):
        (tmp_path / name).write_text("x")
    assert [entry.path for entry in read_tree(tmp_path / "sub").entries] == ["a.py"]
    assert [entry.path for entry in read_tree(tmp_path / "sub" / "out").entries] == ["model"]


def test_what_is_no_file_is_named_and_left_out(own: Slice, code: Path) -> None:
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(code / "socket"))
        result = up(own, code)
    assert result.exit_code == 0
    assert "pipe, socket" in result.warnings[0]


@pytest.mark.parametrize("here", ["folder", "file"])
def test_a_thing_of_another_kind_is_not_replaced(own: Slice, code: Path, here: str) -> None:
    place = own.folder(0) / "code" / ("train.py" if here == "folder" else "pkg")
    place.parent.mkdir()
    place.mkdir() if here == "folder" else place.write_text("precious")
    result = up(own, code)
    assert result.failures[0].code == "already_exists"
    assert result.workers[1].sent == 5
    assert sorted(os.listdir(own.folder(0) / "code")) == [place.name]


@pytest.mark.parametrize("below", ["", "/deep"])
def test_a_file_in_the_place_of_the_whole_folder_is_in_the_way(
    own: Slice, code: Path, below: str
) -> None:
    (own.folder(0) / "code").write_text("precious")
    (failure,) = up(own, code, f":code{below}", hosts=1).failures
    assert failure.code == "already_exists"
    assert (own.folder(0) / "code").read_text() == "precious"


def test_no_link_over_there_leads_a_file_out_of_the_folder(
    own: Slice, code: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (own.folder(0) / "code").mkdir()
    (own.folder(0) / "code" / "pkg").symlink_to(outside)
    result = up(own, code, hosts=1)
    assert result.failures[0].code == "already_exists"
    assert os.listdir(outside) == []


def test_a_link_in_a_files_place_is_replaced_not_followed(own: Slice, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a").write_text("new")
    (own.folder(0) / "code").mkdir()
    (own.folder(0) / "code" / "a").symlink_to(tmp_path / "victim")
    assert up(own, tmp_path / "src", hosts=1).exit_code == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert (own.folder(0) / "code" / "a").read_text() == "new"


FILE = ["f", 0o644, 1, 1, ""]


@pytest.mark.parametrize(
    "rows",
    [
        [["../x", *FILE]],
        [["/etc/x", *FILE]],
        [["a/../../x", *FILE]],
        [["", *FILE]],
        [[".", *FILE]],
        [["a\0b", *FILE]],
        [["a//b", *FILE]],
        [["missing/x", *FILE]],
        [["a", "l", 0o777, 0, 0, "/etc"], ["a/passwd", *FILE]],
        [["a", *FILE], ["a", *FILE]],
        [["a", *FILE], ["a/b", *FILE]],
        [[".tpuctl-x.part", "d", 0o755, 0, 0, ""]],
        [["a", "x", 0, 0, 0, ""]],
        [["a", "f", 0o644, -1, 0, ""]],
        [["a", "f"]],
        ["a"],
        {},
        None,
    ],
)
def test_a_list_that_leads_out_of_its_folder_is_refused(rows: object) -> None:
    with pytest.raises(Refusal):
        read_entries(rows)


def test_no_set_user_id_is_taken_over() -> None:
    (entry,) = read_entries([["a", "f", 0o4755, 1, 1, ""]])
    assert entry.mode == 0o755


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_stream_may_come_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], step: int
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    for number, content in enumerate(contents):
        (here / str(number)).write_bytes(content)
    entries, _ = scan(str(here), lambda *_: True)
    stream = b"".join(pack(str(here), entries, range(len(entries))))
    receiver = Receiver(str(there), dict(enumerate(entries)))
    receiver.compare()
    receiver.expect(range(len(entries)))
    for start in range(0, len(stream), step):
        receiver.feed(stream[start : start + step])
    receiver.commit([])
    receiver.close()
    assert picture(there) == picture(here)


def receiving(root: Path, names: str) -> Receiver:
    entries = {n: TreeEntry(name, "f", 0o644, 1, 1, "") for n, name in enumerate(names)}
    receiver = Receiver(str(root), entries)
    receiver.compare()
    receiver.expect(entries)
    return receiver


def test_a_stream_that_ends_too_early_changes_nothing(tmp_path: Path) -> None:
    receiver = receiving(tmp_path, "ab")
    receiver.feed(RECORD.pack(0, 1) + b"x" + WHOLE)
    with pytest.raises(WireError):
        receiver.commit([])
    receiver.close()
    assert os.listdir(tmp_path) == []


def test_a_file_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    receiver = receiving(tmp_path, "a")
    with pytest.raises(WireError):
        receiver.feed(RECORD.pack(7, 1))
    receiver.close()


def test_a_file_that_changed_meanwhile_does_not_replace_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old content")
    receiver = receiving(tmp_path, "a")
    receiver.feed(RECORD.pack(0, 1) + b"x" + CHANGED)
    receiver.commit([])
    receiver.close()
    assert receiver.changed == ["a"]
    assert (tmp_path / "a").read_text() == "old content"


def receiving_folder(root: Path) -> Receiver:
    """A folder d with files a and b, of which a has arrived."""
    entries = [TreeEntry("d", "d", 0o750, 0, 0, "")]
    entries += [TreeEntry(f"d/{name}", "f", 0o640, 1, 1, "") for name in "ab"]
    receiver = Receiver(str(root), dict(enumerate(entries)))
    receiver.expect(receiver.compare()[0])
    receiver.feed(RECORD.pack(1, 1) + b"x" + WHOLE)
    return receiver


def test_a_new_folder_takes_its_place_when_everything_has_come(tmp_path: Path) -> None:
    receiver = receiving_folder(tmp_path)
    assert not (tmp_path / "d").exists()
    receiver.feed(RECORD.pack(2, 1) + b"y" + CHANGED)
    assert not (tmp_path / "d").exists()
    receiver.commit([])
    receiver.close()
    assert os.listdir(tmp_path) == ["d"]
    assert receiver.changed == ["d/b"]
    assert os.listdir(tmp_path / "d") == ["a"]
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750


def test_a_folder_that_somebody_makes_meanwhile_gets_the_files(tmp_path: Path) -> None:
    receiver = receiving_folder(tmp_path)
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d" / "own").write_text("own")
    receiver.feed(RECORD.pack(2, 1) + b"y" + WHOLE)
    receiver.commit([])
    receiver.close()
    assert sorted(os.listdir(tmp_path / "d")) == ["a", "b", "own"]
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_nothing_goes_through_what_somebody_puts_in_a_folders_place(
    tmp_path: Path, kind: str
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    receiver = receiving_folder(root)
    if kind == "link":
        (root / "d").symlink_to(outside)
    else:
        (root / "d").write_text("own")
    receiver.feed(RECORD.pack(2, 1) + b"y" + WHOLE)
    with pytest.raises(Refusal):
        receiver.commit([])
    receiver.close()
    assert os.listdir(outside) == []
    assert os.listdir(root) == ["d"]


def test_a_new_folder_that_was_given_up_leaves_nothing(tmp_path: Path) -> None:
    receiving_folder(tmp_path).close()
    assert os.listdir(tmp_path) == []
    killed = receiving_folder(tmp_path)
    os.close(killed._part)
    killed._part = -1
    killed.close()
    assert len(os.listdir(tmp_path)) == 1
    receiving(tmp_path, "a").close()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_copy_left_is_removed_by_the_next(tmp_path: Path) -> None:
    stale = tmp_path / ".tpuctl-0123.part"
    stale.mkdir()
    (stale / "0").write_text("half")
    running = receiving(tmp_path, "a")
    another = receiving(tmp_path, "b")
    assert not stale.exists()
    running.feed(RECORD.pack(0, 1) + b"x" + WHOLE)
    running.commit([])
    for receiver in (running, another):
        receiver.close()
    assert os.listdir(tmp_path) == ["a"]


def test_a_connection_that_breaks_leaves_the_old_state(own: Slice, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    for name in "ab":
        (big / name).write_bytes(os.urandom(8 << 20))
    up(own, big)
    before = picture(own.folder(0) / "code")
    for name in "ab":
        (big / name).write_bytes(os.urandom(9 << 20))
    dropped: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        if progress.done > 1 << 20 and not dropped:
            dropped.append(progress)
            own.drop(0)

    plan = plan_copy(str(big), ":code", has_hosts=True)
    result = copy(own.hosts, own.access, plan, on_progress=on_progress)
    assert result.failures[0].code == "worker_lost"
    assert result.workers[1].failure is None
    wait_until(lambda: len(os.listdir(own.folder(0) / "code")) == 2)
    assert picture(own.folder(0) / "code") == before
    assert sent(up(own, big)) == [2, 0]


def test_a_full_disk_over_there_is_said_to_be_full_and_the_others_get_theirs(
    tmp_path: Path,
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with running_slice(tmp_path, 2, homes=tmp_path / "homes") as workers:
            (workers.folder(0) / "code").symlink_to(small)
            source = tmp_path / "source"
            source.mkdir()
            (source / "big").write_bytes(os.urandom(5 << 20))
            result = up(workers, source)
            assert result.failures[0].code == "worker_disk_full"
            assert "worker 0" in str(result.failures[0])
            assert result.workers[1].sent == 1
            assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_place_here_that_cannot_be_written_is_our_own_error(own: Slice, tmp_path: Path) -> None:
    (own.folder(0) / "data").write_bytes(b"x" * 100)
    result = down(own, ":data", Path("/proc/nothing/below"), hosts=1)
    assert result.failures[0].code == "write_failed"
    target = tmp_path / "file"
    target.write_text("in the way")
    result = down(own, ":data", target / "below", hosts=1)
    assert result.failures[0].code == "already_exists"


def test_a_path_that_is_nowhere_is_named(own: Slice, tmp_path: Path) -> None:
    assert down(own, ":nothing", tmp_path, hosts=1).failures[0].code == "not_found"
    with pytest.raises(NotFoundError):
        up(own, tmp_path / "nothing")


def test_ctrl_c_leaves_nothing_half_done(own: Slice, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    os.mkfifo(tmp_path / "fifo")
    (big / "huge").write_bytes(os.urandom(64 << 20))
    argv = [sys.executable, "-m", "tpuctl", "cp", str(big), ":code", "--host", own.option]
    child = subprocess.Popen([*argv, "--key", str(own.key)], stderr=subprocess.PIPE)
    place = own.folder(0) / "code"
    wait_until(lambda: place.is_dir() and any(place.iterdir()))
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    wait_until(lambda: not any(place.iterdir()) or (place / "huge").exists())
    assert child.returncode in (0, 130)


@pytest.mark.parametrize(
    ("source", "target", "has_hosts"),
    [
        ("a", "b", False),
        ("t1:a", "t1:b", False),
        ("./t1:a", "b", False),
        ("t1:a", "b", True),
        ("a\0", ":b", True),
    ],
)
def test_not_exactly_one_side_on_the_workers_is_wrong_usage(
    source: str, target: str, has_hosts: bool
) -> None:
    with pytest.raises(UsageError):
        plan_copy(source, target, has_hosts=has_hosts)


def test_the_command_line_says_how_much_was_copied(tpuctl, own: Slice, code: Path) -> None:
    where = ("--host", own.option, "--key", str(own.key))
    first = tpuctl("cp", str(code), ":code", *where)
    assert "Copied 5 files (586 KiB) to each of 2 workers" in first.stdout
    second = tpuctl("cp", str(code), ":code", *where)
    assert "Nothing to copy: 5 files unchanged on each of 2 workers" in second.stdout
    data = tpuctl("cp", str(code), ":code", *where, "--json").data
    assert [worker["sent"] for worker in data["workers"]] == [0, 0]
    assert issubclass(UsageError, TpuctlError)
