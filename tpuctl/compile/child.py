"""The process that compiles: `python -m tpuctl.compile.child FD`.

libtpu is loaded here and never in the user's own process, where it would take a real TPU. One
process serves any number of requests.
"""

import os
import sys
import threading
import time
import traceback
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.compile.models import CompileRequest
from tpuctl.errors import MissingExtraError, TargetError, TpuctlError
from tpuctl.usercode.child import Channel

BEAT_S = 0.5


def compile_request(request: CompileRequest, channel: Channel, opened: set[str]) -> dict[str, Any]:
    """Load, lower and compile; return the result and the files that it depends on."""
    channel.enter("starting the compiler")
    try:
        from tpuctl.compile._libtpu import check_versions, open_devices, run_compiler
        from tpuctl.compile._prepare import prepare
    except ModuleNotFoundError as error:
        module = error.name or "jax"
        raise MissingExtraError("Compiling for a TPU", extra="aot", module=module) from error
    except ImportError as error:
        raise TargetError(f"The compiler could not be loaded: {error}") from error
    check_versions()
    devices = open_devices(request.slice)
    program = prepare(request, devices, channel.enter)
    channel.enter("compiling")
    compilation = run_compiler(program, request.slice, report=request.report)
    modules = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return {
        "compilation": to_plain(compilation),
        "files": sorted(filter(os.path.isfile, opened | modules)),
    }


def watch_opened_files() -> set[str]:
    """Return a set that collects every file opened from now on: a model may read a file."""
    opened: set[str] = set()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            opened.add(os.path.abspath(os.fspath(arguments[0])))

    sys.addaudithook(audit)
    return opened


def main() -> None:
    """Serve requests until the parent is gone."""
    channel = Channel(int(sys.argv[1]))
    channel.beat()

    # From a thread: the compiler keeps the main thread in C++ for minutes.
    def beat() -> None:
        while True:
            time.sleep(BEAT_S)
            channel.beat()

    threading.Thread(target=beat, name="tpuctl-beat", daemon=True).start()
    opened = watch_opened_files()
    for document in channel.requests():
        try:
            request = from_plain(CompileRequest, document)
            channel.send(result=compile_request(request, channel, opened))
        except MemoryError:
            message = "The compiling process ran out of memory."
            channel.send(error=TargetError.code, message=message, hint=None)
        except TpuctlError as error:
            traceback.print_exc()
            channel.send(error=error.code, message=str(error), hint=error.hint)
        except BaseException as error:
            traceback.print_exc()
            channel.send(error="bug", message=f"{type(error).__name__}: {error}", hint=None)
        channel.enter("waiting for a request")


if __name__ == "__main__":
    main()
