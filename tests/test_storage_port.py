"""What every storage does, tried on a folder and on a bucket of the emulator."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google_crc32c", reason="google-crc32c is not installed")

import google_crc32c

from tpuctl.clock import RetryPolicy
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    TpuctlError,
    WriteError,
)
from tpuctl.storage import open_storage
from tpuctl.storage.port import Storage

pytestmark = pytest.mark.slow

MIB = 1 << 20
QUICK = RetryPolicy(first_s=0.01, longest_s=0.02, total_s=60.0)
Open = Callable[[], Storage]


@pytest.fixture(params=["folder", "bucket"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Open:
    """Open the same storage again and again: `opened()`."""
    if request.param == "folder":
        return lambda: open_storage(tmp_path / "shelf")
    practice = request.getfixturevalue("practice")
    world = practice({"buckets": {"shelf": {}}})
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
    return lambda: open_storage("gs://shelf/some/where", retry=QUICK)


def crc32c(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


@pytest.mark.parametrize("name", ["a", "b/c/d.jpg", "ein Bär/☃ %2F?#&.jpg", ".hidden", "a" * 200])
def test_what_was_created_is_there(opened: Open, name: str) -> None:
    storage = opened()
    entry = storage.write(name, b"0123456789")
    assert (entry.name, entry.size_bytes) == (name, 10)
    assert storage.stat(name) == entry
    assert opened().read(name) == b"0123456789"
    assert [found.name for found in storage.list()] == [name]
    assert storage.checksum(entry) == crc32c(b"0123456789")


def test_ranges_are_what_there_is_of_them(opened: Open) -> None:
    storage = opened()
    storage.write("a", b"0123456789")
    wanted = {(0, 4): b"0123", (4, None): b"456789", (8, 9): b"89", (10, 1): b"", (99, None): b""}
    for (start, length), data in wanted.items():
        assert storage.read("a", start=start, length=length) == data
    assert storage.read("a", length=0) == b""
    storage.write("empty", b"")
    assert storage.read("empty") == b""


@pytest.mark.parametrize("size", [0, 1, 3 * MIB, 20 * MIB + 1])
def test_a_file_goes_up_and_comes_down_whole(opened: Open, tmp_path: Path, size: int) -> None:
    storage = opened()
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    (tmp_path / "up").write_bytes(data)
    entry = storage.write("big/file", tmp_path / "up", crc32c=crc32c(data))
    assert entry.size_bytes == size
    assert storage.fetch("big/file", tmp_path / "down").version == entry.version
    assert (tmp_path / "down").read_bytes() == data


def test_creating_does_not_replace_but_may_be_repeated(opened: Open) -> None:
    storage = opened()
    first = storage.write("a", b"first")
    assert storage.write("a", b"first").version == first.version
    with pytest.raises(AlreadyExistsError, match="modified concurrently"):
        storage.write("a", b"other")
    assert storage.read("a") == b"first"


def test_only_the_version_that_was_seen_is_replaced(opened: Open) -> None:
    storage = opened()
    first = storage.write("a", b"first")
    second = storage.write(first.name, b"second", over=first)
    assert second.version != first.version
    with pytest.raises(AlreadyExistsError):
        storage.write(first.name, b"third", over=first)
    assert storage.write(first.name, b"second", over=first).version == second.version
    assert storage.read("a") == b"second"


def test_only_the_version_that_was_seen_is_deleted(opened: Open) -> None:
    storage = opened()
    first = storage.write("a", b"first")
    second = storage.write(first.name, b"second", over=first)
    with pytest.raises(AlreadyExistsError):
        storage.delete(first)
    storage.delete(second)
    storage.delete(second)
    assert list(storage.list()) == []
    with pytest.raises((NotFoundError, AlreadyExistsError)):
        storage.write(second.name, b"third", over=second)


def test_lists_are_sorted_and_begin_as_asked(opened: Open) -> None:
    storage = opened()
    names = ["a", "a/1", "a/2/x", "ab", "b/1", "ü", "☃"]
    if isinstance(storage.address, str) and not storage.address.startswith("gs://"):
        names.remove("a")
    for name in reversed(names):
        storage.write(name, name.encode())
    assert [entry.name for entry in storage.list()] == names
    assert [entry.name for entry in storage.list("a/")] == ["a/1", "a/2/x"]
    assert [entry.name for entry in storage.list("a")] == [n for n in names if n[0] == "a"]
    assert list(storage.list("nothing/here")) == []


def test_of_two_writers_at_once_one_wins(opened: Open) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(4)

    def race(number: int) -> None:
        storage = opened()
        barrier.wait()
        try:
            storage.write("race", f"writer {number}".encode() * 1000)
            outcomes.append("won")
        except AlreadyExistsError:
            outcomes.append("lost")

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert len(set(opened().read("race").split(b"writer "))) == 2


@pytest.mark.parametrize(
    "name", ["", "/a", "a//b", "../a", "a/../b", ".", "a\nb", "a\x00b", "x" * 1025]
)
def test_a_name_that_some_storage_cannot_have_is_refused(opened: Open, name: str) -> None:
    with pytest.raises(InvalidInputError, match="valid object name"):
        opened().write(name, b"")


def test_what_is_not_there_is_one_error(opened: Open, tmp_path: Path) -> None:
    storage = opened()
    for ask in (storage.stat, storage.read, lambda name: storage.fetch(name, tmp_path / "x")):
        with pytest.raises(NotFoundError) as error:
            ask("missing")
        assert error.value.hint


def test_bytes_that_are_not_what_they_were_are_not_written(opened: Open, tmp_path: Path) -> None:
    storage = opened()
    (tmp_path / "up").write_bytes(b"changed")
    for content in (b"changed", tmp_path / "up"):
        with pytest.raises(InvalidInputError, match="Data changed"):
            storage.write("a", content, crc32c=crc32c(b"before"))
    assert list(storage.list()) == []


def test_a_place_that_cannot_be_written_is_one_error(opened: Open, tmp_path: Path) -> None:
    storage = opened()
    storage.write("a", b"1")
    with pytest.raises(WriteError):
        storage.fetch("a", tmp_path / "no" / "folder")


@pytest.mark.parametrize("address", ["gs://", "gs:///x", "gs://UPPER/x", "gs://a"])
def test_an_address_without_a_bucket_is_refused(address: str) -> None:
    with pytest.raises(TpuctlError, match="no valid bucket name"):
        open_storage(address)
