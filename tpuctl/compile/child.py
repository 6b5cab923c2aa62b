"""The process that compiles: `python -m tpuctl.compile.child FD`.

libtpu is loaded here and never in the user's own process, where it would take a real TPU. One
process answers as many questions as it is asked.
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
COMPILING = "compiling"


def answer(question: CompileRequest, channel: Channel, opened: set[str]) -> dict[str, Any]:
    """Load, lower and compile; the answer, and the files that it depends on."""
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
    devices = open_devices(question.slice)
    work = prepare(question, devices, channel.enter)
    channel.enter(COMPILING)
    compilation = run_compiler(work, question.slice, report=question.report)
    return {
        "compilation": to_plain(compilation),
        "files": sorted(filter(os.path.isfile, opened | _modules())),
    }


def _modules() -> set[str]:
    """The source files of every module that is loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if file}


def _watch_files() -> set[str]:
    """Collect what is opened for reading from now on: a model may be described by a file."""
    opened: set[str] = set()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            opened.add(os.path.abspath(os.fspath(arguments[0])))

    sys.addaudithook(audit)
    return opened


def main() -> None:
    """Answer questions until the parent is gone."""
    channel = Channel(int(sys.argv[1]))
    channel.beat()

    def beat() -> None:
        while True:
            time.sleep(BEAT_S)
            channel.beat()

    threading.Thread(target=beat, name="tpuctl-beat", daemon=True).start()
    opened = _watch_files()
    for request in channel.requests():
        try:
            question = from_plain(CompileRequest, request)
            channel.send(result=answer(question, channel, opened))
        except MemoryError:
            words = "The compiling process ran out of memory."
            channel.send(error=TargetError.code, message=words, hint=None)
        except TpuctlError as error:
            traceback.print_exc()
            channel.send(error=error.code, message=str(error), hint=error.hint)
        except BaseException as error:
            traceback.print_exc()
            channel.send(error="bug", message=f"{type(error).__name__}: {error}", hint=None)
        channel.enter("waiting for a question")


if __name__ == "__main__":
    main()
