"""`--labels FILE.csv`: every line finds its picture, or is told."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tests.pictures import fill, small
from tpuctl.datasets.inputs import ImageFile
from tpuctl.datasets.plan import Labelling, assign_labels
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.errors import InvalidInputError, NotFoundError

KEYS = ("cats/1.jpg", "cats/2.jpg", "dogs/3.jpg")


def labelled(tmp_path: Path, text: str, *keys: str) -> Labelling:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode())
    return assign_labels([ImageFile(key, 1, 1) for key in keys or KEYS], str(path))


@pytest.mark.parametrize(
    "text",
    [
        "cats/1.jpg,cat\ncats/2.jpg,cat\ndogs/3.jpg,dog\n",
        "\ufeffpath,label\r\ncats/1.jpg,cat\r\ncats/2.jpg,cat\r\n\r\ndogs/3.jpg,dog\r\n",
        "width,Label,image_id\n9,cat,1\n9,cat,2\n9,dog,3\n",
        '"./cats/1.jpg", cat\n"cats/2.jpg",cat\n3.jpg,dog',
        "dogs/3,dog\n1,cat\n2,cat\n1,cat\n",
    ],
)
def test_paths_names_and_stems_find_their_picture(tmp_path: Path, text: str) -> None:
    found = labelled(tmp_path, text)
    assert (found.classes, found.labels) == (("cat", "dog"), (0, 0, 1))
    assert found.source == "csv"
    assert found.notes == ()


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    found = labelled(tmp_path, "1,10\n2,9\n3,0\n")
    assert found.classes == ("0", "9", "10")
    assert found.labels == (2, 1, 0)


def test_names_with_commas_newlines_and_unicode_are_names(tmp_path: Path) -> None:
    names = ("a, b.jpg", "c.jpg", "d\n1.jpg", "e\r\n2.jpg", "f\u2028\x85\x0b.jpg")
    text = (
        '"a, b.jpg","Ünï, code"\nc.jpg,x\n"d\n1.jpg",x\r\n"e\r\n2.jpg",x\nf\u2028\x85\x0b.jpg,x\n'
    )
    found = labelled(tmp_path, text, *names)
    assert found.classes == ("x", "Ünï, code")
    assert found.labels == (1, 0, 0, 0, 0)


def test_a_name_that_two_pictures_have_stands_for_neither(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no line for 2 of 2 images: a/1\.jpg"):
        labelled(tmp_path, "1.jpg,x\n", "a/1.jpg", "b/1.jpg")


def test_a_picture_without_a_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no line for 1 of 3 images: dogs/3\.jpg"):
        labelled(tmp_path, "1,cat\n2,cat\n")


def test_two_different_labels_for_one_picture_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"line 4: cats/1\.jpg is 'dog', and 'cat' above"):
        labelled(tmp_path, "1,cat\n2,cat\n3,dog\ncats/1.jpg,dog\n")


@pytest.mark.parametrize("text", ["1\n2,cat\n3,dog\n", "1,\n2,cat\n3,dog\n", ",cat\n"])
def test_a_line_without_a_path_or_label_is_an_error_with_its_number(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(InvalidInputError, match=r"labels\.csv, line 1"):
        labelled(tmp_path, text)


def test_lines_that_name_no_picture_are_told(tmp_path: Path) -> None:
    found = labelled(tmp_path, "1,cat\n2,cat\n3,dog\n4,dog\n")
    (note,) = found.notes
    assert note.startswith("No image matches 1 of the lines in")
    assert note.endswith(": 4.")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(InvalidInputError, match="not a regular file"):
        assign_labels([ImageFile("a.jpg", 1, 1)], str(tmp_path / "labels.csv"))


def test_a_missing_or_unreadable_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        assign_labels([ImageFile("1.jpg", 1, 1)], str(tmp_path / "gone.csv"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInputError, match="Could not read"):
        assign_labels([ImageFile("1.jpg", 1, 1)], str(tmp_path / "folder.csv"))
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(InvalidInputError, match=r"binary\.csv"):
        assign_labels([ImageFile("1.jpg", 1, 1)], str(tmp_path / "binary.csv"))


def test_labels_travel_from_the_file_into_the_records(
    tpuctl: Callable[..., Result], tmp_path: Path
) -> None:
    photos = fill(tmp_path / "photos", 6)
    lines = (f"{index:03}.jpg,{'even' if index % 2 == 0 else 'odd'}" for index in range(7))
    (photos / "labels.csv").write_text("\n".join(lines))
    words = ("--size", "48", "--workers", "1", "--labels", str(photos / "labels.csv"))
    result = tpuctl("data", "presize", photos, tmp_path / "out", *words, "--json")
    assert result.exit_code == 0, result.stdout
    assert result.data["classes"] == ["even", "odd"]
    assert any(
        "No image matches" in warning and "006.jpg" in warning
        for warning in result.document["warnings"]
    )
    for record in read_records(tmp_path / "out"):
        assert record.label == int(record.key[:3]) % 2


@pytest.mark.slow
def test_other_labels_for_the_same_pictures_are_another_data_set(tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 2)
    path = tmp_path / "labels.csv"
    path.write_text("000,a\n001,b\n")
    one = presize(photos, tmp_path / "one", small(labels=str(path)))
    path.write_text("000,b\n001,a\n")
    two = presize(photos, tmp_path / "two", small(labels=str(path)))
    assert one.plan_id != two.plan_id
