"""One data set by several machines: shares of the shards, nobody waits, the last one concludes."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.conftest import Tpuctl
from tests.pictures import contents
from tpuctl.clock import ManualClock
from tpuctl.datasets.leases import Leases
from tpuctl.datasets.models import Part, PresizeOptions, parse_part
from tpuctl.datasets.prepare import prepare_sizes
from tpuctl.datasets.presize import presize, presize_prepared
from tpuctl.datasets.readers import open_cache
from tpuctl.datasets.verify import verify
from tpuctl.errors import InvalidInputError, UsageError
from tpuctl.reporters.data import render_presized as report
from tpuctl.storage import open_storage
from tpuctl.storage.port import Storage

pytestmark = pytest.mark.slow

SMALL = PresizeOptions(size=(32, 32), workers=1, shard_bytes=4000)
ADDRESS = "gs://shelf/small"
START = datetime(2026, 11, 21, tzinfo=timezone.utc)
Bucket = Callable[..., Storage]

# As on one of several machines, whose Nth change of the bucket is the last thing it does.
DIES_AT = """
import os, signal, sys
left, is_before = [int(sys.argv.pop(1))], sys.argv.pop(1) == "before"
import urllib3.connectionpool as pools
def deadly(work):
    def step(pool, method, *arguments, **options):
        left[0] -= method != "GET"
        due = left[0] == 0 and method != "GET"
        if due and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = work(pool, method, *arguments, **options)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return step
pools.HTTPConnectionPool.urlopen = deadly(pools.HTTPConnectionPool.urlopen)
from tpuctl.cli.app import main
main()
"""


@pytest.fixture
def bucket(practice: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    def start(*faults: dict[str, Any]) -> Storage:
        world = practice({"buckets": {"shelf": {}}, "faults": list(faults)})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
        return open_storage(ADDRESS)

    return start


def content(storage: Storage) -> dict[str, bytes]:
    return {entry.name: storage.read(entry.name) for entry in storage.list()}


@pytest.mark.parametrize("place", ["bucket", "folder"])
def test_parts_make_the_data_set_that_one_machine_makes(
    bucket: Bucket, photos: Path, tmp_path: Path, place: str
) -> None:
    bucket()
    target = ADDRESS if place == "bucket" else str(tmp_path / "shared")
    storage = open_storage(target)
    first = presize(photos, target, SMALL, part=Part(1, 2))
    assert first.status == "partial"
    assert first.shards_missing == 3
    assert "3 shards are still to come from other machines" in first.warnings[0]
    assert "manifest.json" not in content(storage)
    console = Console(width=200, file=io.StringIO())
    console.print(report(first))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "as machine 1 of 2; 2 of 5 shards are complete" in shown
    assert "Next" not in shown
    again = presize(photos, target, SMALL, part=Part(1, 2))
    assert (again.written, again.shards_missing) == (0, 3)
    last = presize(photos, target, SMALL, part=Part(0, 2))
    assert (last.status, last.shards_missing, last.written + last.skipped) == ("ok", 0, 12)
    presize(photos, tmp_path / "alone", SMALL)
    assert content(storage) == contents(tmp_path / "alone")
    if place == "folder":
        assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
    done = presize(photos, target, SMALL, part=Part(1, 2))
    assert (done.written, done.skipped, done.shards_missing) == (0, 12, 0)


def test_several_sizes_are_made_in_one_pass_by_several_machines(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    bucket()
    both = replace(SMALL, sizes=((32, 32), (48, 64)))
    first = presize(photos, ADDRESS, both, part=Part(1, 2))
    assert [one.shards_missing for one in first.sizes] == [
        -(-one.shards // 2) for one in first.sizes
    ]
    last = presize(photos, ADDRESS, both, part=Part(0, 2))
    assert [(one.status, one.written + one.skipped) for one in last.sizes] == [("ok", 12)] * 2
    presize(photos, tmp_path / "alone", both)
    for name in ("32x32", "48x64"):
        assert content(open_storage(f"{ADDRESS}/{name}")) == contents(tmp_path / "alone" / name)
    victim = next(open_storage(f"{ADDRESS}/48x64").list("train-"))
    open_storage(f"{ADDRESS}/48x64").delete(victim)
    again = presize(photos, ADDRESS, both)
    assert [one.shards_missing for one in again.sizes] == [0, 0]
    assert content(open_storage(f"{ADDRESS}/48x64")) == contents(tmp_path / "alone" / "48x64")
    assert presize(photos, ADDRESS, both).written == 0


@pytest.mark.slow
def test_machines_at_once_conclude_once(bucket: Bucket, photos: Path, tmp_path: Path) -> None:
    storage = bucket()
    with ThreadPoolExecutor(3) as machines:
        parts = [Part(number, 3) for number in range(3)]
        results = list(machines.map(lambda p: presize(photos, ADDRESS, SMALL, part=p), parts))
    assert min(result.shards_missing for result in results) == 0
    presize(photos, tmp_path / "alone", SMALL)
    assert content(storage) == contents(tmp_path / "alone")


@pytest.mark.slow
def test_machines_at_once_take_what_no_other_is_at(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    storage = bucket()
    options = replace(SMALL, steal=True)
    with ThreadPoolExecutor(3) as machines:
        parts = [Part(number, 3) for number in range(3)]
        results = list(machines.map(lambda p: presize(photos, ADDRESS, options, part=p), parts))
    assert {result.shards_missing for result in results} == {0}
    presize(photos, tmp_path / "alone", SMALL)
    assert content(storage) == contents(tmp_path / "alone")


def test_what_a_dead_machine_has_begun_is_taken_over(
    bucket: Bucket, photos: Path, tmp_path: Path
) -> None:
    storage, clock = bucket(), ManualClock(START)
    run = prepare_sizes(photos, ADDRESS, replace(SMALL, steal=True), started_s=0.0)[0]
    first, *_ = run.plan.jobs
    assert Leases(storage, clock, "another machine").claim(first)
    said: list[str] = []
    presize_prepared(
        [run], Part(), on_progress=lambda progress: said.append(progress.note), clock=clock
    )
    assert clock.now() - START >= timedelta(seconds=90)
    assert (
        "Other machines are building 1 of the shards; what they do not finish is built here."
        in said
    )
    presize(photos, tmp_path / "alone", SMALL)
    assert content(storage) == contents(tmp_path / "alone")


def test_a_lease_is_one_machines_as_long_as_it_renews_it(photos: Path, tmp_path: Path) -> None:
    storage, clock = open_storage(tmp_path / "out"), ManualClock(START)
    job = prepare_sizes(photos, tmp_path / "out", SMALL, started_s=0.0)[0].plan.jobs[0]
    ours, theirs = Leases(storage, clock, "us"), Leases(storage, clock, "them")
    assert ours.claim(job)
    for _ in range(4):
        assert not theirs.claim(job)
        theirs.refresh()
        clock.sleep(60)
        ours.renew()
    theirs.refresh()
    clock.sleep(91)
    assert theirs.claim(job)
    ours.renew()
    ours.refresh()
    assert not ours.claim(job)
    with theirs.kept():
        pass
    ours.refresh()
    assert ours.claim(job)


def test_a_machine_takes_over_at_once_what_its_own_killed_run_has_begun(
    photos: Path, tmp_path: Path
) -> None:
    storage, clock = open_storage(tmp_path / "out"), ManualClock(START)
    first, second, *_ = prepare_sizes(photos, tmp_path / "out", SMALL, started_s=0.0)[0].plan.jobs
    killed = Leases(storage, clock, "us")
    assert killed.claim(first)
    killed.renew()
    assert Leases(storage, clock, "u").claim(second)
    again = Leases(storage, clock, "us")
    assert again.claim(first)
    assert not again.claim(second)


@pytest.mark.slow
def test_too_much_left_out_stops_the_last_machine_and_nothing_is_published(
    bucket: Bucket, photos: Path
) -> None:
    storage = bucket()
    for number in (0, 3, 6, 9):
        (photos / "class-0" / f"{number:03}.jpg").write_bytes(b"\xff\xd8\xff nonsense")
    presize(photos, ADDRESS, SMALL, part=Part(0, 2))
    with pytest.raises(InvalidInputError, match="4 of 12 images"):
        presize(photos, ADDRESS, SMALL, part=Part(1, 2))
    assert "manifest.json" not in content(storage)
    result = presize(photos, ADDRESS, replace(SMALL, max_bad="4"), part=Part(1, 2))
    assert len(result.quarantined) == 4
    assert verify(ADDRESS, deep=True).damage == ()


PIPELINE = """
import numpy as np

