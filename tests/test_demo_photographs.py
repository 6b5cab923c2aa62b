from pathlib import Path

import pytest

from tpuctl.demo.demo import assemble_photographs
from tpuctl.demo.photographs import SUBJECTS, list_pictures
from tpuctl.progress import Progress


def test_the_recipe_is_the_same_every_time_and_names_every_picture_once() -> None:
    pictures = list_pictures()
    assert pictures == list_pictures()
    assert len({picture.name for picture in pictures}) == len(pictures) == 200
    assert {picture.subject for picture in pictures} == set(SUBJECTS)


def test_every_crop_lies_inside_its_source() -> None:
    for picture in list_pictures():
        assert 0 <= picture.left <= 1 - picture.scale
        assert 0 <= picture.top <= 1 - picture.scale


@pytest.mark.slow
def test_photographs_are_camera_sized_reproducible_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skimage")
    cv2 = pytest.importorskip("cv2")
    monkeypatch.setenv("TPUCTL_CACHE_DIR", str(tmp_path))
    seen: list[Progress] = []
    folder = assemble_photographs(1, on_progress=seen.append)
    files = sorted(folder.rglob("*.jpg"))
    assert len(files) == len(SUBJECTS)
    assert seen[-1].done == seen[-1].total == len(SUBJECTS)
    height, width = cv2.imread(str(files[0])).shape[:2]
    assert width * height > 5_000_000
    before = {path: path.read_bytes() for path in files}
    files[3].unlink()
    untouched = files[0].stat().st_mtime_ns
    assemble_photographs(1)
    assert {path: path.read_bytes() for path in files} == before
    assert files[0].stat().st_mtime_ns == untouched
