"""Look once a second at a program that is being profiled, from another process."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuctl.errors import NotFoundError
from tpuctl.pipeline.models import Profile
from tpuctl.pipeline.program.run import conclude, read_one

EVERY_S = 1.0
HINT = "Start it so that it can be watched: tpuctl profile watch -- python train.py"


def follow(pid: int) -> Iterator[Profile]:
    """Yield a profile a second of a running program until it ends.

    Raises NotFoundError for a program that nobody profiles.
    """
    place = _result_of(pid)
    while _is_running(pid):
        if measured := read_one(place):
            yield conclude(measured, target=measured.program or str(pid))
        time.sleep(EVERY_S)


def last_of(profiles: Iterator[Profile], look: Callable[[Profile], None]) -> Profile:
    """Look at every profile, and hand over the last; raises NotFoundError where there is none."""
    last: Profile | None = None
    for last in profiles:
        look(last)
    if last is None:
        raise NotFoundError("The program ended before its first step was seen.", hint=HINT)
    return last


def _result_of(pid: int) -> Path:
    for folder in Path(tempfile.gettempdir()).glob("tpuctl-profile-*"):
        place = folder / f"{pid}.run.json"
        # What another user left there is not ours to believe.
        if place.is_file() and place.stat().st_uid == os.getuid():
            return place
    if not _is_running(pid):
        raise NotFoundError(f"There is no process {pid} of yours.", hint=HINT)
    raise NotFoundError(
        f"Process {pid} is not being profiled, or has not trained a step yet.", hint=HINT
    )


def _is_running(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False
