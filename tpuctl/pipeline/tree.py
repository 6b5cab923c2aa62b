"""The processes below this one, such as the workers of a data loader; reads only /proc."""

import os
from collections.abc import Iterator
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Places in /proc/PID/stat, counted after the name (proc(5)): own and reaped children's CPU time.
TIMES = slice(11, 15)


def workers(root: Path = Path("/"), process: str = "self") -> Iterator[Path]:
    """The folders in /proc of all processes below one; none where the kernel does not tell."""
    try:
        threads = os.listdir(root / "proc" / process / "task")
    except OSError:
        return
    for thread in threads:
        try:
            listed = contents(f"{root}/proc/{process}/task/{thread}/children")
        except OSError:
            continue
        for child in map(os.fsdecode, listed.split()):
            yield root / "proc" / child
            yield from workers(root, child)


def contents(path: str) -> bytes:
    """A file of /proc that there is for every thread: in a third of the time of `read_text`."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def cpu_s(process: Path) -> float:
    """CPU seconds of a process and of those of its children that have ended; 0 when it is gone."""
    try:
        after_name = (process / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, after_name[TIMES])) * TICK_S
    except (OSError, ValueError):
        return 0.0
