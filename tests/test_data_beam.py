"""`--engine beam`: the same shards, whoever runs them; run by `make test-beam`."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Tpuctl
from tests.pictures import contents, fill
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.prepare import prepare_sizes
from tpuctl.datasets.presize import presize, presize_prepared
from tpuctl.datasets.verify import verify
from tpuctl.errors import TpuctlError, UsageError

SMALL = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
BEAM = replace(SMALL, engine="beam")
needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="make test-beam"
)


def test_beam_that_is_not_installed_is_named(photos: Path, tmp_path: Path, tpuctl: Tpuctl) -> None:
    wrong = tpuctl("data", "presize", photos, tmp_path / "a", "--engine", "spark", "--json")
    assert wrong.exit_code == 2
    if importlib.util.find_spec("apache_beam"):
        pytest.skip("it is installed")
    result = tpuctl("data", "presize", photos, tmp_path / "a", "--engine", "beam", "--json")
    assert result.exit_code == 1
    assert "tpuctl[beam]" in result.document["errors"][0]["hint"]


@needs_beam
@pytest.mark.beam
@pytest.mark.filterwarnings("default")
def test_beam_makes_the_data_set_that_processes_make(photos: Path, tmp_path: Path) -> None:
    presize(photos, tmp_path / "alone", SMALL)
    result = presize(photos, tmp_path / "beam", BEAM)
    assert (result.status, result.shards_missing) == ("ok", 0)
    assert contents(tmp_path / "beam") == contents(tmp_path / "alone")
    again = presize(photos, tmp_path / "beam", BEAM)
    assert (again.written, again.skipped) == (0, 12)


@needs_beam
@pytest.mark.beam
@pytest.mark.filterwarnings("default")
def test_beam_makes_several_sizes_in_one_pass(photos: Path, tmp_path: Path) -> None:
    sizes = ((32, 32), (48, 64))
    presize(photos, tmp_path / "alone", replace(SMALL, sizes=sizes))
    presize(photos, tmp_path / "beam", replace(BEAM, sizes=sizes))
    for name in ("32x32", "48x64"):
        assert contents(tmp_path / "beam" / name) == contents(tmp_path / "alone" / name)


@needs_beam
@pytest.mark.beam
@pytest.mark.filterwarnings("default")
def test_a_failed_pipeline_is_one_error_and_its_shards_are_kept(tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 12, classes=3)
    victim = photos / "class-1" / "004.jpg"
    target = tmp_path / "beam"
    prepared = prepare_sizes(photos, target, BEAM, started_s=0.0)[0]
    victim.write_bytes(victim.read_bytes() + b"x")
    with pytest.raises(TpuctlError, match="changed while its folder was being presized"):
        presize_prepared([prepared])
    assert not (target / "manifest.json").exists()
    result = presize(photos, target, BEAM)
    assert result.written + result.skipped == 12
    assert verify(target, deep=True).damage == ()


@needs_beam
@pytest.mark.beam
def test_what_is_no_option_of_beam_is_a_wrong_use(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--beam fast is not a Beam option"):
        presize(photos, tmp_path / "beam", replace(BEAM, beam=("fast",)))
