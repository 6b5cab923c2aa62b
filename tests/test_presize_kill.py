"""A full disk, Ctrl-C, orphaned workers; `test_crash.py` kills presize where it may hurt."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.pictures import contents, encoded, fill
from tpuctl.datasets.manifest import MANIFEST, WORK
from tpuctl.datasets.models import PresizeOptions
from tpuctl.datasets.presize import presize
from tpuctl.datasets.verify import verify
from tpuctl.errors import WriteError

pytestmark = pytest.mark.slow

OPTIONS = PresizeOptions(size=(64, 64), workers=2)

# The program as it is, but the Nth thing it does to the file system is its last.
DIES_AT = """
import os, signal, sys
left = [int(sys.argv.pop(1))]
def deadly(work):
    def step(*arguments, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)
    return step
for name in ("replace", "fsync", "unlink", "rmdir"):
    setattr(os, name, deadly(getattr(os, name)))
from tpuctl.cli.app import main
main()
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fill(tmp_path_factory.mktemp("kill") / "photos", 40, classes=2)
    whole = (folder / "class-0" / "000.jpg").read_bytes()
    (folder / "class-0" / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "class-1" / "end.jpg").write_bytes(whole[:-2])
    return folder


@pytest.fixture(scope="module")
def undisturbed(photos: Path) -> dict[str, bytes]:
    out = photos.parent / "undisturbed"
    presize(photos, out, PresizeOptions(size=(64, 64), workers=1))
    return contents(out)


def command(photos: Path, out: Path, *options: str) -> list[str]:
    words = ("data", "presize", str(photos), str(out), "--size", "64", "--workers", "2", "--json")
    return [sys.executable, "-m", "tpuctl", *words, *options]


def start(words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )


def start_and_halt(photos: Path, out: Path) -> "subprocess.Popen[str]":
    """A run that stands still after its first shard, so that no machine is too fast or too slow."""
    words = command(photos, out)
    words[1:3] = ["-c", DIES_AT.replace("SIGKILL", "SIGSTOP"), "5"]
    process = start(words)
    change = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert change
    assert change.si_status == signal.SIGSTOP
    return process


def check_nothing_torn(out: Path, undisturbed: dict[str, bytes]) -> bool:
    """Whatever has a final name is complete; returns whether the manifest is there."""
    there = contents(out) if out.is_dir() else {}
    for name, data in there.items():
        assert data == undisturbed[name], name
    if MANIFEST in there:
        assert set(there) == set(undisturbed)
    return MANIFEST in there


def finish(photos: Path, out: Path, undisturbed: dict[str, bytes]) -> None:
    presize(photos, out, OPTIONS)
    assert contents(out) == undisturbed
    assert not (out / WORK).exists()


@pytest.mark.slow
def test_an_interrupted_shard_is_continued_and_not_begun_again(
    photos: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    done: list[float] = []

    class Stop(Exception):
        pass

    def stop(progress: object) -> None:
        done.append(getattr(progress, "done", 0))
        if done[-1] >= 8:
            raise Stop

    options = replace(OPTIONS, workers=1)
    with pytest.raises(Stop):
        presize(photos, out, options, on_progress=stop)
    first: list[float] = []
    presize(photos, out, options, on_progress=lambda progress: first.append(progress.done))
    assert first[0] >= 7
    assert contents(out) == undisturbed


@pytest.mark.slow
def test_the_workers_of_a_killed_run_end_with_it(photos: Path, tmp_path: Path) -> None:
    process = start_and_halt(photos, tmp_path / "out")
    workers = psutil.Process(process.pid).children()
    assert workers
    process.kill()
    process.communicate()
    assert psutil.wait_procs(workers, timeout=120)[1] == []


@pytest.mark.slow
def test_ctrl_c_says_so_and_the_same_command_finishes(
    photos: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    process = start_and_halt(photos, out)
    assert (out / WORK).is_dir()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    document = json.loads(stdout)
    assert document["errors"][0]["code"] == "interrupted"
    assert not check_nothing_torn(out, undisturbed)
    finish(photos, out, undisturbed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def noise(folder: Path, count: int) -> Path:
    """Pictures whose records are larger than any estimate for photographs."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(count):
        pixels = generator.integers(0, 256, (96, 96, 3), dtype=np.uint8)
        (folder / f"{index:03}.png").write_bytes(encoded(Image.fromarray(pixels), "PNG"))
    return folder


def test_too_little_space_is_said_before_the_first_byte(small_disk: Path, tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 12)
    with pytest.raises(WriteError, match=r"has .* free; the data set needs about"):
        presize(photos, small_disk / "out", PresizeOptions(size=(512, 512), encode="raw"))
    assert not list(small_disk.rglob("*.part"))


def test_a_disk_that_fills_up_is_one_error_and_more_space_finishes(
    small_disk: Path, tmp_path: Path
) -> None:
    photos = noise(tmp_path / "noise", 60)
    options = PresizeOptions(size=(96, 96), quality=95, workers=2)
    out = small_disk / "out"
    with pytest.raises(WriteError, match="no space left") as full:
        presize(photos, out, options)
    assert "same command again" in str(full.value.hint)
    assert not (out / MANIFEST).exists()
    assert not list(out.glob("*.tfrecord"))
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    result = presize(photos, out, options)
    assert result.resumed
    assert verify(out, deep=True).damage == ()


def test_a_file_size_limit_is_one_error_too(tmp_path: Path) -> None:
    photos = noise(tmp_path / "noise", 40)
    words = command(photos, tmp_path / "out", "--size", "96", "--labels", "none")
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *words]
    process = start(limited)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stdout + stderr
    (error,) = json.loads(stdout)["errors"]
    assert error["code"] == "write_failed"
    assert "ulimit" in error["message"]
    assert not (tmp_path / "out" / MANIFEST).exists()
    process = start(words)
    assert process.wait(120) == 0
    process.communicate()
    assert verify(tmp_path / "out", deep=True).damage == ()


def test_a_read_only_target_is_one_error(small_disk: Path, tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 4)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(WriteError, match="the file system is read-only"):
        presize(photos, small_disk / "out", PresizeOptions(size=(32, 32)))
