"""Data sets in buckets, by command and by two writers at once."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.conftest import Tpuctl
from tests.pictures import fill
from tpuctl.datasets.manifest import FinishedShard
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.prepare import Prepared, prepare_sizes
from tpuctl.datasets.presize import presize, publish
from tpuctl.datasets.publish import Target, find_published, put
from tpuctl.datasets.quarantine import Quarantined
from tpuctl.datasets.shards.pool import WorkerSetup, build_shards
from tpuctl.datasets.shards.work import Work
from tpuctl.datasets.verify import verify
from tpuctl.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError
from tpuctl.storage import open_storage
from tpuctl.storage.port import Storage, StoredObject

pytestmark = pytest.mark.slow

SMALL = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
ADDRESS = "gs://shelf/small"
Bucket = Callable[..., Storage]


@pytest.fixture
def bucket(practice: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An emulated bucket, with planned faults: `bucket({...})`."""

    def start(*faults: dict[str, Any]) -> Storage:
        world = practice({"buckets": {"shelf": {}}, "faults": list(faults)})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
        return open_storage(ADDRESS)

    return start


def content(storage: Storage) -> dict[str, bytes]:
    return {entry.name: storage.read(entry.name) for entry in storage.list()}


def test_a_bucket_gets_what_a_folder_would(bucket: Bucket, photos: Path, tmp_path: Path) -> None:
    storage = bucket()
    result = presize(photos, ADDRESS, SMALL)
    presize(photos, tmp_path / "out", SMALL)
    folder = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert content(storage) == folder
    assert (result.written, result.manifest) == (12, f"{ADDRESS}/manifest.json")
    assert result.shards > 1
    again = presize(photos, ADDRESS, SMALL)
    assert (again.written, again.skipped, again.resumed) == (0, 12, True)


def test_verify_and_show_read_it_there(bucket: Bucket, photos: Path, tpuctl: Tpuctl) -> None:
    storage = bucket()
    presize(photos, ADDRESS, SMALL)
    assert tpuctl("data", "verify", ADDRESS, "--deep", "--json").data["records"] == 12
    shown = tpuctl("data", "show", ADDRESS, "--json").data
    assert shown["path"] == ADDRESS
    assert sum(label["records"] for label in shown["labels"]) == 12
    first, second, *_ = [entry for entry in storage.list() if entry.name.endswith(".tfrecord")]
    storage.write(first.name, b"x" * first.size_bytes, over=first)
    storage.delete(second)
    storage.write("foreign.tfrecord", b"")
    found = verify(ADDRESS)
    assert {(damage.path, damage.kind) for damage in found.damage} == {
        (first.name, "crc32c"),
        (first.name, "sha256"),
        (second.name, "missing"),
    }
    assert found.foreign == ("foreign.tfrecord",)
    assert tpuctl("data", "verify", ADDRESS).exit_code == 1


def test_another_data_set_is_replaced_only_when_told(bucket: Bucket, photos: Path) -> None:
    storage = bucket()
    presize(photos, ADDRESS, SMALL)
    before = content(storage)
    other = replace(SMALL, size=(16, 16))
    with pytest.raises(AlreadyExistsError, match="another data set"):
        presize(photos, ADDRESS, other)
    assert content(storage) == before
    presize(photos, ADDRESS, replace(other, overwrite=True))
    assert verify(ADDRESS, deep=True).damage == ()
    assert not {name for name in before if name.endswith("tfrecord")} & set(content(storage))


def test_nothing_is_a_data_set_before_its_manifest(bucket: Bucket, photos: Path) -> None:
    fault = {"on": "storage_insert", "name": "*/manifest.json", "error": "permission"}
    storage = bucket(fault)
    with pytest.raises(PermissionDeniedError):
        presize(photos, ADDRESS, SMALL)
    with pytest.raises(NotFoundError, match="is not a data set"):
        verify(ADDRESS)
    shards = {name: data for name, data in content(storage).items() if name.startswith("train-")}
    assert shards
    result = presize(photos, ADDRESS, SMALL)
    assert result.resumed
    assert content(storage).items() > shards.items()
    assert verify(ADDRESS).damage == ()


