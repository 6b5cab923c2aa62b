import base64
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result
from tests.pictures import fill
from tpuctl.datasets.describe import contact_sheet, describe, write_sheet
from tpuctl.datasets.formats._tfrecord import digest_file, frame, read_frames
from tpuctl.datasets.formats.records import decode_example, encode_example
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.verify import verify
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.notebook import magics

OPTIONS = PresizeOptions(size=(48, 64), workers=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    photos = fill(folder / "photos", 17, classes=3)
    (photos / "class-1" / "bad.jpg").write_bytes(b"")
    presize(photos, folder / "out", OPTIONS)
    return folder / "out"


@pytest.fixture
def data_set(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tfrecord"))


def kinds(folder: Path, *, deep: bool = False) -> set[tuple[str, str]]:
    result = verify(folder, deep=deep)
    assert result.exit_code == bool(result.damage)
    return {(damage.path, damage.kind) for damage in result.damage}


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Change one record and put the manifest right again, so that only a deep look can tell."""
    path = shards(folder)[0]
    with path.open("rb") as file:
        records = [record for _, record in read_frames(file)]
    records[1] = encode_example(change(dict(decode_example(records[1]))))
    path.write_bytes(b"".join(map(frame, records)))
    digest = digest_file(path)
    manifest = json.loads((folder / "manifest.json").read_text())
    shard = manifest["shards"][0]
    manifest["totals"]["bytes_out"] += digest.bytes - shard["bytes"]
    shard.update(bytes=digest.bytes, crc32c=digest.crc32c, sha256=digest.sha256)
    edit(folder, **manifest)
    return path.name


def test_a_whole_data_set_is_intact(tpuctl: Callable[..., Result], data_set: Path) -> None:
    for options in ((), ("--deep",)):
        result = tpuctl("data", "verify", data_set, *options)
        assert result.exit_code == 0
        assert "is intact: 17 records in 4 shards" in result.words
    document = tpuctl("data", "verify", data_set, "--deep", "--json").document
    assert document["status"] == "ok"
    assert document["data"]["damage"] == []
    assert document["data"]["depth"] == "records"


def test_damage_is_listed_with_exit_1(tpuctl: Callable[..., Result], data_set: Path) -> None:
    shards(data_set)[1].unlink()
    text = tpuctl("data", "verify", data_set)
    assert text.exit_code == 1
    assert f"{shards(data_set)[0].name[:12]}" not in text.words
    assert "train-00001-of-00004" in text.words
    assert "the file is not there" in text.words
    document = tpuctl("data", "verify", data_set, "--json").document
    assert document["status"] == "error"
    assert [damage["kind"] for damage in document["data"]["damage"]] == ["missing"]


def test_a_pipe_in_a_shard_s_place_does_not_block(data_set: Path) -> None:
    path = shards(data_set)[0]
    path.unlink()
    os.mkfifo(path)
    assert kinds(data_set) == {(path.name, "size")}
    assert kinds(data_set, deep=True) == {(path.name, "unreadable")}


def test_a_cut_shard_has_the_wrong_size(data_set: Path) -> None:
    path = shards(data_set)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert kinds(data_set) == {(path.name, "size")}
    deep = kinds(data_set, deep=True)
    assert {(path.name, "record"), (path.name, "count"), (path.name, "crc32c")} <= deep


@pytest.mark.parametrize("where", [0, 9, 40, 2000, -1])
def test_one_flipped_bit_anywhere_is_found(data_set: Path, where: int) -> None:
    path = shards(data_set)[2]
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)
    assert kinds(data_set) == {(path.name, "crc32c"), (path.name, "sha256")}
    assert (path.name, "record") in kinds(data_set, deep=True)


def test_a_deep_look_names_the_record_and_its_place(data_set: Path) -> None:
    path = shards(data_set)[0]
    with path.open("rb") as file:
        offsets = [offset for offset, _ in read_frames(file)]
    data = bytearray(path.read_bytes())
    data[offsets[2] + 500] ^= 1
    path.write_bytes(data)
    details = [damage.detail for damage in verify(data_set, deep=True).damage]
    assert any(
        f"record 2: a record with a wrong checksum at byte {offsets[2]}" in d for d in details
    )


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda record: {**record, "label": 3}, "label 3 with 3 classes"),
        (lambda record: {**record, "label": -1}, "label -1 with 3 classes"),
        (lambda record: {**record, "height": 50}, "it is 48x64, not 50x64"),
        (lambda record: {**record, "image": b"\xff\xd8\xff"}, "Could not decode"),
        (lambda record: {**record, "image": record["image"][:-50]}, "Could not decode"),
        (lambda record: {k: v for k, v in record.items() if k != "label"}, "no number 'label'"),
    ],
)
def test_a_wrong_record_in_a_right_file_is_found_by_a_deep_look_only(
    data_set: Path, change: Callable[[dict[str, Any]], dict[str, Any]], detail: str
) -> None:
    name = rewrite(data_set, change)
    assert kinds(data_set) == set()
    (damage,) = verify(data_set, deep=True).damage
    assert (damage.path, damage.kind) == (name, "record")
    assert detail in damage.detail
    assert damage.detail.startswith("record 1 at byte ")


def cut(folder: Path) -> None:
    path = shards(folder)[0]
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_list(folder: Path) -> None:
    (folder / "quarantine.jsonl").unlink()


def relabel(folder: Path) -> None:
    rewrite(folder, lambda record: {**record, "label": 3})


def miscount(folder: Path) -> None:
    totals = json.loads((folder / "manifest.json").read_text())["totals"]
    edit(folder, totals={**totals, "records": 3})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "way"),
    [
        (cut, "Repair it: tpuctl data presize SRC "),
        (lose_the_list, "Repair it: tpuctl data presize SRC "),
        (relabel, "Make it again: rm "),
        (miscount, "Make it again: rm "),
    ],
)
def test_damage_is_one_failure_whose_hint_repairs_it(
    data_set: Path, made: Path, harm: Callable[[Path], None], way: str
) -> None:
    assert verify(data_set, deep=True).failures == ()
    harm(data_set)
    result = verify(data_set, deep=True)
    (failure,) = result.failures
    assert (failure.code, failure.exit_code) == ("damaged", result.exit_code)
    many = len(result.damage)
    findings = "1 finding" if many == 1 else f"{many} findings"
    assert str(failure) == f"The data set {data_set} is damaged: {findings}."
    assert (failure.hint or "").startswith(way)
    if way.startswith("Make"):
        presize(made.parent / "photos", data_set, OPTIONS)
        assert verify(data_set, deep=True).damage
        (data_set / "manifest.json").unlink()
    presize(made.parent / "photos", data_set, OPTIONS)
    assert verify(data_set, deep=True).failures == ()


def test_keys_and_counts_must_be_the_manifest_s(data_set: Path) -> None:
    manifest = json.loads((data_set / "manifest.json").read_text())
    manifest["shards"][0]["first_key"] = "other.jpg"
    manifest["shards"][1]["records"] += 1
    edit(data_set, **manifest)
    names = [path.name for path in shards(data_set)]
    assert kinds(data_set) == {("manifest.json", "manifest")}
    assert {(names[0], "keys"), (names[1], "count")} <= kinds(data_set, deep=True)


def test_a_lost_quarantine_list_is_damage(data_set: Path) -> None:
    (data_set / "quarantine.jsonl").unlink()
    assert kinds(data_set) == {("quarantine.jsonl", "quarantine")}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": "tpuctl.dataset/2"}', "null", "\xff"]
)
def test_a_senseless_manifest_is_one_clear_error(data_set: Path, text: str) -> None:
    (data_set / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"manifest\.json") as refused:
        verify(data_set)
    assert refused.value.hint or "Could not read" in str(refused.value)


def test_a_shard_name_cannot_lead_out_of_the_folder(data_set: Path) -> None:
    manifest = json.loads((data_set / "manifest.json").read_text())
    manifest["shards"][0]["name"] = "../outside.tfrecord"
    edit(data_set, **manifest)
    with pytest.raises(InvalidInputError, match="not a valid shard name"):
        verify(data_set)


def test_an_unfinished_data_set_says_how_to_finish_it(data_set: Path) -> None:
    (data_set / "manifest.json").unlink()
    (data_set / ".presize").mkdir()
    with pytest.raises(NotFoundError, match="not finished") as refused:
        verify(data_set)
    assert "again" in str(refused.value.hint)


def test_show_counts_labels_sizes_and_what_was_left_out(
    tpuctl: Callable[..., Result], data_set: Path, tmp_path: Path
) -> None:
    sheet = tmp_path / "sheet.png"
    text = tpuctl("data", "show", data_set, "--sheet", sheet)
    assert text.exit_code == 0
    assert "17 records of 48x64" in text.words
    assert "class-1" in text.words
    assert "empty" in text.words
    data = tpuctl("data", "show", data_set, "--json").data
    assert [(row["name"], row["records"]) for row in data["labels"]] == [
        ("class-0", 6),
        ("class-1", 6),
        ("class-2", 5),
    ]
    assert data["quarantined"] == {"empty": 1}
    assert data["totals"]["records"] == sum(row["records"] for row in data["sizes"]) == 17


def test_describe_reads_a_fraction_of_the_bytes(data_set: Path) -> None:
    description = describe(data_set)
    assert description.record_bytes["max"] > description.record_bytes["min"] > 1000


def test_the_sheet_is_the_same_every_time_and_as_large_as_asked(
    data_set: Path, tmp_path: Path
) -> None:
    from PIL import Image

    for name in ("one.png", "two.png"):
        write_sheet(data_set, tmp_path / name)
    write_sheet(data_set, tmp_path / "four.png", most=4)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    with Image.open(tmp_path / "one.png") as large, Image.open(tmp_path / "four.png") as four:
        assert large.width > 2 * four.width
        assert len(large.convert("RGB").resize((64, 64)).getcolors(1 << 16) or ()) > 100


def test_a_sheet_under_another_name_than_png_is_refused(
    tpuctl: Callable[..., Result], data_set: Path, tmp_path: Path
) -> None:
    for name in ("s.txt", "s", "png"):
        result = tpuctl("data", "show", data_set, "--sheet", tmp_path / name)
        assert result.exit_code == 2
        assert "--sheet" in result.stderr
        assert not (tmp_path / name).exists()
    assert tpuctl("data", "show", data_set, "--sheet", tmp_path / "S.PNG").exit_code == 0
    (tmp_path / "folder.png").mkdir()
    result = tpuctl("data", "show", data_set, "--sheet", tmp_path / "folder.png")
    assert result.exit_code == 1
    assert "it is a folder" in result.stderr
    assert "--out" not in result.stderr


def test_a_notebook_shows_the_sheet_below_the_totals(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = magics.tpuctl(f"data show {shlex.quote(str(data_set))}")
    page, sheet = shown._repr_html_(), contact_sheet(data_set, kind="JPEG")
    assert "17 records of 48x64" in repr(shown)
    assert "17 records of 48x64" in page
    assert base64.b64encode(sheet).decode() in page
    assert magics.tpuctl(f"data show {tmp_path / 'nowhere'}") is None
    assert "does not exist" in capsys.readouterr().err


def test_show_of_a_damaged_data_set_points_to_verify(data_set: Path) -> None:
    path = shards(data_set)[0]
    path.write_bytes(path.read_bytes()[:30] + b"x" * 100)
    with pytest.raises(InvalidInputError) as refused:
        describe(data_set)
    assert "tpuctl data verify" in str(refused.value.hint)
