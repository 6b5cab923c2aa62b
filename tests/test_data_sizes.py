"""Several sizes in one pass: a data set of each, every picture decoded once."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Tpuctl
from tests.pictures import contents, encoded, photograph, psnr, shrink, shrink_all
from tpuctl.datasets.inputs import scan
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.plan import plan_presize
from tpuctl.datasets.presize import presize
from tpuctl.datasets.reading import read_records
from tpuctl.datasets.verify import verify
from tpuctl.errors import AlreadyExistsError, UsageError

BOTH = PresizeOptions(size=(32, 48), sizes=((32, 48), (64, 64)), workers=1, shard_bytes=4000)


@pytest.mark.parametrize("shape", [(1601, 1067), (900, 1203), (320, 240)])
@pytest.mark.parametrize("fidelity", ["balanced", "high", "exact"])
def test_a_smaller_size_is_as_good_as_when_it_is_made_alone(
    shape: tuple[int, int], fidelity: str
) -> None:
    data = encoded(photograph("coffee", *shape))
    sizes = ((64, 64), (48, 100), (224, 224))
    exact = [shrink(data, size, fidelity="exact").pixels for size in sizes]
    alone = [shrink(data, size, fidelity=fidelity).pixels for size in sizes]
    together = shrink_all(data, sizes, fidelity=fidelity)
    assert np.array_equal(together[2].pixels, alone[2])
    for reference, one, small in zip(exact, alone, together, strict=True):
        assert psnr(small.pixels, reference) >= min(psnr(one, reference), 45) - 1.0


def test_one_pass_makes_a_data_set_of_each_size(
    photos: Path, tmp_path: Path, tpuctl: Tpuctl
) -> None:
    (photos / "class-0" / "bad.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    arguments = ("data", "presize", photos, tmp_path / "out", "--size", "32x48,64", "--json")
    data = tpuctl(*arguments, "--workers", "1").data
    small, large = data["sizes"]
    assert small["manifest"] == str(tmp_path / "out" / "32x48" / "manifest.json")
    assert (small["written"], large["written"]) == (12, 12)
    assert data["bytes_out"] == small["bytes_out"] + large["bytes_out"]
    for name, size in (("32x48", (32, 48)), ("64x64", (64, 64))):
        folder = tmp_path / "out" / name
        assert verify(folder, deep=True).damage == ()
        assert {(r.height, r.width) for r in read_records(folder)} == {size}
        assert "bad.jpg" in (folder / "quarantine.jsonl").read_text()
    keys = [[r.key for r in read_records(tmp_path / "out" / n)] for n in ("32x48", "64x64")]
    assert keys[0] == keys[1]
    again = tpuctl(*arguments).data
    assert [one["skipped"] for one in again["sizes"]] == [12, 12]


@pytest.mark.slow
def test_a_size_that_is_damaged_is_made_again_and_the_others_stay(
    photos: Path, tmp_path: Path
) -> None:
    presize(photos, tmp_path / "out", BOTH)
    before = {name: contents(tmp_path / "out" / name) for name in ("32x48", "64x64")}
    victim = next((tmp_path / "out" / "64x64").glob("train-00001-*"))
    victim.write_bytes(b"x")
    presize(photos, tmp_path / "out", BOTH)
    after = {name: contents(tmp_path / "out" / name) for name in ("32x48", "64x64")}
    assert after == before
    with pytest.raises(AlreadyExistsError):
        presize(photos, tmp_path / "out" / "64x64", PresizeOptions(size=(64, 64)))


def test_several_sizes_that_make_no_sense_are_wrong_uses(photos: Path, tmp_path: Path) -> None:
    for wrong in (((32, 32), (32, 32)), ((32, 0), (32, 32))):
        with pytest.raises(UsageError, match="--size"):
            PresizeOptions(size=(32, 32), sizes=wrong)
    with pytest.raises(UsageError, match="one number"):
        PresizeOptions(size=(32, 32), sizes=((32, 32), (48, 32)), mode="short")


def test_one_size_alone_has_the_plan_that_it_always_had(photos: Path) -> None:
    pictures = scan(photos).pictures
    alone = PresizeOptions(size=(32, 48))
    same = PresizeOptions(size=(32, 48), sizes=((32, 48),))
    assert plan_presize(pictures, alone, {}).id == plan_presize(pictures, same, {}).id
    assert plan_presize(pictures, alone, {}).id != plan_presize(pictures, BOTH, {}).id
