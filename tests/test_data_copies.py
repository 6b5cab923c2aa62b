"""Data sets of a bucket on this machine: in ranges, resumed, checked, shared, least used first."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.conftest import Tpuctl
from tests.pictures import contents, fill
from tests.sharing import without_locks
from tests.waiting import wait_until
from tpuctl.datasets.fetch import PIECE_BYTES
from tpuctl.datasets.local_copies import copy_data_set
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.readers import open_batches
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.verify import verify
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, WriteError
from tpuctl.progress import Progress
from tpuctl.storage import open_storage
from tpuctl.storage.port import Storage

pytestmark = pytest.mark.slow

SMALL = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
ADDRESS = "gs://shelf/small"
Bucket = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    folder = tmp_path_factory.mktemp("copies")
    presize(fill(folder / "photos", 12, classes=3), folder / "small", SMALL)
    return folder / "small"


@pytest.fixture
def bucket(practice: Any, monkeypatch: pytest.MonkeyPatch, made: Path) -> Bucket:
    """A bucket with that data set at the addresses given, and planned faults."""

    def start(*addresses: str, faults: tuple[Any, ...] = ()) -> Any:
        world = practice({"buckets": {"shelf": {}}, "faults": list(faults)})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
        for address in addresses or (ADDRESS,):
            put_all(made, open_storage(address))
        return world

    return start


def put_all(folder: Path, storage: Storage) -> None:
    for name, data in contents(folder).items():
        storage.write(name, data)


def asked(world: Any, method: str) -> int:
    return sum(name == method for name, *_ in world.emulator.requests)


def test_a_copy_is_made_once_and_read_by_all(bucket: Bucket, made: Path, tpuctl: Tpuctl) -> None:
    world = bucket()
    first = tpuctl("data", "cache", ADDRESS, "--json").data
    assert first["fetched_bytes"] == first["bytes"] > 0
    assert contents(Path(first["path"])) == contents(made)
    before = asked(world, "storage_get")
    again = tpuctl("data", "cache", ADDRESS, "--json").data
    assert (again["path"], again["fetched_bytes"]) == (first["path"], 0)
    assert asked(world, "storage_get") == before + 1
    assert [r.image for r in read_records(ADDRESS)] == [r.image for r in read_records(made)]
    ours, theirs = open_batches(ADDRESS, 4, steps=3), open_batches(made, 4, steps=3)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys == other.keys
        np.testing.assert_array_equal(one.images, other.images)
    assert "reads the copy" in tpuctl("data", "cache", ADDRESS).stdout


def test_a_folder_of_ones_choice_holds_one_data_set(
    bucket: Bucket, made: Path, tmp_path: Path
) -> None:
    bucket(ADDRESS, "gs://shelf/other")
    copy_data_set(ADDRESS, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(made)
    other = open_storage("gs://shelf/other")
    presize(fill(tmp_path / "photos", 3), "gs://shelf/third", SMALL)
    with pytest.raises(AlreadyExistsError, match="holds another data set"):
        copy_data_set("gs://shelf/third", tmp_path / "here")
    assert contents(tmp_path / "here") == contents(made)
    copy_data_set("gs://shelf/third", tmp_path / "here", overwrite=True)
    assert verify(tmp_path / "here", deep=True).damage == ()
    assert verify(tmp_path / "here").foreign == ()
    other.delete(next(e for e in other.list() if e.name.endswith(".tfrecord")))
    with pytest.raises(NotFoundError, match=r"gs://shelf/other has no train-"):
        copy_data_set("gs://shelf/other", tmp_path / "there")
    assert not (tmp_path / "there" / "manifest.json").exists()


def test_what_is_not_what_the_manifest_lists_is_never_given_out(
    bucket: Bucket, tmp_path: Path
) -> None:
    bucket()
    storage = open_storage(ADDRESS)
    shard = next(entry for entry in storage.list() if entry.name.endswith(".tfrecord"))
    data = storage.read(shard.name)
    storage.write(shard.name, data[:-1] + b"!", over=shard)
    with pytest.raises(InvalidInputError, match="does not match the manifest") as given:
        copy_data_set(ADDRESS)
    assert given.value.hint == f"List all damage: tpuctl data verify {ADDRESS}"


def test_corrupted_ranges_are_found_and_fetched_again(
    bucket: Bucket, made: Path, tmp_path: Path
) -> None:
    faults = [{"on": "storage_get", "nth": n, "error": "corrupt"} for n in (2, 3, 4)]
    bucket(faults=tuple(faults))
    copy_data_set(ADDRESS, tmp_path / "here")
    assert contents(tmp_path / "here") == contents(made)


@pytest.mark.slow
def test_only_missing_ranges_are_fetched_after_a_kill(bucket: Bucket, tmp_path: Path) -> None:
    world = bucket(faults=({"on": "storage_get", "nth": 4, "error": "stall", "for_s": 3.0},))
    photos = tmp_path / "photos"
    fill(photos, 6)
    big = PresizeOptions(size=(1500, 1600), encode="raw", workers=1, shard_bytes=1 << 30)
    presize(photos, tmp_path / "big", big)
    storage = open_storage("gs://shelf/big")
    put_all(tmp_path / "big", storage)
    out = tmp_path / "copy"
    words = ["data", "cache", "gs://shelf/big", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "tpuctl", *words], stderr=subprocess.PIPE)
    wait_until(lambda: any(b"\1" in path.read_bytes() for path in out.glob(".*.pieces")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("train-*"))
    there = sum(path.read_bytes().count(b"\1") for path in out.glob(".*.pieces"))
    assert there > 0
    size = sum(entry.size_bytes for entry in storage.list("train-"))
    pieces = sum(-(-entry.size_bytes // PIECE_BYTES) for entry in storage.list("train-"))
    before = asked(world, "storage_get")
    result = copy_data_set("gs://shelf/big", out)
    assert result.fetched_bytes < result.bytes == size
    assert asked(world, "storage_get") - before == pieces - there + 1
    assert contents(out) == contents(tmp_path / "big")


def test_processes_that_ask_at_once_fetch_it_once(bucket: Bucket, made: Path) -> None:
    world = bucket()
    before = asked(world, "storage_get")
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: copy_data_set(ADDRESS), range(4)))
    assert sum(result.fetched_bytes > 0 for result in results) == 1
    shards = sum(name.endswith(".tfrecord") for name in contents(made))
    assert asked(world, "storage_get") - before == shards + 4


def test_a_copy_that_another_completes_and_goes_on_reading_is_not_waited_for(
    bucket: Bucket,
) -> None:
    bucket()
    copy = Path(copy_data_set(ADDRESS).path)
    (copy / "manifest.json").rename(copy / "later")
    with copy.with_name(f"{copy.name}.lock").open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def complete(progress: Progress) -> None:
            if progress.task == "wait":
                (copy / "later").rename(copy / "manifest.json")

        assert copy_data_set(ADDRESS, on_progress=complete).fetched_bytes == 0


@pytest.mark.slow
def test_the_least_recently_used_copy_makes_room_unless_it_is_read(
    bucket: Bucket, made: Path, tpuctl: Tpuctl
) -> None:
    addresses = [f"gs://shelf/set-{number}" for number in range(4)]
    bucket(*addresses)
    size = sum(len(data) for data in contents(made).values())
    script = "import sys; from tpuctl.data import copy_data_set as c; print(c(sys.argv[1]).path)"

    def elsewhere(address: str) -> Path:
        words = [sys.executable, "-c", script, address]
        return Path(
            subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        )

    oldest, middle = elsewhere(addresses[0]), elsewhere(addresses[1])
    os.utime(oldest.with_name(oldest.name + ".lock"), (1, 1))
    os.utime(middle.with_name(middle.name + ".lock"), (2, 2))
    limit = ("--limit", f"{int(2.5 * size)}B", "--json")
    third = tpuctl("data", "cache", addresses[2], *limit).data
    assert third["evicted"] == [oldest.name]
    assert middle.exists()
    assert not oldest.exists()
    lock = os.open(middle.with_name(middle.name + ".lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    full = tpuctl("data", "cache", addresses[3], *limit)
    assert full.exit_code == WriteError.exit_code
    assert "copies that are in use" in full.document["errors"][0]["message"]
    os.close(lock)
    assert tpuctl("data", "cache", addresses[3], *limit).data["evicted"] == [middle.name]


def test_on_a_disk_without_locks_copies_arrive_and_none_is_deleted(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = ["gs://shelf/one", "gs://shelf/two"]
    bucket(*addresses)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    first = Path(copy_data_set(addresses[0]).path)
    # A file that is renamed or deleted while the sizes are summed.
    (first / "gone").symlink_to("nowhere")
    with pytest.raises(WriteError, match="copies that are in use"):
        copy_data_set(addresses[1], limit_bytes=1)
    assert (first / "manifest.json").exists()
    assert copy_data_set(addresses[1]).fetched_bytes
