"""Where the agent begins: one request in, its operation, one answer out."""

from __future__ import annotations

import errno
import os
import signal
import sys

from tpuctl.remote.agent import jobs, run
from tpuctl.remote.agent.wire import (
    MARK,
    Refusal,
    WireError,
    note,
    read_frame,
    read_note,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

OPERATIONS: dict[str, Callable[[dict[str, Any], BinaryIO], None]] = {
    "run": run.run,
    "start": jobs.start,
    "logs": jobs.logs,
    "stop": jobs.stop,
    "jobs": jobs.show,
}


def main(stdin: BinaryIO) -> None:
    """Read a request, do it, and tell what stood in the way; never returns."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    code = 0
    try:
        send(MARK)
        request = read_note(read_frame(stdin)[1])
        OPERATIONS[request["op"]](request, stdin)
    except (BrokenPipeError, EOFError):
        code = 1
    except Refusal as refusal:
        send(note(refused={"code": refusal.code, "message": str(refusal)}))
    except WireError as error:
        send(note(refused={"code": "worker_failed", "message": str(error)}))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        kind_of = "disk_full" if full else "worker_failed"
        send(note(refused={"code": kind_of, "message": f"{error.strerror}{where}"}))
    sys.stderr.flush()
    os._exit(code)
