"""Copy folders and files to and from workers; only what differs is sent."""

import time
from pathlib import Path

from tpuctl.progress import OnProgress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.copies import Copied, CopyPlan, Direction
from tpuctl.remote.download import download
from tpuctl.remote.fleet import drive
from tpuctl.remote.hosts import Host
from tpuctl.remote.tree import check_that_it_is_there
from tpuctl.remote.upload import upload
from tpuctl.storage.local import ensure_folder


def copy(
    hosts: tuple[Host, ...], access: Access, plan: CopyPlan, *, on_progress: OnProgress = silent
) -> Copied:
    """Carry out a copy.

    On the other side nothing changes before everything has arrived; then each file takes its place
    in one step. What is not in the source stays. Raises NotFoundError for a source that is missing.
    """
    start_s, local = time.monotonic(), Path(plan.local or ".").expanduser()
    odd: tuple[str, ...] = ()
    if plan.direction is Direction.UP:
        check_that_it_is_there(local)
        ends, odd = drive(upload(hosts, access, local, plan.remote, on_progress))
    else:
        if plan.local.endswith("/"):
            ensure_folder(local)
        ends = drive(download(hosts, access, plan.remote, local, on_progress))
    return Copied(
        workers=tuple(ends), direction=plan.direction, seconds=time.monotonic() - start_s, odd=odd
    )
