"""Peers that must not share our environment: each in one of its own, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
import venv
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SINGLE_THREADED = {
    "VIPS_CONCURRENCY": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


# What pillow-simd's authors tell to set; what comes as a wheel is compiled already.
_COMPILER = {"CC": "cc -mavx2"}


def make_environment(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment with these packages; made once per machine.

    They are kept in the folder TPUCTL_BENCH_PEERS, by default in the temporary folder. Raises
    CalledProcessError when pip fails.
    """
    kept = os.environ.get("TPUCTL_BENCH_PEERS") or f"{tempfile.gettempdir()}/tpuctl-bench-peers"
    folder = Path(kept) / name
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "-q", *packages]
        subprocess.run(install, check=True, env={**os.environ, **_COMPILER})
        complete.touch()
    return python


class Peer:
    """A process that does one job per line it is sent and says what CPU time that took."""

    def __init__(self, python: Path, script: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **SINGLE_THREADED, "PYTHONPATH": ""},
        )

    def cpu_s(self, path: Path) -> float:
        """Shrink one photograph; the peer's own CPU seconds, all its threads included."""
        return float(self._ask({"path": str(path)})["cpu_s"])

    def pixels(self, path: Path) -> "np.ndarray[Any, Any]":
        """Shrink one photograph and hand it over."""
        answer = self._ask({"path": str(path), "pixels": True})
        return np.frombuffer(b64decode(answer["pixels"]), np.uint8).reshape(answer["shape"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            sys.exit("A peer ended before its turn.")
        answer: dict[str, Any] = json.loads(line)
        return answer
