"""Worker processes that die, hang or never begin."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.pictures import contents, fill, small
from tpuctl.datasets.inputs import scan
from tpuctl.datasets.plan import plan_presize
from tpuctl.datasets.presize import presize
from tpuctl.datasets.shards.pool import WORKER, WorkerSetup, build_shards
from tpuctl.datasets.shards.work import Work
from tpuctl.errors import TpuctlError
from tpuctl.progress import Progress


@pytest.mark.slow
def test_a_killed_worker_costs_a_retry_and_not_the_run(tmp_path: Path) -> None:
    photos = fill(tmp_path / "photos", 60, classes=3)
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        # Far apart: of an image that is hit twice, the worker is no longer blamed but the image.
        if len(killed) < 2 and progress.done >= 2 + 30 * len(killed):
            for child in psutil.Process().children():
                # One that was killed a moment ago may be a zombie still, and what it did is heard.
                with suppress(psutil.NoSuchProcess):
                    if WORKER in child.cmdline():
                        child.kill()
                        killed.append(child.pid)

    result = presize(photos, tmp_path / "out", small(), on_progress=kill)
    assert killed
    assert (result.written, result.quarantined) == (60, ())
    presize(photos, tmp_path / "fresh", small())
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


# A worker as it is, but a picture of 344 pixels' width ends or stalls its process.
POISONED = """
import os, signal, time
from tpuctl.datasets.shards.worker import main
from tpuctl.datasets.images import _shrink as _images
shrink_all = _images.shrink_all
def poisoned(data, *args, **options):
    smalls = shrink_all(data, *args, **options)
    if smalls[0].original_width == 344:
        {death}
    return smalls
_images.shrink_all = poisoned
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A module to take for a worker."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(code: str) -> str:
        (tmp_path / "other_worker.py").write_text(code)
        return "other_worker"

    return write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "silence_s", "detail"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", 60.0, "it killed 2 workers (signal 11)"),
        ("os._exit(3)", 60.0, "it killed 2 workers (exit code 3)"),
        ("time.sleep(600)", 10.0, "it killed 2 workers (signal 9)"),
    ],
)
def test_a_picture_that_kills_its_worker_twice_is_left_out(
    photos: Path,
    tmp_path: Path,
    worker: Callable[[str], str],
    death: str,
    silence_s: float,
    detail: str,
) -> None:
    plan = plan_presize(scan(photos).pictures, small(), {})
    work = Work(tmp_path / "work")
    work.create()
    setup = WorkerSetup(str(photos), str(work.folder), plan.options, 1 << 30, workers=2)
    module = worker(POISONED.format(death=death))
    steps = list(build_shards(plan.jobs, setup, worker=module, silence_s=silence_s))
    finished = [shard for step in steps for shard in step.finished]
    left_out = [bad for shard in finished for bad in shard.left_out]
    assert [(bad.path, bad.reason, bad.detail) for bad in left_out] == [
        ("class-0/003.jpg", "crashed_worker", detail)
    ]
    assert sum(shard.records for shard in finished) == 11


def test_a_worker_that_cannot_start_is_one_clear_error(
    photos: Path, tmp_path: Path, worker: Callable[[str], str]
) -> None:
    plan = plan_presize(scan(photos).pictures, small(), {})
    setup = WorkerSetup(str(photos), str(tmp_path), plan.options, 1 << 30, workers=2)
    module = worker("raise SystemExit('no luck today')")
    with pytest.raises(TpuctlError, match=r"ended before it began: exit code 1: no luck today"):
        list(build_shards(plan.jobs, setup, worker=module))
