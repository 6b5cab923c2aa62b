"""Workers that lie: what they send decides neither where files are written nor who gets results."""

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("pathspec")

from tests.test_remote_malformed import answer
from tests.workers import Slice, running_slice
from tpuctl.remote.agent import wire
from tpuctl.remote.agent.tree import RECORD, WHOLE, pack, scan
from tpuctl.remote.agent.unpack import Receiver, same_without_case
from tpuctl.remote.copy import copy, preview_copy
from tpuctl.remote.copy_plan import CopyResults, plan_copy
from tpuctl.storage.local import free_bytes

pytestmark = pytest.mark.slow

EVIL = b"evil"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Slice]:
    with running_slice(tmp_path / "slice", 2) as workers:
        yield workers


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of the user, with what must not be touched."""
    root = tmp_path / "home" / "here"
    root.mkdir(parents=True)
    (root / ".bashrc").write_text("mine")
    return root


def row(path: str, kind: str = "f", link: str = "", mode: int = 0o644) -> list[object]:
    return [path, kind, mode, len(EVIL) if kind == "f" else 0, 1, link]


def offered(is_file: bool, *rows: list[object], ignores: Any = None) -> list[bytes]:
    """The frames of an offer, and of the content of all its files."""
    files = [number for number, one in enumerate(rows) if one[1] == "f"]
    data = b"".join(RECORD.pack(number, len(EVIL)) + EVIL + WHOLE for number in files)
    offer = wire.note(is_file=is_file, entries=list(rows), odd=[], ignores=ignores or {})
    return [offer, *([wire.block(data)] if data else []), wire.note(done=True)]


def fetch(own: Slice, source: str, target: "Path | str", hosts: int = 1) -> CopyResults:
    plan = plan_copy(source, str(target), has_hosts=True)
    return copy(own.hosts[:hosts], own.access, plan)


def below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("name", [".bashrc", "authorized_keys", "log\n", "LOG", "-rf"])
def test_a_file_gets_the_name_that_was_asked_for(own: Slice, here: Path, name: str) -> None:
    answer(own, 0, *offered(True, row(name)))
    assert fetch(own, ":run/log", here).exit_code == 0
    assert below(here) == {".bashrc", "log"}
    assert (here / ".bashrc").read_text() == "mine"


@pytest.mark.parametrize("asked", [":", ":~", ":~/", ":.", ":a/..", ":log/", ":/"])
def test_a_file_in_the_place_of_a_folder_is_refused(own: Slice, here: Path, asked: str) -> None:
    answer(own, 0, *offered(True, row(".bashrc")))
    assert fetch(own, asked, here).failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


@pytest.mark.parametrize("kind", ["l", "d"])
def test_one_file_is_neither_a_link_nor_a_folder(own: Slice, here: Path, kind: str) -> None:
    answer(own, 0, *offered(True, row("log", kind, "/etc/passwd" if kind == "l" else "")))
    assert fetch(own, ":log", here / "mine").failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


def test_one_file_is_not_two(own: Slice, here: Path) -> None:
    answer(own, 0, *offered(True, row("log"), row(".bashrc")))
    assert fetch(own, ":log", here).failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


def test_a_folder_in_the_place_of_a_file_does_not_fill_a_folder_that_exists(
    own: Slice, here: Path
) -> None:
    answer(own, 0, *offered(False, row(".bashrc"), row(".profile")))
    (failure,) = fetch(own, ":log", here).failures
    assert failure.code == "already_exists"
    assert "worker 0" in str(failure)
    assert below(here) == {".bashrc"}


def test_the_same_copy_again_finds_what_it_has_copied(own: Slice, here: Path) -> None:
    (own.folder(0) / "log" / "sub").mkdir(parents=True)
    (own.folder(0) / "log" / "sub" / "a").write_text("honest")
    (own.folder(0) / "log" / "sub" / "link").symlink_to("a")
    (own.folder(0) / "log" / "b").write_text("honest")
    for _ in range(2):
        assert fetch(own, ":log", here.parent / "new").exit_code == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_same_copy_again_completes_an_interrupted_one(
    own: Slice, here: Path, is_killed: bool
) -> None:
    source, new = own.folder(0) / "log", here.parent / "new"
    (source / "sub").mkdir(parents=True, mode=0o755)
    (source / "sub" / "a").write_text("honest")
    (source / "b").write_text("honest")
    entries, _ = scan(str(source), lambda *_: True)
    receiver = Receiver(str(new), dict(enumerate(entries)))
    missing, _ = receiver.compare()
    receiver.expect(missing)
    for data in pack(str(source), entries, missing):
        receiver.feed(data)
    (new / "b").mkdir()
    with pytest.raises(IsADirectoryError):
        receiver.commit([])
    if is_killed:
        os.close(receiver._part)
        receiver._part = -1
    receiver.close()
    (new / "b").rmdir()
    assert (new / "sub" / "a").read_text() == "honest"
    assert fetch(own, ":log", new).exit_code == 0
    assert below(new) == {"b", "sub", "sub/a"}
    assert (new / "sub").stat().st_mode == (source / "sub").stat().st_mode


@pytest.mark.parametrize(("later_ns", "more"), [(1, []), (0, ["b"])])
def test_a_worker_that_knows_what_is_in_a_folder_changes_nothing_there(
    own: Slice, here: Path, later_ns: int, more: list[str]
) -> None:
    state = (here / ".bashrc").stat()
    known = [".bashrc", "f", state.st_mode & 0o777, 4, state.st_mtime_ns + later_ns, ""]
    answer(own, 0, *offered(False, known, *map(row, more)))
    assert fetch(own, ":log", here).failures[0].code == "already_exists"
    assert (below(here), (here / ".bashrc").read_text()) == ({".bashrc"}, "mine")


@pytest.mark.parametrize(
    ("asked", "target"), [(":log/", "here"), (":here", "here"), (":log", "new")]
)
def test_a_folder_that_was_asked_for_arrives(
    own: Slice, here: Path, asked: str, target: str
) -> None:
    answer(own, 0, *offered(False, row("a"), row("sub", "d", mode=0o755), row("sub/b")))
    assert fetch(own, asked, here.parent / target).exit_code == 0
    assert (here.parent / target / "sub" / "b").read_bytes() == EVIL


def test_each_of_several_workers_writes_to_its_own_folder(own: Slice, here: Path) -> None:
    (own.folder(0) / "log").write_text("honest")
    answer(own, 1, *offered(False, row(".bashrc"), row("up", "l", "../worker-0")))
    result = fetch(own, ":log", here, hosts=2)
    assert (here / "worker-0" / "log").read_text() == "honest"
    assert below(here / "worker-1") == {".bashrc"}
    assert "worker 1: up (a link to a place outside" in result.warnings[0]
    assert (here / ".bashrc").read_text() == "mine"


@pytest.mark.parametrize(
    "link", ["/etc", "..", "../here", "sub/..", "sub/../..", "./..", "a/../b", "x/..", "//x"]
)
def test_a_link_that_could_leave_the_folder_is_left_out_and_named(
    own: Slice, here: Path, link: str
) -> None:
    answer(own, 0, *offered(False, row("sub", "d", mode=0o755), row("x", "l", link)))
    result = fetch(own, ":log", here / "new")
    assert result.exit_code == 0
    assert below(here / "new") == {"sub"}
    assert "x (a link to a place outside of the folder)" in result.warnings[0]


@pytest.mark.parametrize("link", ["../a", "b", "no/such", ".."])
def test_a_link_inside_the_folder_arrives(own: Slice, here: Path, link: str) -> None:
    answer(own, 0, *offered(False, row("a"), row("sub", "d", mode=0o755), row("sub/x", "l", link)))
    assert fetch(own, ":log", here / "new").warnings == ()
    assert os.readlink(here / "new" / "sub" / "x") == link


@pytest.mark.parametrize("git", [".git", ".GIT", ".Git"])
def test_no_hook_of_git_arrives_whatever_the_worker_does_not_ignore(
    own: Slice, here: Path, git: str
) -> None:
    rows = [row("code", "d", mode=0o755), row(f"code/{git}", "d", mode=0o755)]
    rows += [row(f"code/{git}/hook", mode=0o755), row("a")]
    answer(own, 0, *offered(False, *rows, ignores={".gitignore": f"!{git}\n!.git\n"}))
    # The content of a file that was not requested ends the copy; nothing was written by then.
    assert fetch(own, ":here", here).failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}
    preview = preview_copy(own.hosts[:1], own.access, plan_copy(":here", str(here), has_hosts=True))
    assert [file.path for file in preview.files] == [str(here / "a")]
    assert [one.path for one in preview.left_out] == [f"code/{git}"]


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", "a/../../x", ".", "..", "", "a//b", "a\0b", "x" * 256, "/".join("d" * 3000)],
)
@pytest.mark.parametrize("is_file", [True, False])
def test_no_path_leaves_the_folder(own: Slice, here: Path, path: str, is_file: bool) -> None:
    answer(own, 0, *offered(is_file, row(path), row("second")))
    failed = fetch(own, ":log", here / "new").failures[0]
    assert failed.code == "worker_failed"
    assert "worker 0" in str(failed)
    assert below(here) == {".bashrc"}


def test_many_nested_folders_are_refused_before_anything_is_written(own: Slice, here: Path) -> None:
    rows = [row("/".join("d" * depth), "d", mode=0o755) for depth in range(1, 400)]
    answer(own, 0, *offered(False, *rows))
    assert fetch(own, ":log", here / "new").failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


@pytest.mark.parametrize("kind", ["b", "c", "p", "s", "x", ""])
def test_devices_and_pipes_are_refused(own: Slice, here: Path, kind: str) -> None:
    answer(own, 0, *offered(False, row("dev", kind)))
    assert fetch(own, ":log", here / "new").failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


def test_no_mode_gives_the_rights_of_another_user(own: Slice, here: Path) -> None:
    answer(own, 0, *offered(True, row("log", mode=0o6755)))
    assert fetch(own, ":log", here).exit_code == 0
    assert stat.S_IMODE((here / "log").stat().st_mode) == 0o755


def test_more_than_fits_on_the_disk_is_refused_before_it_is_sent(own: Slice, here: Path) -> None:
    size = free_bytes(here) + (1 << 40)
    offer = wire.note(is_file=True, entries=[["log", "f", 0o644, size, 1, ""]], odd=[], ignores={})
    answer(own, 0, offer)
    (failure,) = fetch(own, ":log", here).failures
    assert failure.code == "write_failed"
    assert "worker 0" in str(failure)
    assert below(here) == {".bashrc"}


@pytest.mark.parametrize("size", [1 << 62, 100 << 20])
def test_a_file_does_not_grow_far_beyond_what_was_announced(
    own: Slice, here: Path, size: int
) -> None:
    offer, _, done = offered(True, row("log"))
    bomb = [wire.frame(wire.ZIPPED, zlib.compress(bytes(1 << 23)))] * 20
    answer(own, 0, offer, wire.block(RECORD.pack(0, size)), *bomb, done)
    assert fetch(own, ":log", here).failures[0].code == "worker_failed"
    assert below(here) == {".bashrc"}


def test_names_that_are_one_without_case_are_found() -> None:
    assert same_without_case(["a", "B", "b", "c"]) == ("B", "b")
    assert same_without_case(["e\u0301", "\xe9"]) == ("e\u0301", "\xe9")
    assert same_without_case(["a", "b/a", "b/b"]) is None


def test_both_of_two_names_that_differ_in_case_arrive_where_they_are_two(
    own: Slice, here: Path
) -> None:
    answer(own, 0, *offered(False, row("README"), row("readme")))
    assert fetch(own, ":log", here / "new").exit_code == 0
    assert below(here / "new") == {"README", "readme"}


@pytest.mark.parametrize("rules", ["*a*a*a*a*a*a*a*a*b\n", "*x\n" * 1_000_000])
def test_rules_that_take_hours_are_not_followed(own: Slice, here: Path, rules: str) -> None:
    rows = [row("a" * 255), *(row(f"f{number}") for number in range(100))]
    answer(own, 0, *offered(False, *rows, ignores={".gitignore": rules}))
    result = fetch(own, ":log", here / "new")
    assert {each.code for each in result.failures} <= {"worker_failed"}
