"""What a target is, and which files below a folder can be used."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from PIL import Image

from tests.pictures import encoded
from tests.pipeline_cases import listed_shard, manifest
from tpuctl.datasets.inputs import scan
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.profiling.inputs import find_photos, is_shard_folder, read_shards
from tpuctl.profiling.request import parse_target

JPEG = b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x10\x00\x10\x01\x01\x11\x00" + bytes(50)
WHOLE = JPEG + b"\xff\xd9"


def test_photographs_are_found_by_content_at_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "cats" / "2024"
    deep.mkdir(parents=True)
    (deep / "a.jpg").write_bytes(WHOLE)
    (tmp_path / "no_extension").write_bytes(WHOLE)
    (tmp_path / "notes.txt").write_text("not a photograph")
    (tmp_path / ".hidden.jpg").write_bytes(WHOLE)
    found = find_photos(tmp_path)
    assert [photo.path.name for photo in found.photos] == ["no_extension", "a.jpg"]
    assert found.left_out == ()


def test_files_that_only_look_like_photographs_are_left_out_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(WHOLE)
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.png").write_text("<html>404</html>")
    (tmp_path / "broken_link.jpg").symlink_to(tmp_path / "gone")
    found = find_photos(tmp_path)
    assert dict(found.left_out) == {
        "empty.jpg": "empty file",
        "page.png": "no image inside",
        "broken_link.jpg": "not a regular file",
    }


def test_a_photograph_without_an_end_is_marked(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(JPEG)
    (tmp_path / "whole.jpg").write_bytes(WHOLE)
    assert [photo.is_complete for photo in find_photos(tmp_path).photos] == [False, True]


def test_a_hostile_file_name_is_made_printable(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(WHOLE)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\x1b[31m\xff.jpg")).touch()
    (path, _), *_ = find_photos(tmp_path).left_out
    assert path.isprintable()
    json.dumps(path).encode()


def test_the_search_stops_where_it_has_enough(tmp_path: Path) -> None:
    for index in range(5):
        (tmp_path / f"{index}.jpg").write_bytes(WHOLE)
    found = find_photos(tmp_path, most=3)
    assert (len(found.photos), found.is_complete) == (3, False)


@pytest.mark.parametrize("files", [{}, {"a.txt": b"text"}, {"a.jpg": b"", "b.png": b"no"}])
def test_a_folder_without_usable_images_is_one_clear_error(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=str(tmp_path)) as caught:
        find_photos(tmp_path)
    assert caught.value.hint


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        find_photos(tmp_path / "nowhere")


# One of each kind that the two commands once saw differently, and of what neither takes.
HEADS = {
    "a.avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1",
    "b_heic": b"\0\0\0\x18ftypheic\0\0\0\0heicmif1",
    "c.tif": b"II+\0\x08\0\0\0\x10\0\0\0",
    "d_bmp": b"BM" + bytes(12) + (40).to_bytes(4, "little") + bytes(40),
    "e_not_a_bmp": b"BMW is a car, and this is a text file about it",
    "f_gif": b"GIF89a" + bytes(20),
    "g_not_a_gif": b"GIF8 is how this note begins",
    "h.webp": b"RIFF\0\0\0\0WEBPVP8 ",
    "i_wave": b"RIFF\0\0\0\0WAVEfmt ",
    "j.jpg": WHOLE,
    "k.jfif": WHOLE,
    "l.png": b"<html>404</html>",
    "m.pdf": b"%PDF-1.7",
    ".n.jpg": WHOLE,
}


def test_profile_run_and_data_presize_find_the_same_images(tmp_path: Path) -> None:
    for name, content in HEADS.items():
        (tmp_path / name).write_bytes(content)
    found = find_photos(tmp_path)
    names = {photo.path.name for photo in found.photos} | {name for name, _ in found.left_out}
    assert names == {picture.key for picture in scan(tmp_path).pictures}
    assert names == set(HEADS) - {"e_not_a_bmp", "g_not_a_gif", "i_wave", "m.pdf", ".n.jpg"}
    # These are heads without images; of AVIF and HEIF nothing is decoded anywhere.
    assert {name[0]: reason for name, reason in found.left_out} == {
        **{"c": "damaged TIFF", "d": "damaged BMP", "f": "damaged GIF", "h": "damaged WEBP"},
        "l": "no image inside",
    }
    formats = {photo.path.name[0]: photo.format for photo in found.photos}
    assert formats == {"a": "avif", "b": "heif", "j": "jpeg", "k": "jpeg"}


def test_a_photograph_that_would_fill_the_memory_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "whole.jpg").write_bytes(WHOLE)
    (tmp_path / "bomb.jpg").write_bytes(WHOLE.replace(b"\x00\x10\x00\x10", b"\xff" * 4))
    frames = encoded(Image.new("L", (600, 600)), "GIF")
    begin, end = frames.index(b"\x2c"), frames.rindex(b"\x3b")
    (tmp_path / "many.gif").write_bytes(frames[:begin] + frames[begin:end] * 4000 + b"\x3b")
    found = find_photos(tmp_path)
    assert [photo.path.name for photo in found.photos] == ["whole.jpg"]
    assert {name: reason.partition(";")[0] for name, reason in found.left_out} == {
        "bomb.jpg": "65535x65535 pixels in 67 bytes",
        "many.gif": "decoding needs about 1.36 GiB, the limit is 1 GiB",
    }


def shards(folder: Path, **changes: Any) -> Path:
    (folder / "a.tfrecord").write_bytes(b"12345")
    document = manifest(listed_shard("a.tfrecord", 5, 7), **changes)
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


def test_shards_are_read_from_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "stray.tfrecord").write_bytes(b"not listed")
    found = read_shards(shards(tmp_path))
    assert [(shard.name, shard.records) for shard in found.shards] == [("a.tfrecord", 7)]
    assert found.data_set.size == (96, 128)


def test_a_shard_that_is_too_short_or_gone_is_left_out(tmp_path: Path) -> None:
    listed = [
        listed_shard("a.tfrecord", 5, 7),
        listed_shard("b.tfrecord", 9, 7),
        listed_shard("c.tfrecord", 9, 7),
    ]
    (tmp_path / "b.tfrecord").write_bytes(b"123")
    found = read_shards(shards(tmp_path, shards=listed))
    assert dict(found.left_out) == {"b.tfrecord": "3 of 9 bytes", "c.tfrecord": "missing"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "tpuctl.dataset/9"}, "tpuctl.dataset/9"),
        ({"shards": 3}, "damaged"),
        ({"shards": []}, "shards is usable"),
        ({"shards": [listed_shard("a.tfrecord", 6, 7)]}, "shards is usable"),
        ({"shards": [listed_shard("a.tfrecord", 5, 0)]}, "shards is usable"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        read_shards(shards(tmp_path, **changes))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("encode", "container", "mode", "readable"),
    [
        ("jpeg", "tfrecord", "short", True),
        ("raw", "tfrecord", "cover", True),
        ("raw", "tfrecord", "short", False),
        ("webp", "tfrecord", "cover", False),
        ("jpeg", "wds", "cover", False),
    ],
)
def test_it_is_known_which_shards_are_for_tf_data(
    tmp_path: Path, encode: str, container: str, mode: str, readable: bool
) -> None:
    options = {"size": [8, 8], "mode": mode, "encode": encode, "format": container}
    assert read_shards(shards(tmp_path, options=options)).is_for_tf_data is readable


def test_a_shard_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"12345")
    listed = [
        listed_shard("a.tfrecord", 5, 7),
        listed_shard("../secret", 5, 7),
    ]
    with pytest.raises(InvalidInputError, match="secret"):
        read_shards(shards(inside, shards=listed))


def test_targets_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "set").mkdir()
    shards(tmp_path / "set")
    odd = tmp_path / "photos:2024"
    odd.mkdir()
    assert parse_target(str(tmp_path)).kind == "photos"
    assert parse_target(str(odd)).kind == "photos"
    assert parse_target(str(tmp_path / "set")).kind == "shards"
    assert parse_target("pkg.mod:make").function == "make"
    with pytest.raises(NotFoundError) as refused:
        parse_target("sh")
    assert refused.value.hint == f"To profile the program: tpuctl profile run -- {which('sh')}"
    assert parse_target(f"{tmp_path}/train.py:make").place == str(tmp_path / "train.py")


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"schema": 5}', "\x00\xff"])
def test_another_manifest_does_not_make_a_shard_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert not is_shard_folder(tmp_path)


@pytest.mark.parametrize(
    "target", ["nowhere", "nowhere.py:make", "some.jpg:", ":make", "", "a:b c", "dir/"]
)
def test_a_target_that_is_nothing_is_not_found(target: str) -> None:
    with pytest.raises(NotFoundError):
        parse_target(target)


def test_a_file_without_a_function_says_how_to_name_one(tmp_path: Path) -> None:
    place = tmp_path / "train.py"
    place.touch()
    with pytest.raises(InvalidInputError) as caught:
        parse_target(str(place))
    assert f"{place}:function" in (caught.value.hint or "")


# What only --fit, --train, --verify, --deep, a trace or a bucket needs.
ON_DEMAND = {
    "tpuctl.compile",
    "tpuctl.datasets.local_copies",
    "tpuctl.datasets.manifest",
    "tpuctl.profiling.device_step",
    "tpuctl.profiling.trace.xspace",
    "tpuctl.profiling.verify",
    "tpuctl.training",
}


def loaded_after(code: str) -> set[str]:
    probe = f"{code}\nimport sys; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", probe], text=True).split())


def test_profile_run_loads_only_what_every_run_needs(tmp_path: Path) -> None:
    code = f"import tpuctl.cli.profile, tpuctl; tpuctl.profile.run({str(tmp_path / 'gone')!r})"
    loaded = loaded_after(f"try: {code}\nexcept Exception: pass")
    assert "tpuctl.profiling.conclude" in loaded
    assert loaded & ON_DEMAND == set()


def test_the_probe_would_notice() -> None:
    assert "tpuctl.profiling.trace.xspace" in loaded_after("import tpuctl.profiling.trace.conclude")
