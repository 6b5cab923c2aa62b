"""Presize, verify, train, profile on shards in a bucket, with TensorFlow and without it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.conftest import Tpuctl
from tests.pictures import fill, small
from tests.training_runs import warm_launch
from tests.warm_child import start_warm_child
from tpuctl.clock import WallClock
from tpuctl.datasets.models import Encode
from tpuctl.datasets.presize import presize
from tpuctl.profiling.frameworks.timers import _installed, delete_timers
from tpuctl.profiling.measure.sources import open_source
from tpuctl.profiling.request import Request, parse_target

pytestmark = [pytest.mark.slow, pytest.mark.tf]

ADDRESS = "gs://shelf/small"

# Python finds everything but TensorFlow, as where it is not installed.
WITHOUT_TENSORFLOW = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] == "tensorflow" else find(name, path, target)
PathFinder.find_spec = find_others
"""


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    from tpuctl.emulator.server import serve

    with serve({"buckets": {"shelf": {}}}, clock=WallClock()) as running:
        yield running.http


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("whole-way") / "photos", 48, classes=3)


@pytest.fixture
def bucket(emulator: str, photos: Path, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in a bucket, made once and found complete from then on."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    made = tpuctl("data", "presize", photos, ADDRESS, "--size", "32", "--workers", "1", "--json")
    assert made.data["images"] == 48
    return ADDRESS


def test_shards_of_a_bucket_are_verified_and_profiled(
    bucket: str, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.profiling.profile.start_child", start_warm_child)
    assert tpuctl("data", "verify", "--deep", bucket).exit_code == 0
    profile = tpuctl("profile", "run", bucket, "--seconds", "0.5", "--json")
    assert profile.exit_code == 0, profile.document["errors"]
    assert (profile.data["target"], profile.data["kind"]) == (bucket, "shards")
    assert profile.data["input"]["examples"] == 48


def test_every_encoding_is_read_as_its_readers_read_it(photos: Path, tmp_path: Path) -> None:
    seen = {}
    for encode in get_args(Encode):
        presize(photos, tmp_path / encode, small(encode=encode))
        request = Request(parse_target(str(tmp_path / encode)), 16, 224, 1, 1, None, 1)
        source = open_source(request, str(tmp_path))
        element = next(source.open())
        images = np.asarray(element[0] if isinstance(element, tuple) else element)
        seen[encode] = source.kind
        delete_timers(_installed)
        assert images.shape == (16, 48, 64, 3), encode
    tf_data = dict.fromkeys(("jpeg", "raw", "yuv420", "png"), "shards")
    assert seen == {**tf_data, "webp": "iterable"}


@pytest.mark.parametrize("framework", [pytest.param("tensorflow", marks=pytest.mark.soak), "jax"])
def test_the_template_trains_on_shards_of_a_bucket(
    bucket: str, tpuctl: Tpuctl, tmp_path: Path, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_launch(monkeypatch, framework)
    words = ["launch", "images", "--framework", framework, "--json"]
    for setting in (f"data={bucket}", "steps=2", "batch-size=16", f"out={tmp_path}"):
        words += ["--set", setting]
    trained = tpuctl(*words)
    assert trained.exit_code == 0, trained.document["errors"]
    assert trained.data["result"]["classes"] == ["class-0", "class-1", "class-2"]
    assert trained.data["executed"][0]["steps"] == 2


def test_without_tensorflow_the_whole_way_works_too(
    emulator: str, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    paths = [str(tmp_path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {**os.environ, "STORAGE_EMULATOR_HOST": emulator, "PYTHONPATH": os.pathsep.join(paths)}
    address = "gs://shelf/without"

    def run(*words: str, expect: int = 0) -> dict[str, Any]:
        program = [sys.executable, "-m", "tpuctl", *words, "--json"]
        done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == expect, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    run("data", "presize", str(photos), address, "--size", "32", "--workers", "1")
    assert run("data", "verify", "--deep", address)["data"]["records"] == 48
    settings = [f"data={address}", "steps=2", "batch-size=16", f"out={tmp_path / 'training'}"]
    words = [word for setting in settings for word in ("--set", setting)]
    trained = run("launch", "jax-images", *words)["data"]
    assert trained["executed"][0]["steps"] == 2
    profile = run("profile", "run", address, "--seconds", "0.5")["data"]
    assert profile["kind"] == "iterable"
    assert profile["pipeline_examples_per_s"] > 0
    refused = run("profile", "run", str(photos), expect=1)
    assert refused["errors"][0]["code"] == "missing_extra"
