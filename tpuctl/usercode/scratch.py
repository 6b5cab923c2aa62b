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
from tpuctl.usercode.complaint import last_words

END = 0
KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True)
class Scratch:
    """A folder with somebody who looks after it."""

    path: Path
    _keeper: "subprocess.Popen[str]"

    def run(self, command: Sequence[str], *, limit_s: float) -> None:
        """Run a command that ends with us; raises TargetError where it fails or takes too long."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.tell(process.pid)
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{command[-1]} took longer than {limit_s:.0f} s.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self.tell(-process.pid)
        if process.returncode:
            raise TargetError(last_words(said.decode("utf-8", "replace")))

    def tell(self, group: int) -> None:
        """Let the keeper know of a process group that began, or, negative, that ended."""
        assert self._keeper.stdin
        self._keeper.stdin.write(f"{group}\n")
        self._keeper.stdin.flush()


@contextlib.contextmanager
def scratch_folder(prefix: str) -> Iterator[Scratch]:
    """Make a folder that a process of its own removes when this block, or this process, ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    scratch = Scratch(Path(path), keeper)
    with keeper:
        try:
            yield scratch
        finally:
            # Processes forked meanwhile, as the workers of a loader are, hold the pipe open too.
            with contextlib.suppress(BrokenPipeError):
                scratch.tell(END)
