import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import encoded, fill, photograph
from tpuctl.datasets.inputs import UNREADABLE, ImageFile, scan
from tpuctl.datasets.models import PresizeOptions, allowed_bad, parse_size
from tpuctl.datasets.plan import assign_labels, count_shards, plan_presize, split_evenly
from tpuctl.errors import InvalidInputError, NotFoundError, UsageError
from tpuctl.printable import printable

VERSIONS = {"kernel": "1"}


@pytest.fixture
def jpeg() -> bytes:
    return encoded(photograph("coffee", 64, 48))


def keys(folder: Path) -> list[str]:
    return [picture.key for picture in scan(folder).pictures]


def inputs(count: int) -> tuple[ImageFile, ...]:
    return tuple(ImageFile(f"{index:06}.jpg", 1000 + index, 7) for index in range(count))


def test_a_picture_is_what_begins_like_one_or_is_named_like_one(
    tmp_path: Path, jpeg: bytes
) -> None:
    (tmp_path / "photo.txt").write_bytes(jpeg)
    (tmp_path / "no-suffix").write_bytes(jpeg)
    (tmp_path / "torn.JPG").write_bytes(b"nothing")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "boxes.json").write_text("{}")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "._photo.jpg").write_bytes(b"\0")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "photo.jpg").write_bytes(jpeg)
    assert keys(tmp_path) == ["empty.png", "no-suffix", "photo.txt", "torn.JPG"]
    assert scan(tmp_path).ignored == {".json": 1, ".txt": 1, "hidden": 3}


def test_the_order_is_that_of_the_bytes_of_the_names(tmp_path: Path, jpeg: bytes) -> None:
    names = ["b.jpg", "a/z.jpg", "ä.jpg", "line\nbreak.jpg", "dots...jpg", "Z.jpg"]
    raw = os.fsdecode(b"caf\xe9.jpg")
    for name in (*names, raw):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(jpeg)
    assert keys(tmp_path) == sorted((*names, raw), key=os.fsencode)
    assert printable(raw) == "caf\\xe9.jpg"
    assert printable("line\nbreak") == "line\\nbreak"
    assert printable("ä") == "ä"


def test_links_are_followed_once_and_loops_end(tmp_path: Path, jpeg: bytes) -> None:
    source = tmp_path / "source"
    (source / "real").mkdir(parents=True)
    (source / "real" / "one.jpg").write_bytes(jpeg)
    (source / "a-link").symlink_to("real")
    (source / "real" / "up").symlink_to("..")
    (source / "real" / "self").symlink_to("self")
    (source / "outside").symlink_to(tmp_path)
    (source / "dead.jpg").symlink_to("nowhere")
    found = scan(source)
    assert [picture.key for picture in found.pictures] == ["dead.jpg", "real/one.jpg"]
    assert found.pictures[0].bytes == UNREADABLE
    assert found.ignored == {
        "link to a folder around the source or the target": 1,
        "link to a folder that is read already": 2,
        "no suffix": 1,
    }
    assert found.notes == ("Not followed: links around or into the source or the target: outside.",)


def test_no_link_leads_around_the_source_or_into_the_target(tmp_path: Path, jpeg: bytes) -> None:
    target = tmp_path / "out" / "shards"
    places = {
        "around-source": tmp_path,
        "root": Path("/"),
        "target": target,
        "around-target": tmp_path / "out",
        "in-target": target / ".presize",
        "beside": tmp_path / "beside",
    }
    source = tmp_path / "pictures" / "source"
    source.mkdir(parents=True)
    for name, place in places.items():
        place.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(place)
    for place in (tmp_path / "out", target, target / ".presize", tmp_path / "beside", source):
        (place / "one.jpg").write_bytes(jpeg)
    (tmp_path / "beside" / "back").symlink_to(tmp_path / "out")
    found = scan(source, target)
    assert [picture.key for picture in found.pictures] == ["beside/one.jpg", "one.jpg"]
    assert found.notes == (
        "Not followed: links around or into the source or the target: "
        "around-source, around-target, beside/back, in-target, root and 1 more.",
    )
    everywhere = [picture.key for picture in scan(source).pictures]
    assert "around-target/shards/one.jpg" in everywhere


def test_a_class_folder_may_be_a_link_to_elsewhere(tmp_path: Path, jpeg: bytes) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one.jpg").write_bytes(jpeg)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cats").symlink_to(tmp_path / "elsewhere")
    assert keys(tmp_path / "data") == ["cats/one.jpg"]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert scan(tmp_path).pictures == ()


def test_a_missing_folder_and_a_file_are_named(tmp_path: Path, jpeg: bytes) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        scan(tmp_path / "gone")
    (tmp_path / "one.jpg").write_bytes(jpeg)
    with pytest.raises(InvalidInputError, match=r"one\.jpg is a file"):
        scan(tmp_path / "one.jpg")


def label(*names: str, labels: str = "auto") -> tuple[tuple[str, ...], tuple[int, ...]]:
    found = assign_labels([ImageFile(name, 1, 1) for name in names], labels)
    return found.classes, found.labels


def test_first_level_folders_are_classes_in_sorted_order() -> None:
    assert label("b/1.jpg", "a/x/2.jpg", "b/3.jpg") == (("a", "b"), (1, 0, 1))


def test_auto_finds_no_classes_in_a_flat_mixed_or_single_folder() -> None:
    for names in (("1.jpg", "2.jpg"), ("a/1.jpg", "b/2.jpg", "3.jpg"), ("a/1.jpg", "a/2.jpg")):
        classes, labels = label(*names)
        assert classes == ()
        assert set(labels) == {-1}


