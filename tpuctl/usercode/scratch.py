"""A folder for a while, which is gone afterwards even where its owner was killed."""

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
from tpuctl.usercode.error_summary import last_words

KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True)
class Scratch:
    """A folder with somebody who looks after it."""

    path: Path
    _keeper: "subprocess.Popen[bytes]"

    def run(self, command: Sequence[str], *, limit_s: float) -> None:
        """Run a command that ends with us; raises TargetError where it fails or takes too long."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._tell(process.pid)
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{command[-1]} took longer than {limit_s:.0f} s.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self._tell(-process.pid)
        if process.returncode:
            raise TargetError(last_words(said.decode("utf-8", "replace")))

    def done(self) -> None:
        """Have the folder removed, whoever of those that we forked still lives."""
        self._tell(0)

    def _tell(self, group: int) -> None:
        assert self._keeper.stdin
        with contextlib.suppress(BrokenPipeError):
            os.write(self._keeper.stdin.fileno(), b"%d\n" % group)


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Scratch]:
    """Make a folder that a process of its own removes when this block, or this process, ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with keeper:
        scratch = Scratch(Path(path), keeper)
        try:
            yield scratch
        finally:
            scratch.done()
