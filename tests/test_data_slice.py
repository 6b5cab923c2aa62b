"""`tpuctl run NAME -- tpuctl data presize ...`: the workers of a slice share the work."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.cloud_world import MORNING
from tests.conftest import Tpuctl
from tests.pictures import contents
from tests.test_remote_tpu import SCENARIO, ZONE, Practice
from tpuctl.clock import ManualClock
from tpuctl.cloud.connect import connect
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.verify import verify
from tpuctl.emulator.server import serve
from tpuctl.storage import open_storage

HOME = str(Path(__file__).parents[1])


@pytest.mark.slow
def test_the_workers_of_a_slice_make_one_data_set_together(
    tpuctl: Tpuctl, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(MORNING)
    scenario = {**SCENARIO, "buckets": {"shelf": {"location": "US-CENTRAL1"}}}
    with serve(scenario, clock=clock, machines=tmp_path / "machines") as emulator:
        for name, value in {
            "TPUCTL_TPU_ENDPOINT": emulator.endpoint, "TPUCTL_PROJECT": "p", "TPUCTL_ZONE": ZONE,
            "STORAGE_EMULATOR_HOST": emulator.http,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        api = connect("p", endpoint=emulator.endpoint, clock=clock)
        Practice(api, clock, tmp_path / "machines").create()
        storage = open_storage("gs://shelf/photos")
        for path in sorted(photos.rglob("*.jpg")):
            storage.write(path.relative_to(photos).as_posix(), path)
        there = ("--env", f"STORAGE_EMULATOR_HOST={emulator.http}", "--env", f"PYTHONPATH={HOME}")
        command = (sys.executable, "-m", "tpuctl", "data", "presize", "gs://shelf/photos")
        options = ("gs://shelf/small", "--size", "32", "--shard-size", "4000B", "--workers", "1")
        result = tpuctl("run", "t1", "--json", *there, "--", *command, *options, "--json")
        assert result.exit_code == 0, result.stdout
        ends = [json.loads(worker["stdout"])["data"] for worker in result.data["workers"]]
        assert [(end["host"], end["hosts"]) for end in ends] == [(n, 4) for n in range(4)]
        assert min(end["shards_missing"] for end in ends) == 0
        assert verify("gs://shelf/small", deep=True).damage == ()
        small = open_storage("gs://shelf/small")
        shared = {entry.name: small.read(entry.name) for entry in small.list()}
        alone = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
        presize("gs://shelf/photos", tmp_path / "alone", alone)
        assert shared == contents(tmp_path / "alone")
