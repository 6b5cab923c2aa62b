import ast
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpuctl
from tests.sharing import without_locks
from tpuctl.codec import open_regular
from tpuctl.errors import WriteError
from tpuctl.storage.local import (
    append_line,
    ensure_folder,
    locked,
    open_own,
    remove_stale_parts,
    write_atomically,
)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.json"
    write_atomically(target, "one")
    write_atomically(target, b"two")
    assert target.read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["file.json"]


def test_a_full_disk_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, "old")
    resource = pytest.importorskip("resource")
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(WriteError, match=r"Could not write .*file: "):
            write_atomically(target, b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_names_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="a file, not a folder"):
        ensure_folder(tmp_path / "file" / "below")
    with pytest.raises(WriteError, match="a file with that name exists") as refused:
        ensure_folder(tmp_path / "file")
    assert refused.value.hint == "Choose another path."
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "file"))
    with pytest.raises(WriteError) as refused:
        ensure_folder(tmp_path / "file" / "ssh")
    assert refused.value.hint == "Choose another folder: export TPUCTL_STATE_DIR=/FOLDER"


def test_only_a_file_is_opened_and_a_pipe_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(place)


def test_a_file_that_turns_into_a_pipe_does_not_block_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    looked_like = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "stat", lambda *_, **__: looked_like)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


def test_a_planted_pipe_is_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteError):
        append_line(tmp_path / "pipe", "secret", private=True)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(WriteError, match="it is a pipe"):
        append_line(tmp_path / "pipe", "secret", private=True)
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    for mode in ("wb", "ab", "xb", "a+b"):
        with pytest.raises(OSError, match="link"):
            open_own(link, mode)
    with pytest.raises(WriteError), locked(link, wait_s=0, busy=""):
        pass
    with pytest.raises(WriteError):
        append_line(link, "more")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "made")
    for mode in ("wb", "ab"):
        with pytest.raises(OSError, match="link"):
            open_own(dangling, mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "link", "victim"]
    # The link itself is replaced.
    write_atomically(link, "new")
    assert (victim.read_text(), link.read_text()) == ("precious", "new")


def test_open_does_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    (tmp_path / "link").write_text("through")
    assert (tmp_path / "made").exists()


def test_the_temporary_file_has_a_name_that_cannot_be_planted(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with Watching(tmp_path) as seen:
            write_atomically(tmp_path / "file", "content")
        names |= seen.names
    assert len(names) == 3


class Watching:
    """Sees the names that are opened for writing in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names, self._is_on = folder, {"file"}, False
        sys.addaudithook(self._hook)

    def __enter__(self) -> "Watching":
        self._is_on = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._is_on and event == "open" and str(arguments[0]).startswith(f"{self.folder}/"):
            self.names.add(Path(str(arguments[0])).name)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): f"{path.lstat().st_mode & 0o777:o}"
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.usefixtures("open_umask")
def test_state_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    state = tmp_path / "state" / "deep"
    write_atomically(state / "creates" / "one.json", "{}", private=True)
    append_line(state / "creates" / "lines", "{}", private=True)
    with locked(state / "lock", wait_s=0, busy=""):
        pass
    write_atomically(tmp_path / "report.html", "")
    assert modes(tmp_path) == {
        "report.html": "666",
        "state": "700",
        "state/deep": "700",
        "state/deep/creates": "700",
        "state/deep/creates/lines": "600",
        "state/deep/creates/one.json": "600",
        "state/deep/lock": "600",
    }
    os.umask(0o777)
    ensure_folder(tmp_path / "later" / "deep", private=True)
    assert modes(tmp_path)["later"] == modes(tmp_path)["later/deep"] == "700"
    os.umask(0o077)
    write_atomically(tmp_path / "report.html", "")
    assert modes(tmp_path)["report.html"] == "600"


@pytest.mark.usefixtures("open_umask")
def test_a_folder_of_an_older_version_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    ensure_folder(tmp_path / "state", private=True)
    assert modes(tmp_path) == {"state": "700"}


# They write into folders that they have just made with mkdtemp, on a worker, in sysfs or in /proc.
PLAIN_WRITERS = {
    "profiling/frameworks/meter.py", "profiling/frameworks/stacks.py", "training/devices.py",
    "profiling/program/recording.py", "diagnosis/repair.py", "emulator/service.py",
    "emulator/storage/uploads.py", "profiling/program/hook/sitecustomize.py",
    "datasets/serve_agent.py", "emulator/kaggle/api.py", "emulator/machines.py",
    "providers/kaggle/bootstrap.py",
}  # fmt: skip


def writes(source: str) -> list[str]:
    """Calls that write to a path and follow a link there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            modes = {word for word in words if isinstance(word, str) and len(word) <= 3}
            opens = name == "open" and any(set(mode) & set("wax+") for mode in modes)
            if ast.unparse(node.func) == "tarfile.open" and "fileobj" in ast.unparse(node):
                continue
            if opens or name in ("write_text", "write_bytes", "mktemp"):
                found.append(ast.unparse(node))
            if ast.unparse(node.func) == "os.open" and "O_CREAT" in ast.unparse(node):
                found += [] if "O_NOFOLLOW" in ast.unparse(node) else [ast.unparse(node)]
    return found


@pytest.mark.slow
def test_every_other_file_is_written_by_what_follows_no_link() -> None:
    package = Path(tpuctl.__file__).parent
    found = {
        str(path.relative_to(package)): calls
        for path in package.rglob("*.py")
        if (calls := writes(path.read_text(encoding="utf-8"))) and "agent" not in path.parent.parts
    }
    assert {name: calls for name, calls in found.items() if name not in PLAIN_WRITERS} == {}
    assert writes("Path('a').write_text('b')")
    assert writes("open(p, 'w')")
    assert writes("os.open(p, os.O_CREAT)")


def test_on_a_disk_without_locks_the_part_of_a_writer_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / ".notes.1.abcd.part"
    part.write_text("half")
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", without_locks)
        remove_stale_parts(tmp_path)
    assert part.exists()
    remove_stale_parts(tmp_path)
    assert not part.exists()
