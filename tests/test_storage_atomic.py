from pathlib import Path

import pytest

from tpuctl.errors import WriteError
from tpuctl.storage.local import ensure_folder, write_atomically


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
