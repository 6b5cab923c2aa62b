from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Result
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.errors import UsageError, WriteError

SMALL = PresizeOptions(size=(48, 64), workers=1)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--size", "big"), ("--size", "0"), ("--mode", "crop"), ("--fidelity", "best"),
        ("--encode", "gif"), ("--format", "zip"), ("--quality", "101"), ("--labels", "file"),
        ("--max-bad", "few"),
        ("--max-bad", "9" * 5000), ("--shard-size", "nonsense"), ("--shard-size", "0"),
        ("--shard-size", "9" * 400), ("--workers", "0"), ("--workers", "two"), ("--seed", "x"),
    ],
)  # fmt: skip
def test_a_wrong_value_exits_2_and_names_its_flag(
    tpuctl: Callable[..., Result], tmp_path: Path, flag: str, value: str
) -> None:
    result = tpuctl("data", "presize", tmp_path, tmp_path / "out", flag, value, "--json")
    assert result.exit_code == 2
    (error,) = result.document["errors"]
    assert error["code"] == "usage"
    assert flag in error["message"]


def test_a_target_inside_the_source_is_refused(photos: Path) -> None:
    for target in (photos, photos / "out", photos / "class-0" / ".." / "out"):
        with pytest.raises(UsageError, match="inside the source"):
            presize(photos, target)
    assert not (photos / "out").exists()


@pytest.mark.slow
def test_a_linked_folder_that_holds_the_target_is_left_out_with_a_warning(
    tpuctl: Callable[..., Result], photos: Path, tmp_path: Path
) -> None:
    (photos / "loop").symlink_to("..")
    arguments = ("data", "presize", photos, tmp_path / "out", "--size", "32")
    for _ in range(2):
        text = tpuctl(*arguments)
        assert text.exit_code == 0
        assert "Warning: Not followed" in text.stderr
        assert "loop" in text.stderr
    result = tpuctl(*arguments, "--json")
    assert (result.data["images"], result.data["skipped"]) == (12, 12)
    assert len(result.document["warnings"]) == 1


def test_a_target_that_is_a_file_or_below_one_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WriteError, match="is a file"):
        presize(photos, tmp_path / "file", SMALL)
    with pytest.raises(WriteError, match="part of the path is a file"):
        presize(photos, tmp_path / "file" / "out", SMALL)


def test_a_target_below_a_source_in_a_bucket_is_refused() -> None:
    for source, target in (("gs://b", "gs://b/x"), ("gs://b/a", Path("gs://b/a/c"))):
        with pytest.raises(UsageError, match="inside the source"):
            presize(source, target)