def build_into(target: Target, run: Prepared) -> list[FinishedShard]:
    setup = WorkerSetup(run.source, str(target.work.folder), run.plan.options, 1 << 30, 1)
    with target.locked() as lock:
        shards = []
        for step in build_shards(run.plan.jobs, setup, inherit=(lock,)):
            for finished in step.finished:
                target.record(finished)
                shards.append(finished)
    return shards


class Contested:
    """A storage in which somebody writes the same again, each time just before we act on a look."""

    def __init__(self, storage: Storage, *, times: int) -> None:
        self._storage, self.left = storage, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, name: str, **how: Any) -> bytes:
        self._forestall(name)
        return self._storage.read(name, **how)

    def write(
        self, name: str, content: bytes | Path, *, over: StoredObject | None = None, **how: Any
    ) -> StoredObject:
        if over:
            self._forestall(name)
        return self._storage.write(name, content, over=over, **how)

    def _forestall(self, name: str) -> None:
        if self.left:
            self.left -= 1
            self._storage.write(name, self._storage.read(name), over=self._storage.stat(name))


def test_machines_that_write_the_same_at_the_same_moment_do_not_fail_each_other(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    storage = bucket()
    presize(photos, ADDRESS, SMALL)
    before, there = find_published(storage, leniently=False), content(storage)
    assert before
    assert before.data_set
    contested: Any = Contested(storage, times=3)
    run = prepare_sizes(photos, ADDRESS, SMALL, started_s=0.0)[0]
    target = Target(contested, Work(tmp_path / "work"), shared=True)
    shards = list(Target(storage, target.work, shared=True).complete(run.plan).values())
    bad = Quarantined("bad.jpg", "empty")
    shards[0] = replace(shards[0], left_out=(bad,))
    target.publish(run.plan, shards, None)
    assert contested.left == 0
    changed = {name for name, data in content(storage).items() if there.get(name) != data}
    assert changed == {"manifest.json", "quarantine.jsonl"}
    contested.left = 1
    put(contested, "quarantine.jsonl", b"")
    assert contested.left == 0
    assert content(storage)["quarantine.jsonl"] == b""


@pytest.mark.parametrize("sizes", [(32, 32), (32, 16)])
def test_of_two_writers_at_once_comes_one_data_set(
    bucket: Bucket, photos: Path, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    storage = bucket()
    prepared = [
        prepare_sizes(photos, ADDRESS, replace(SMALL, size=(size, size)), started_s=0.0)[0]
        for size in sizes
    ]
    targets = [Target(storage, Work(tmp_path / f"m{n}"), shared=True) for n in range(2)]
    shards = [build_into(*each) for each in zip(targets, prepared, strict=True)]
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def write(number: int) -> None:
        target = replace(targets[number], storage=open_storage(ADDRESS))
        target.work.create()
        barrier.wait()
        try:
            publish(prepared[number], target, shards[number], None)
            outcomes.append("published")
        except AlreadyExistsError:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = "published" if sizes[0] == sizes[1] else "refused"
    assert sorted(outcomes) == ["published", other]
    assert verify(ADDRESS, deep=True).damage == ()


def test_a_bucket_that_is_not_there_is_told_before_any_work(
    bucket: Bucket, photos: Path, tpuctl: Tpuctl
) -> None:
    bucket()
    result = tpuctl("data", "presize", photos, "gs://elsewhere/x", "--json")
    assert result.exit_code == 1
    (error,) = result.document["errors"]
    assert error["message"].endswith("the bucket elsewhere does not exist.")
    assert "create_bucket" in error["hint"]
    dry = tpuctl("data", "presize", photos, ADDRESS, "--dry-run", "--json")
    assert dry.data["manifest"] == f"{ADDRESS}/manifest.json"
    assert list(open_storage(ADDRESS).list()) == []


def test_what_is_left_out_is_listed_beside_it(bucket: Bucket, tmp_path: Path) -> None:
    photos = fill(tmp_path / "some", 12, classes=3)
    (photos / "class-0" / "bad.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    storage = bucket()
    result = presize(photos, ADDRESS, SMALL)
    assert len(result.quarantined) == 1
    assert b"bad.jpg" in storage.read("quarantine.jsonl")
    assert verify(ADDRESS).damage == ()
