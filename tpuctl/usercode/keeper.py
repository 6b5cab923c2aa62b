"""Waits for the end of its owner, however that comes, and removes what the owner left.

Run as a script of its own, with nothing but the standard library: `keeper.py FOLDER`. Each line on
its input is the process group of something that the owner started, or, after a minus, that ended;
0 says that the owner is done. Only a killed one does not say it: the pipe may then stay open in
processes that the owner forked, and the folder for as long as they live.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Read until the owner is done or gone, end what still runs, and remove the folder."""
    groups = set()
    for line in sys.stdin:
        number = int(line)
        if number == 0:
            break
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    remove(sys.argv[1])


def remove(folder: str) -> None:
    """Remove a folder that other processes may still write into.

    Renamed first: what they write from then on finds no folder, and cannot come in between.
    """
    gone = f"{folder}.gone"
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


if __name__ == "__main__":
    main()
