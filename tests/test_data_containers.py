"""webdataset's tar and ArrayRecord: the same records, the same promises as TFRecord."""

import contextlib
import importlib.util
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tests.pictures import contents, fill, small
from tests.test_presize_kill import command, start
from tpuctl.datasets.describe import describe
from tpuctl.datasets.formats import open_container
from tpuctl.datasets.formats.records import DamagedRecordError
from tpuctl.datasets.manifest import WORK
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.verify import verify

pytestmark = pytest.mark.slow

needs_array_record = pytest.mark.skipif(
    importlib.util.find_spec("array_record") is None, reason="array_record is not installed"
)
CONTAINERS = ["tfrecord", "wds", pytest.param("arrayrecord", marks=needs_array_record)]


def shards(folder: Path) -> list[Path]:
    listed = json.loads((folder / "manifest.json").read_text())["shards"]
    return [folder / shard["name"] for shard in listed]


@pytest.fixture(params=CONTAINERS)
def container(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_format_holds_the_same_records(container: str, photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "tfrecord", small())
    presize(photos, tmp_path / "out", small(format=container))
    assert list(read_records(tmp_path / "out")) == list(read_records(tmp_path / "tfrecord"))
    one, two = describe(tmp_path / "out"), describe(tmp_path / "tfrecord")
    assert (one.labels, one.sizes, one.flags) == (two.labels, two.sizes, two.flags)
    assert verify(tmp_path / "out", deep=True).damage == ()
    assert not (tmp_path / "out" / WORK).exists()


def test_the_same_plan_gives_the_same_bytes_in_every_format(
    container: str, photos: Path, tmp_path: Path
) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        presize(photos, tmp_path / name, small(format=container, workers=workers))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    again = presize(photos, tmp_path / "one", small(format=container))
    assert (again.written, again.skipped) == (0, 12)


def test_another_format_is_another_data_set(
    tpuctl: Callable[..., Result], photos: Path, tmp_path: Path
) -> None:
    presize(photos, tmp_path / "out", small())
    words = ("--size", "48x64", "--format", "wds", "--json")
    result = tpuctl("data", "presize", photos, tmp_path / "out", *words)
    assert result.exit_code == 1
    assert "its format is tfrecord, not wds" in result.document["errors"][0]["message"]


def test_damage_is_found_wherever_it_is(container: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    presize(photos, out, small(format=container))
    path = shards(out)[0]
    whole = path.read_bytes()
    rng = random.Random(4)
    reader = open_container(container, "jpeg")
    expected = [record for _, record in reader.read(path)]
    for _ in range(40):
        place = rng.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert verify(out).damage
        verify(out, deep=True)
        with contextlib.suppress(DamagedRecordError):
            for _ in reader.read(path):
                pass
    for length in (0, 1, 511, 513, len(whole) // 2):
        path.write_bytes(whole[:length])
        assert verify(out, deep=True).damage
    path.write_bytes(whole)
    assert [record for _, record in reader.read(path)] == expected


def test_a_flipped_bit_in_a_picture_is_told_by_the_tar_itself(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    presize(photos, out, small(format="wds", encode="raw"))
    path = shards(out)[0]
    with tarfile.open(path) as tar:
        place = next(member for member in tar if member.name.endswith(".rgb")).offset_data + 100
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    reader = open_container("wds", "raw")
    with pytest.raises(DamagedRecordError, match="wrong checksum"):
        list(reader.read(path))


def test_the_tar_is_what_webdataset_expects(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "out", small(format="wds"))
    stems = set()
    for path in shards(tmp_path / "out"):
        assert path.suffix == ".tar"
        with tarfile.open(path) as tar:
            names = tar.getnames()
            numbers = {(member.mtime, member.uid, member.mode) for member in tar}
            for name in names:
                if name.endswith(".cls"):
                    label = tar.extractfile(name)
                    assert label is not None
                    described = tar.extractfile(name.replace(".cls", ".json"))
                    assert described is not None
                    assert int(label.read()) == json.load(described)["label"]
        assert numbers == {(0, 0, 0o644)}
        assert [name.partition(".")[2] for name in names] == ["json", "cls", "jpg"] * (
            len(names) // 3
        )
        stems |= {name.partition(".")[0] for name in names}
    assert len(stems) == 12


def test_pictures_without_labels_have_no_class_file(tmp_path: Path) -> None:
    fill(tmp_path / "photos", 3)
    presize(tmp_path / "photos", tmp_path / "out", small(format="wds"))
    with tarfile.open(shards(tmp_path / "out")[0]) as tar:
        assert not [name for name in tar.getnames() if name.endswith(".cls")]


@needs_array_record
def test_array_record_reads_it_at_random(photos: Path, tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    from tpuctl.datasets.formats.records import decode_example

    presize(photos, tmp_path / "out", small(format="arrayrecord"))
    keys = [record.key for record in read_records(tmp_path / "out")]
    reader = ArrayRecordReader(str(shards(tmp_path / "out")[0]))
    (last,) = reader.read([reader.num_records() - 1])
    assert decode_example(last)["key"].decode() == keys[reader.num_records() - 1]  # type: ignore[union-attr]
    reader.close()


def test_what_a_kill_between_packing_and_journal_leaves_is_used_or_replaced(
    container: str, photos: Path, tmp_path: Path
) -> None:
    """The states in which a worker can die: packed or half packed, never journalled."""
    options = small(format=container)
    presize(photos, tmp_path / "undisturbed", options)
    out = tmp_path / "out"
    process = start(command(photos, out, "--size", "48x64", "--format", container))
    process.communicate(timeout=120)
    for shard in shards(out):
        job = next(
            listed["job"]
            for listed in json.loads((out / "manifest.json").read_text())["shards"]
            if listed["name"] == shard.name
        )
        (out / WORK).mkdir(exist_ok=True)
        shard.rename(out / WORK / f"{job}.shard")
        (out / WORK / f"{job}.packing").write_bytes(b"half a tar")
    (out / "manifest.json").unlink()
    presize(photos, out, options)
    assert contents(out) == contents(tmp_path / "undisturbed")


def test_the_library_that_is_missing_is_named(
    tpuctl: Callable[..., Result], photos: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec("array_record") is not None:
        pytest.skip("array_record is installed")
    result = tpuctl("data", "presize", photos, tmp_path / "out", "--format", "arrayrecord")
    assert result.exit_code != 0
    assert "arrayrecord" in result.stderr
