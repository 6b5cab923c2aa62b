"""Temporary folders that are removed even if the process that made them is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import TargetError
from tpuctl.start_python import child_environment
from tpuctl.usercode.error_summary import last_line

CLEANUP = Path(__file__).with_name("scratch_cleanup.py")


@dataclass(frozen=True)
class Scratch:
    """A temporary folder and the process that removes it."""

    path: Path
    _cleanup: "subprocess.Popen[bytes]"

    def run(self, command: Sequence[str], *, limit_s: float) -> None:
        """Run a command that ends with this process; raises TargetError if that fails or hangs."""
        process = subprocess.Popen(  # noqa: S603 (a template, or tpuctl itself)
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(),
        )
        self._send(process.pid)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{command[-1]} timed out after {limit_s:.0f} s.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self._send(-process.pid)
        if process.returncode:
            raise TargetError(last_line(output.decode("utf-8", "replace")))

    def done(self) -> None:
        """Remove the folder now, even if forked processes are still running."""
        self._send(0)

    def _send(self, group: int) -> None:
        assert self._cleanup.stdin
        with contextlib.suppress(BrokenPipeError):
            os.write(self._cleanup.stdin.fileno(), b"%d\n" % group)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Scratch]:
    """Make a temporary folder that is removed when the block ends or this process dies."""
    path = tempfile.mkdtemp(prefix=prefix)
    cleanup = subprocess.Popen(  # noqa: S603 (our own script)
        [sys.executable, "-I", "-S", str(CLEANUP), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with cleanup:
        scratch = Scratch(Path(path), cleanup)
        try:
            yield scratch
        finally:
            scratch.done()
