"""Where the agent begins: one request in, its operation, one answer out."""

from __future__ import annotations

import errno
import os
import signal
import sys

from tpuctl.remote.agent.wire import MARK, Refusal, WireError, note, read_frame, read_note, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(module: str, stdin: BinaryIO) -> None:
    """Read a request, do it with a function of that module, and tell what stood in the way.

    Never returns.
    """
    for number in (signal.SIGPIPE, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    code = 0
    try:
        send(MARK)
        request = read_note(read_frame(stdin)[1])
        getattr(sys.modules[module], request["do"])(request, stdin)
    except (BrokenPipeError, EOFError):
        code = 1
    except Refusal as refusal:
        send(note(refused={"code": refusal.code, "message": str(refusal)}))
    except WireError as error:
        send(note(refused={"code": "worker_failed", "message": str(error)}))
    except OSError as error:
        where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
        kind = "disk_full" if error.errno in _FULL else "worker_failed"
        send(note(refused={"code": kind, "message": f"{error.strerror}{where}"}))
    sys.stderr.flush()
    os._exit(code)
