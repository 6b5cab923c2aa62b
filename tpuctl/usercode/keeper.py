"""Waits for the end of its owner, however that comes, and removes what the owner left.

Run as a script of its own, with nothing but the standard library: `keeper.py FOLDER`. Each line on
its input is the process group of something that the owner started, or, after a minus, that ended;
a zero is the owner's own end, for there may be others who hold the pipe open.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Read until the owner is gone, end what still runs, and remove the folder."""
    groups = set()
    for line in sys.stdin:
        number = int(line)
        if not number:
            break
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
