"""Very many pictures, a very large one, and one that only says so."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Tpuctl
from tests.pictures import encoded, photograph
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.verify import verify

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("count", [16_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_very_many_tiny_files_are_planned_and_a_part_of_them_made(
    tmp_path: Path, tpuctl: Tpuctl, count: int
) -> None:
    tiny = [tmp_path / f"{number}.jpg" for number in range(4)]
    for path in tiny:
        path.write_bytes(encoded(photograph("coffee", 8, 8)))
    for number in range(count):
        folder = tmp_path / "photos" / f"class-{number % 100:02}"
        if number < 100:
            folder.mkdir(parents=True)
        os.link(tiny[number % 4], folder / f"{number:06}.jpg")
    arguments = ("data", "presize", tmp_path / "photos", tmp_path / "out", "--size", "8", "--json")
    planned = tpuctl(*arguments, "--dry-run").data
    assert (planned["images"], len(planned["classes"]), planned["shards"]) == (count, 100, 16)
    part = ("--hosts", "0/16")
    made = tpuctl(*arguments, *part).data
    assert (made["written"], made["shards_missing"]) == (count // 16, 15)


MAKE = """
import sys
import cv2
import numpy as np
small = np.random.default_rng(0).integers(0, 256, (80, 120, 3), dtype=np.uint8)
large = cv2.resize(small, (12000, 8000), interpolation=cv2.INTER_LINEAR)
options = [cv2.IMWRITE_JPEG_QUALITY, 90, cv2.IMWRITE_JPEG_PROGRESSIVE, int(sys.argv[2])]
cv2.imwrite(sys.argv[1], large, options)
"""
RUN = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "tpuctl", *sys.argv[1:]], stdout=subprocess.PIPE)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"result": json.loads(done.stdout), "peak": peak}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("progressive", "most_mib"), [(0, 250), (1, 550)])
def test_a_picture_of_96_megapixels_takes_little_memory(
    tmp_path: Path, progressive: int, most_mib: int
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    path = photos / "large.jpg"
    subprocess.run([sys.executable, "-c", MAKE, str(path), str(progressive)], check=True)
    words = ["data", "presize", str(photos), str(tmp_path / "out"), "--workers", "1", "--json"]
    ran = subprocess.run([sys.executable, "-c", RUN, *words], check=True, capture_output=True)
    document = json.loads(ran.stdout)
    assert document["result"]["data"]["written"] == 1
    # Of any one process; in full this picture has 275 MiB, as a progressive decoder keeps it more.
    assert document["peak"] < most_mib * MIB
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_a_header_that_claims_too_much_costs_nothing(photos: Path, tmp_path: Path) -> None:
    data = bytearray((photos / "class-0" / "000.jpg").read_bytes())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = (65500).to_bytes(2, "big") * 2
    (photos / "class-0" / "bomb.jpg").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    result = presize(photos, tmp_path / "out", PresizeOptions(size=(32, 32), workers=1))
    assert [(bad.path, bad.reason) for bad in result.quarantined] == [("class-0/bomb.jpg", "bomb")]
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert max(0, after - before) * 1024 < 400 * MIB
