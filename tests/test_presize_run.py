import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Result
from tests.contract import PRESIZE, problems
from tests.pictures import contents, encoded, fill, photograph, small
from tpuctl.datasets.inputs import scan
from tpuctl.datasets.manifest import WORK
from tpuctl.datasets.plan import plan_presize
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.verify import verify
from tpuctl.errors import AlreadyExistsError, InvalidInputError, NotFoundError, TryAgainError
from tpuctl.progress import Progress
from tpuctl.storage.local import locked

pytestmark = pytest.mark.slow


def test_presize_speaks_the_contract(
    tpuctl: Callable[..., Result],
    photos: Path,
    tmp_path: Path,
) -> None:
    (photos / "readme.txt").write_text("hello")
    result = tpuctl(
        "data", "presize", photos, tmp_path / "out", "--size", "48x64", "--workers", "1", "--json"
    )
    assert result.exit_code == 0, result.stdout
    assert problems(result.document, "data presize", PRESIZE) == []
    data = result.data
    assert (data["images"], data["written"], data["skipped"]) == (12, 12, 0)
    assert data["classes"] == ["class-0", "class-1", "class-2"]
    assert data["ignored"] == {".txt": 1}
    assert data["bytes_in"] == sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert result.document["status"] == "ok"
    manifest = json.loads(Path(data["manifest"]).read_text())
    assert manifest["schema"] == "tpuctl.dataset/1"
    assert manifest["options"]["size"] == [48, 64]
    assert manifest["plan_id"] == data["plan_id"]
    assert manifest["totals"]["records"] == 12
    assert sum(shard["records"] for shard in manifest["shards"]) == 12
    assert not (tmp_path / "out" / WORK).exists()


