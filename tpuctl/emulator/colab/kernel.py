"""A kernel of an emulated runtime: a Python process that executes cells.

Run as a program, this module is that process; requests and output are lines of JSON.
"""

import io
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpuctl.start_python import python_command

Emit = Callable[[dict[str, Any]], None]


class Kernel:
    """The parent's side of one kernel."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        confined: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            confined(python_command("tpuctl.emulator.colab.kernel")),
            cwd=folder,
            env={**env, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def execute(self, code: str, emit: Emit) -> None:
        """Execute a cell; `emit` gets its output, and finally whether it raised."""
        # The runtime's own root does not exist here.
        code = code.replace("/content", str(self._folder / "content"))
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            try:
                self._process.stdin.write(json.dumps({"code": code}).encode() + b"\n")
                self._process.stdin.flush()
                for line in self._process.stdout:
                    event = json.loads(line)
                    emit(event)
                    if event["kind"] == "end":
                        return
            except OSError:
                pass
            emit({"kind": "end", "error": ["DeadKernelError", "the kernel has died", []]})

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        # Closes the pipes, too.
        self._process.communicate()


class _Output(io.TextIOBase):
    def __init__(self, name: str, emit: Emit) -> None:
        self._name, self._emit = name, emit

    def write(self, text: str) -> int:
        self._emit({"kind": "stream", "name": self._name, "text": text})
        return len(text)

    def isatty(self) -> bool:
        return False


def main() -> None:
    """Execute cells from stdin until it ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")

    sys.stdout, sys.stderr = _Output("stdout", emit), _Output("stderr", emit)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        code = json.loads(line)["code"]
        error = None
        try:
            exec(compile(code, "<cell>", "exec"), names)  # noqa: S102 (a kernel)
        except BaseException as raised:
            kind = type(raised).__name__
            error = [kind, str(raised), traceback.format_exc().splitlines()]
        emit({"kind": "end", "error": error})
