import os
from pathlib import Path

import pytest

from tpuctl.errors import WriteError
from tpuctl.storage.local import ensure_folder, open_regular, write_atomically


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


def test_a_folder_that_cannot_be_made_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="a file, not a folder"):
        ensure_folder(tmp_path / "file" / "below")
    with pytest.raises(WriteError, match="a file with that name exists") as refused:
        ensure_folder(tmp_path / "file")
    assert refused.value.hint == "Choose another path."


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