def test_the_text_names_the_manifest_and_the_next_command(
    tpuctl: Callable[..., Result],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = tpuctl("data", "presize", photos, tmp_path / "out", "--size", "32")
    assert result.exit_code == 0
    assert "Presized 12 of 12 images" in result.words
    assert "Next: tpuctl data verify" in result.words
    monkeypatch.setenv("COLUMNS", "40")
    again = tpuctl("data", "presize", photos, tmp_path / "out", "--size", "32")
    assert f"Next: tpuctl data verify {tmp_path / 'out'}\n" in again.stdout


def test_who_gives_the_manifest_learns_to_give_its_folder(
    tpuctl: Callable[..., Result], photos: Path, tmp_path: Path
) -> None:
    tpuctl("data", "presize", photos, tmp_path / "out", "--size", "32")
    refused = tpuctl("data", "verify", tmp_path / "out" / "manifest.json")
    assert f"Give its folder: {tmp_path / 'out'}" in refused.stderr


def test_every_record_carries_its_label_key_and_sizes(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "out", small())
    records = list(read_records(tmp_path / "out"))
    assert sorted(record.key for record in records) == sorted(
        path.relative_to(photos).as_posix() for path in photos.rglob("*.jpg")
    )
    for record in records:
        assert record.label == int(record.key[len("class-")])
        assert record.array().shape == (48, 64, 3)
        assert record.orig_height == 240
        assert record.orig_width == 320 + 8 * int(record.key[-7:-4])


def test_the_bytes_depend_neither_on_the_workers_nor_on_the_run(
    photos: Path,
    tmp_path: Path,
) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        presize(photos, tmp_path / name, small(workers=workers))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_another_seed_gives_other_bytes(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "one", small())
    presize(photos, tmp_path / "two", small(seed=1))
    assert contents(tmp_path / "one") != contents(tmp_path / "two")


def test_raw_records_hold_the_pixels(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "raw", small(encode="raw"))
    presize(photos, tmp_path / "jpeg", small())
    for raw, jpeg in zip(
        read_records(tmp_path / "raw"), read_records(tmp_path / "jpeg"), strict=True
    ):
        assert len(raw.image) == 48 * 64 * 3
        assert raw.key == jpeg.key
        assert abs(raw.array().astype(int) - jpeg.array()).mean() < 4


def test_mode_short_keeps_each_picture_s_shape(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "out", small(mode="short", size=(48, 48)))
    shapes = {record.array().shape for record in read_records(tmp_path / "out")}
    assert {height for height, _, _ in shapes} == {48}
    assert len({width for _, width, _ in shapes}) > 5
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_the_same_command_again_does_nothing_and_says_so(
    tpuctl: Callable[..., Result],
    photos: Path,
    tmp_path: Path,
) -> None:
    first = presize(photos, tmp_path / "out", small())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    second = presize(photos, tmp_path / "out", small())
    assert (second.written, second.skipped, second.resumed) == (0, 12, True)
    assert second.plan_id == first.plan_id
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["delete", "flip", "cut"])
def test_the_same_command_repairs_a_damaged_shard(photos: Path, tmp_path: Path, harm: str) -> None:
    out = tmp_path / "out"
    presize(photos, out, small())
    before = contents(out)
    shard = next(out.glob("*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    if harm == "delete":
        shard.unlink()
    else:
        shard.write_bytes(bytes(data) if harm == "flip" else bytes(data[:100]))
    assert verify(out).exit_code == 1
    result = presize(photos, out, small())
    assert 0 < result.written < 12
    assert result.written + result.skipped == 12
    assert contents(out) == before


def test_a_bad_file_among_twenty_ends_as_a_listed_quarantine(
    tpuctl: Callable[..., Result],
    tmp_path: Path,
) -> None:
    photos = fill(tmp_path / "photos", 20)
    whole = (photos / "004.jpg").read_bytes()
    (photos / "004.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "005.jpg").write_bytes(b"")
    result = tpuctl("data", "presize", photos, tmp_path / "out", "--size", "48", "--json")
    assert result.exit_code == 0
    assert result.document["status"] == "attention"
    listed = {bad["path"]: bad["reason"] for bad in result.data["quarantined"]}
    assert listed == {"004.jpg": "truncated", "005.jpg": "empty"}
    lines = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["004.jpg", "005.jpg"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["quarantined"] == {"empty": 1, "truncated": 1}
    assert manifest["totals"]["images"] == 20
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_too_many_bad_files_fail_before_anything_is_published(
    tpuctl: Callable[..., Result],
    tmp_path: Path,
) -> None:
    photos = fill(tmp_path / "photos", 8)
    (photos / "[bold]x.jpg").write_bytes(b"no picture")
    arguments = ("data", "presize", photos, tmp_path / "out", "--size", "48", "--json")
    result = tpuctl(*arguments, "--max-bad", "0")
    assert result.exit_code == 1
    (error,) = result.document["errors"]
    assert "[bold]x.jpg (not_image)" in error["message"]
    assert "--max-bad 1" in error["hint"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [WORK]
    listed = tmp_path / "out" / WORK / "quarantine.jsonl"
    assert str(listed) in error["hint"]
    assert json.loads(listed.read_text())["key"] == "[bold]x.jpg"
    accepted = tpuctl(*arguments, "--max-bad", "1")
    assert accepted.exit_code == 0
    assert (accepted.data["written"], accepted.data["skipped"]) == (0, 8)


def test_nothing_but_bad_files_is_an_error_whatever_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    with pytest.raises(InvalidInputError, match=r"1 of 1 images .* a\.jpg \(not_image\)"):
        presize(tmp_path / "photos", tmp_path / "out", small(max_bad="100%"))


def test_a_folder_without_pictures_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("x")
    with pytest.raises(InvalidInputError, match=r"photos, only: 1 \.txt"):
        presize(tmp_path / "photos", tmp_path / "out")
    with pytest.raises(NotFoundError, match="does not exist"):
        presize(tmp_path / "gone", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_repaired_files_are_taken_in_with_retry_quarantined(tmp_path: Path) -> None:
    photos, out = fill(tmp_path / "photos", 16), tmp_path / "out"
    whole = (photos / "004.jpg").read_bytes()
    (photos / "004.jpg").write_bytes(whole[:1000])
    presize(photos, out, small())
    (photos / "004.jpg").write_bytes(whole)
    with pytest.raises(AlreadyExistsError) as refused:
        presize(photos, out, small())
    assert "--retry-quarantined" in str(refused.value.hint)
    result = presize(photos, out, small(retry_quarantined=True))
    assert (result.written, result.skipped, result.quarantined) == (4, 12, ())
    assert not (out / "quarantine.jsonl").exists()
    presize(photos, tmp_path / "fresh", small())
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.slow
def test_retry_quarantined_without_a_repair_finds_the_same(tmp_path: Path) -> None:
    photos, out = fill(tmp_path / "photos", 16), tmp_path / "out"
    (photos / "004.jpg").write_bytes(b"")
    presize(photos, out, small())
    before = contents(out)
    result = presize(photos, out, small(retry_quarantined=True))
    assert result.written == 3
    assert contents(out) == before


@pytest.mark.parametrize(
    ("change", "difference"),
    [({"size": (32, 32)}, "its size is 48x64, not 32x32"), ({"encode": "raw"}, "encode is jpeg")],
)
def test_another_data_set_is_replaced_only_with_overwrite(
    photos: Path,
    tmp_path: Path,
    change: dict[str, Any],
    difference: str,
) -> None:
    out = tmp_path / "out"
    presize(photos, out, small())
    before = contents(out)
    with pytest.raises(AlreadyExistsError, match=difference) as refused:
        presize(photos, out, small(**change))
    assert "--overwrite" in str(refused.value.hint)
    assert contents(out) == before
    presize(photos, out, small(**change, overwrite=True))
    presize(photos, tmp_path / "fresh", small(**change))
    assert contents(out) == contents(tmp_path / "fresh")


def test_new_files_in_the_source_are_another_data_set(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "out", small())
    (photos / "class-0" / "new.jpg").write_bytes(encoded(photograph()))
    with pytest.raises(AlreadyExistsError, match="made from other files"):
        presize(photos, tmp_path / "out", small())


def test_overwrite_leaves_files_that_are_not_ours(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "train-00000-of-00001-deadbeef.tfrecord").write_bytes(b"somebody's")
    (out / "notes.txt").write_text("mine")
    presize(photos, out, small())
    presize(photos, out, small(seed=1, overwrite=True))
    assert (out / "train-00000-of-00001-deadbeef.tfrecord").read_bytes() == b"somebody's"
    assert (out / "notes.txt").read_text() == "mine"
    assert verify(out).foreign == ("train-00000-of-00001-deadbeef.tfrecord",)


def test_a_dry_run_writes_nothing(
    tpuctl: Callable[..., Result],
    photos: Path,
    tmp_path: Path,
) -> None:
    result = tpuctl("data", "presize", photos, tmp_path / "out", "--dry-run", "--json")
    assert result.exit_code == 0
    assert problems(result.document, "data presize", PRESIZE) == []
    assert (result.data["images"], result.data["written"]) == (12, 0)
    assert result.data["dry_run"] is True
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_under_the_run_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    photos, out = fill(tmp_path / "photos", 32), tmp_path / "out"
    plan = plan_presize(scan(photos).pictures, small(), {})
    last = plan.jobs[-1].pictures[-1].key

    def change(progress: Progress) -> None:
        os.utime(photos / last, ns=(1, 1))

    with pytest.raises(InvalidInputError, match=rf"{last} changed while") as refused:
        presize(photos, out, small(), on_progress=change)
    assert "same command again" in str(refused.value.hint)
    assert not (out / "manifest.json").exists()
    result = presize(photos, out, small())
    assert (result.written, result.skipped, result.resumed) == (8, 24, True)


def test_a_vanished_picture_is_a_change_and_a_dead_link_a_read_error(tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 8)
    (photos / "dead.jpg").symlink_to("nowhere")
    result = presize(photos, tmp_path / "out", small())
    assert [(bad.path, bad.reason) for bad in result.quarantined] == [("dead.jpg", "read_error")]

    def remove(progress: Progress) -> None:
        for path in photos.glob("00*.jpg"):
            path.unlink()

    with pytest.raises(InvalidInputError, match="it is gone"):
        presize(photos, tmp_path / "other", small(), on_progress=remove)


def test_a_pipe_named_like_a_picture_is_left_out_at_once(tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 8)
    os.mkfifo(photos / "pipe.jpg")
    (photos / "linked.jpg").symlink_to("pipe.jpg")
    result = presize(photos, tmp_path / "out", small())
    assert [(bad.path, bad.reason, bad.detail) for bad in result.quarantined] == [
        ("linked.jpg", "read_error", "not a regular file"),
        ("pipe.jpg", "read_error", "not a regular file"),
    ]
    assert result.written == 8


def test_hostile_names_survive_the_whole_way(tpuctl: Callable[..., Result], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    names = ["line\nbreak.jpg", "ünï.jpg", "..jpg.jpg", "a b'\".jpg", "[red]x.jpg", "-x.jpg"]
    raw = os.fsdecode(b"caf\xe9.jpg")
    photos.mkdir()
    for name in (*names, raw):
        (photos / name).write_bytes(encoded(photograph("coffee", 100, 80)))
    (photos / os.fsdecode(b"bad\xff\n.jpg")).write_bytes(b"")
    arguments = ("data", "presize", photos, tmp_path / "out", "--size", "32")
    text, document = tpuctl(*arguments), tpuctl(*arguments, "--json")
    assert (text.exit_code, document.exit_code) == (0, 0)
    assert "bad\\xff\\n.jpg" in text.words
    assert [bad["path"] for bad in document.data["quarantined"]] == ["bad\\xff\\n.jpg"]
    kept = {record.key for record in read_records(tmp_path / "out")}
    assert kept == {*(name for name in names if not name.startswith(".")), raw}
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_two_runs_into_one_target_do_not_meet(photos: Path, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock", wait_s=0, busy="never"),
        pytest.raises(TryAgainError, match="Another run"),
        locked(tmp_path / "lock", wait_s=0.1, busy="Another run is here."),
    ):
        pass
    with locked(tmp_path / "lock", wait_s=0, busy="never"):
        pass


def test_progress_counts_every_picture_once(photos: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    presize(photos, tmp_path / "out", small(workers=2), on_progress=seen.append)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total == 12
