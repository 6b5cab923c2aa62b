"""Remove a scratch folder when the process that owns it ends, even by SIGKILL.

Run as a script with only the standard library: `scratch_cleanup.py FOLDER`. Each line on
stdin is a process group that the owner started, a negative one that has ended, or 0 when the
owner is done. If the owner is killed, the folder is removed when the pipe closes; processes that
the owner forked may delay that.
"""

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Wait until the owner is done or dead, kill its processes, and remove the folder."""
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
    """Remove a folder to which other processes may still write.

    It is renamed first, so that they cannot add files while it is emptied.
    """
    gone = f"{folder}.gone"
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


if __name__ == "__main__":
    main()