def test_folder_labels_can_be_insisted_on_and_refused() -> None:
    assert label("a/1.jpg", labels="folder") == (("a",), (0,))
    assert label("a/1.jpg", "b/2.jpg", labels="none") == ((), (-1, -1))
    with pytest.raises(InvalidInputError, match=r"3\.jpg is not in a class folder"):
        label("a/1.jpg", "3.jpg", labels="folder")


@pytest.mark.parametrize(
    ("images", "total_bytes", "shards"),
    [
        (1, 1, 1),
        (3, 1, 1),
        (8, 1, 2),
        (16, 1, 4),
        (200, 1, 4),
        (1024, 1, 16),
        (5000, 10**9, 16),
        (10**6, 26 * 10**9, 194),
        (2, 10**12, 2),
    ],
)
def test_there_are_shards_by_size_but_enough_to_shuffle(
    images: int, total_bytes: int, shards: int
) -> None:
    assert count_shards(images, total_bytes, 128 << 20) == shards


def test_shards_differ_by_at_most_one_record() -> None:
    for total, parts in ((10, 3), (7, 7), (1000, 16), (1, 1)):
        ranges = list(split_evenly(total, parts))
        lengths = [stop - start for start, stop in ranges]
        assert sum(lengths) == total
        assert max(lengths) - min(lengths) <= 1
        assert ranges[0][0] == 0


def test_the_same_inputs_make_the_same_plan_and_any_change_another() -> None:
    options = PresizeOptions()
    plan = plan_presize(inputs(40), options, VERSIONS)
    assert plan == plan_presize(inputs(40), options, VERSIONS)
    others = [
        plan_presize(inputs(41), options, VERSIONS),
        plan_presize((*inputs(39), ImageFile("000039.jpg", 1, 7)), options, VERSIONS),
        plan_presize((*inputs(39), ImageFile("000039.jpg", 1039, 8)), options, VERSIONS),
        plan_presize(inputs(40), PresizeOptions(size=(96, 96)), VERSIONS),
        plan_presize(inputs(40), PresizeOptions(quality=94), VERSIONS),
        plan_presize(inputs(40), PresizeOptions(seed=1), VERSIONS),
        plan_presize(inputs(40), options, {"kernel": "2"}),
    ]
    assert len({plan.id, *(other.id for other in others)}) == 8


def test_what_does_not_change_the_records_does_not_change_the_plan() -> None:
    plans = {
        plan_presize(inputs(40), options, VERSIONS).id
        for options in (
            PresizeOptions(),
            PresizeOptions(workers=7),
            PresizeOptions(max_bad="50%"),
            PresizeOptions(overwrite=True, retry_quarantined=True, dry_run=True),
        )
    }
    assert len(plans) == 1


def test_the_shuffle_is_complete_mixes_and_follows_the_seed() -> None:
    plan = plan_presize(inputs(64), PresizeOptions(), VERSIONS)
    order = [entry.key for job in plan.jobs for entry in job.pictures]
    assert Counter(order) == Counter(picture.key for picture in inputs(64))
    assert order != sorted(order)
    other = plan_presize(inputs(64), PresizeOptions(seed=1), VERSIONS)
    assert order != [entry.key for job in other.jobs for entry in job.pictures]


def test_a_replaced_file_changes_only_its_own_shard() -> None:
    before = plan_presize(inputs(64), PresizeOptions(), VERSIONS)
    changed = list(inputs(64))
    changed[10] = ImageFile(changed[10].key, 5, 5)
    after = plan_presize(changed, PresizeOptions(), VERSIONS)
    same = [a.id == b.id for a, b in zip(before.jobs, after.jobs, strict=True)]
    assert sorted(same) == [False, True, True, True]


@pytest.mark.parametrize(
    ("limit", "inputs", "allowed"),
    [
        ("auto", 1, 0), ("auto", 2, 0), ("auto", 4, 1), ("auto", 8, 3), ("auto", 20, 3),
        ("auto", 1000, 10), ("1%", 99, 0), ("1%", 100, 1), ("12.5%", 8, 1), ("1", 8, 1),
        ("0", 8, 0), ("100%", 8, 8),
    ],
)  # fmt: skip
def test_how_many_may_be_bad(limit: str, inputs: int, allowed: int) -> None:
    assert allowed_bad(limit, inputs) == allowed


@pytest.mark.parametrize("limit", ["", "x", "-1", "101%", "1.5", "1 % 2"])
def test_a_senseless_limit_is_a_usage_error(limit: str) -> None:
    with pytest.raises(UsageError, match="--max-bad"):
        PresizeOptions(max_bad=limit)


def test_sizes_are_height_by_width() -> None:
    assert parse_size("224") == (224, 224)
    assert parse_size("256x192") == (256, 192)
    for text in ("", "0x", "x3", "1x2x3", "-5", "224.5"):
        with pytest.raises(UsageError, match="--size"):
            parse_size(text)


@pytest.mark.parametrize(
    "options",
    [
        {"size": (0, 1)}, {"size": (9000, 1)}, {"mode": "zoom"}, {"fidelity": "best"},
        {"encode": "gif"}, {"format": "zip"}, {"labels": "csv"}, {"quality": 0}, {"workers": 0},
        {"shard_bytes": 0}, {"mode": "short", "size": (10, 20)},
    ],
)  # fmt: skip
def test_options_that_do_not_exist_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--"):
        PresizeOptions(**options)


def test_fill_makes_what_the_other_tests_expect(tmp_path: Path) -> None:
    assert len(keys(fill(tmp_path, 6, classes=3))) == 6
