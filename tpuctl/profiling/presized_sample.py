"""A sample of somebody's photographs as they are, and as `data presize` would make them."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tpuctl.profiling.inputs import find_photos
from tpuctl.profiling.request import Request, Target
from tpuctl.usercode.scratch import scratch_folder

# What presizing the sample may take of CPU time, and how many photographs are enough and too few.
CPU_S, LEAST, MOST = 10.0, 32, 256
LIMIT_S = 120.0


@contextlib.contextmanager
def presized_sample(
    request: Request, size: int, *, cpu_ms_per_example: float
) -> Iterator[tuple[Request, Request]]:
    """Give the request with a sample of the photographs, and with the records made of it.

    Both are gone afterwards. Raises TargetError where they cannot be made.
    """
    with scratch_folder("tpuctl-presize-") as scratch:
        photos, records = scratch.path / "photos", scratch.path / "records"
        photos.mkdir()
        for number, photo in enumerate(_sample(Path(request.target.place), cpu_ms_per_example)):
            (photos / f"{number:05}{photo.suffix}").symlink_to(photo)
        words = ["data", "presize", str(photos), str(records), "--size", str(size)]
        command = [sys.executable, "-m", "tpuctl", *words, "--labels", "none"]
        scratch.run(command, limit_s=LIMIT_S)
        yield (
            replace(request, target=Target("photos", str(photos))),
            replace(request, target=Target("shards", str(records))),
        )


def _sample(folder: Path, cpu_ms_per_example: float) -> list[Path]:
    """Photographs from all parts of the folder, as many as can be presized in a few seconds."""
    photos = find_photos(folder).photos
    count = min(MOST, max(LEAST, round(CPU_S * 1e3 / max(cpu_ms_per_example, 1e-3))))
    return [photo.path for photo in photos[:: max(1, len(photos) // count)][:count]]