def images(seed=0):
    for index in range(30):
        yield {"image": np.full(400, index + seed, np.uint8), "label": index}
"""


@pytest.mark.slow
def test_the_elements_of_a_pipeline_are_cached_into_a_bucket_however_often_it_is_killed(
    bucket: Bucket, tmp_path: Path, tpuctl: Tpuctl
) -> None:
    storage = bucket()
    (tmp_path / "input.py").write_text(PIPELINE)
    target = f"{tmp_path / 'input.py'}:images"
    words = ["data", "cache", target, ADDRESS, "--variants", "2", "--shard-size", "4000B", "--json"]
    made = tpuctl(*words[:3], tmp_path / "alone", *words[4:])
    undisturbed = contents(tmp_path / "alone")
    # Of the shards that a killed run has uploaded, only the last one is uploaded again.
    last = len(undisturbed) - 3
    for step in (1, 4, last):
        program = [sys.executable, "-c", DIES_AT, str(step), "after", *words]
        ended = subprocess.run(program, capture_output=True, timeout=120)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        there = content(storage)
        assert there.items() <= undisturbed.items()
        assert ("manifest.json" in there) is (step == last)
    result = tpuctl(*words)
    assert result.data["manifest"] == f"{ADDRESS}/manifest.json"
    assert content(storage) == undisturbed
    assert result.data["elements"] == made.data["elements"] == 60
    assert tpuctl(*words).data["kept_variants"] == 2
    assert len(list(open_cache(ADDRESS).epoch(0))) == 30
    other = tpuctl(*words[:4], "--json")
    assert other.document["errors"][0]["code"] == "already_exists"
    assert content(storage) == undisturbed
    assert tpuctl(*words[:4], "--overwrite", "--json").exit_code == 0
    assert len(content(storage)) < len(undisturbed)
    assert verify(ADDRESS).damage == ()


@pytest.mark.parametrize("text", ["", "1", "a/b", "2/2", "0/0", "-1/2", "1/1/1"])
def test_a_share_that_makes_no_sense_is_a_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        parse_part(text)


def test_a_worker_of_a_slice_takes_its_share_by_itself(
    bucket: Bucket, photos: Path, tmp_path: Path, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket()
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "10.0.0.1,10.0.0.2")
    options = ("--size", "32", "--shard-size", "4000B", "--workers", "1", "--json")
    data = tpuctl("data", "presize", photos, ADDRESS, *options).data
    assert (data["host"], data["hosts"], data["shards_missing"]) == (1, 2, 3)
    alone = tpuctl("data", "presize", photos, ADDRESS, *options, "--hosts", "0/1").data
    assert (alone["host"], alone["hosts"], alone["shards_missing"]) == (0, 1, 0)
    folder = tpuctl("data", "presize", photos, tmp_path / "out", *options).data
    assert (folder["hosts"], folder["written"]) == (1, 12)
