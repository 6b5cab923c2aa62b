"""Photographs that lie in a bucket: found, read in their order, and noticed when they change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.conftest import Tpuctl
from tests.pictures import contents, fill
from tpuctl.datasets.inputs import scan, scan_bucket
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.plan import PlannedPicture
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.shards.originals import open_originals
from tpuctl.datasets.verify import verify
from tpuctl.errors import NotFoundError, PermissionDeniedError, SourceChangedError
from tpuctl.progress import MESSAGE, Progress
from tpuctl.storage import open_storage
from tpuctl.storage.port import Location, Storage, warning_of

pytestmark = pytest.mark.slow

SMALL = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
SOURCE = "gs://shelf/photos"
Bucket = Callable[..., Storage]


@pytest.fixture
def bucket(practice: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    def start(*faults: dict[str, Any], location: str = "US-CENTRAL1") -> Storage:
        world = practice({"buckets": {"shelf": {"location": location}}, "faults": list(faults)})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
        return open_storage(SOURCE)

    return start


def upload(folder: Path, storage: Storage) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            storage.write(path.relative_to(folder).as_posix(), path)


def records(folder: Path) -> list[tuple[str, int, bytes]]:
    return [(record.key, record.label, record.image) for record in read_records(folder)]


@pytest.mark.slow
def test_a_bucket_gives_the_records_that_a_folder_gives(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    upload(photos, bucket())
    presize(photos, tmp_path / "a", SMALL)
    result = presize(SOURCE, tmp_path / "b", SMALL)
    assert records(tmp_path / "b") == records(tmp_path / "a")
    assert (result.written, result.bytes_in) == (
        12,
        sum(p.stat().st_size for p in photos.rglob("*.jpg")),
    )
    assert presize(SOURCE, tmp_path / "b", SMALL).skipped == 12
    presize(SOURCE, "gs://shelf/small", SMALL)
    small = open_storage("gs://shelf/small")
    assert {entry.name: small.read(entry.name) for entry in small.list()} == contents(
        tmp_path / "b"
    )


def test_what_is_a_picture_is_decided_as_in_a_folder(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    storage = bucket()
    jpeg = (photos / "class-0" / "000.jpg").read_bytes()
    strange = {
        "no-suffix": jpeg, "notes.txt": b"hello", ".hidden/a.jpg": jpeg, "deep/er/ä b.JPG": jpeg,
        "empty.png": b"", "a/.DS_Store": b"x", "void": b"",
    }  # fmt: skip
    for name, data in strange.items():
        storage.write(name, data)
        (tmp_path / "same" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "same" / name).write_bytes(data)
    found, same = scan_bucket(storage), scan(tmp_path / "same")
    assert [(p.key, p.bytes) for p in found.pictures] == [(p.key, p.bytes) for p in same.pictures]
    assert found.ignored == {".txt": 1, "hidden": 2, "no suffix": 1}
    assert (found.lists, found.reads) == (1, 3)
    with pytest.raises(NotFoundError, match="gs://shelf/elsewhere is empty or does not exist"):
        scan_bucket(open_storage("gs://shelf/elsewhere"))
    with pytest.raises(NotFoundError, match="the bucket gone does not exist"):
        presize("gs://gone/photos", tmp_path / "out", SMALL)


@pytest.mark.slow
def test_a_bad_day_of_the_bucket_changes_no_byte(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    bad = ("unavailable", "rate_limit", "corrupt", "cut", "internal")
    storage = bucket(
        *({"on": "storage_get", "nth": 2 * n + 1, "error": e} for n, e in enumerate(bad)),
        {"on": "storage_get", "nth": 14, "error": "stall", "for_s": 0.2},
    )
    upload(photos, storage)
    presize(photos, tmp_path / "a", SMALL)
    presize(SOURCE, tmp_path / "b", SMALL)
    assert records(tmp_path / "b") == records(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_picture_that_changes_under_the_run_is_noticed(
    bucket: Bucket, photos: Path, tmp_path: Path, change: str
) -> None:
    storage = bucket()
    upload(photos, storage)
    victim = storage.stat("class-1/004.jpg")

    def disturb(progress: Progress) -> None:
        if progress.task == MESSAGE and change == "deleted":
            storage.delete(victim)
        elif progress.task == MESSAGE:
            storage.write(victim.name, storage.read("class-0/000.jpg"), over=victim)

    with pytest.raises(SourceChangedError, match=r"class-1/004\.jpg changed while"):
        presize(SOURCE, tmp_path / "out", SMALL, on_progress=disturb)
    assert not (tmp_path / "out" / "manifest.json").exists()
    result = presize(SOURCE, tmp_path / "out", SMALL)
    assert result.written + result.skipped == (11 if change == "deleted" else 12)
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_a_source_that_may_not_be_read_is_one_error(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    storage = bucket({"on": "storage_get", "error": "permission", "every": True})
    upload(photos, storage)
    with pytest.raises(PermissionDeniedError, match="Could not read gs://shelf/photos/class-"):
        presize(SOURCE, tmp_path / "out", SMALL)


def test_what_it_will_cost_is_said_before_it_starts(
    bucket: Bucket, photos: Path, tmp_path: Path, tpuctl: Tpuctl
) -> None:
    upload(photos, bucket(location="EUROPE-WEST4"))
    arguments = ("data", "presize", SOURCE, tmp_path / "out", "--size", "32")
    far = tpuctl(*arguments, "--zone", "us-central1-a")
    assert "gs://shelf/photos: 12 objects, " in far.stderr
    assert "about 1 class A operations (lists, writes) and 12 class B (reads)" in far.stderr
    assert "gs://shelf/photos is in EUROPE-WEST4, this machine in us-central1-a" in far.stderr
    near = tpuctl(*arguments, "--zone", "europe-west4-b")
    assert "EUROPE-WEST4" not in near.stderr
    assert "class A" not in near.stderr


@pytest.mark.parametrize(
    ("location", "zone", "inside"),
    [
        (Location("US-CENTRAL1"), "us-central1-a", True),
        (Location("us-central1"), "us-central2-b", False),
        (Location("US"), "us-east5-a", True),
        (Location("US"), "europe-west4-a", False),
        (Location("EU"), "europe-west4-a", True),
        (Location("EU"), "europe-west2-a", False),
        (Location("NAM4"), "us-central1-b", True),
        (Location("NAM4"), "us-west4-b", False),
        (Location("US", ("US-EAST1", "US-WEST1")), "us-west1-c", True),
        (Location("US", ("US-EAST1", "US-WEST1")), "us-central1-c", False),
        (Location("MOON"), "us-central1-c", None),
    ],
)
def test_a_bucket_is_where_its_location_says(
    location: Location, zone: str, inside: bool | None
) -> None:
    assert location.holds(zone) is inside
    assert (warning_of("gs://b", location, zone) is not None) == (inside is False)


def test_no_more_is_read_ahead_than_the_budget(bucket: Bucket, tmp_path: Path) -> None:
    storage = bucket()
    upload(fill(tmp_path / "p", 6), storage)
    entries = [PlannedPicture(p.key, p.bytes, p.version, -1) for p in scan_bucket(storage).pictures]
    two = entries[0].bytes + entries[1].bytes
    ahead = open_originals(storage.address, ahead_bytes=two)
    ahead.begin(entries)
    for number, entry in enumerate(entries):
        assert ahead.read(entry) == (tmp_path / "p" / entry.key).read_bytes()
        assert len(ahead._running) <= 1, number
    ahead.begin(entries[3:])
    assert ahead.read(entries[0]._replace()) == (tmp_path / "p" / entries[0].key).read_bytes()
    assert ahead.read(entries[3]) == (tmp_path / "p" / entries[3].key).read_bytes()
