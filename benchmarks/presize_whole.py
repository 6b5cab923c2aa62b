"""A whole presize, start-up included, against other tools: CPU seconds and memory of all processes.

Two processes each, the same photographs, the candidates in turns; only ratios within one run mean
anything. The first round warms up and does not count. Memory is the proportional set size of all
processes of a candidate at its highest.

The others are installed in environments of their own (benchmarks/peers.py says where); `--alone`
leaves them out. pyvips with webdataset runs in one that has torch as well, too: `import webdataset`
imports it where it is installed, and that is where shards of webdataset are read. It is a download
of some 3 GB, which `--no-torch` spares.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers import SINGLE_THREADED, make_environment
from benchmarks.presize_kernel import photographs
from tpuctl.units import format_bytes

ROUNDS = 3
# Of 16 photographs, which makes about 900.
COPIES = 56
SCRIPT = Path(__file__).with_name("presize_whole_peer.py")
_VIPS = ("pyvips", "pyvips-binary", "webdataset", "numpy")
_SAMPLE_S = 0.05


@dataclass(frozen=True)
class Rival:
    """Somebody else's tools: their name in the script, what pip needs, and what we promise."""

    job: str
    packages: tuple[str, ...]
    target: float


RIVALS = {
    "tf.data": Rival("tf.data", (), 2.0),
    "pyvips and webdataset": Rival("pyvips and webdataset", _VIPS, 2.0),
    "the same beside torch": Rival("pyvips and webdataset", (*_VIPS, "torch"), 2.0),
    "img2dataset": Rival("img2dataset", ("img2dataset",), 3.5),
}


def run(words: Sequence[str | Path]) -> tuple[float, int]:
    """CPU seconds of a command and all it waits for, and its highest memory in bytes."""
    env = {**os.environ, **SINGLE_THREADED, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # What pip installs comes compiled; our checkout may be compiled once too.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.times()
    process = subprocess.Popen(
        [str(word) for word in words],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory_bytes(process.pid))
        time.sleep(_SAMPLE_S)
    after = os.times()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(map(str, words)))
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system, peak


def _memory_bytes(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def commands(names: Sequence[str], source: Path, target: Path) -> dict[str, list[str | Path]]:
    """What to run for each candidate."""
    found: dict[str, list[str | Path]] = {
        "ours": [
            sys.executable, "-m", "tpuctl", "data", "presize", source, target, "--workers", "2",
        ]
    }  # fmt: skip
    for name in names:
        rival = RIVALS[name]
        place = name.replace(" ", "-")
        python = make_environment(place, rival.packages) if rival.packages else sys.executable
        found[name] = [python, SCRIPT, rival.job, source, target]
    return found


def read_arguments(words: Sequence[str] | None) -> list[str]:
    """Name the rivals that are to run."""
    parser = argparse.ArgumentParser(prog="presize_whole")
    parser.add_argument("--alone", action="store_true", help="install no others: tf.data only")
    parser.add_argument("--no-torch", action="store_true", help="spare a download of 3 GB")
    arguments = parser.parse_args(words)
    return [
        name
        for name, rival in RIVALS.items()
        if not (rival.packages and arguments.alone)
        and not ("torch" in rival.packages and arguments.no_torch)
    ]


def main(words: Sequence[str] | None = ()) -> None:
    names = read_arguments(words)
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "photos", Path(place) / "out"
        source.mkdir()
        for path in photographs(Path(place) / "made", progressive=False):
            for copy in range(COPIES):
                shutil.copy(path, source / f"{copy}-{path.name}")
        found = commands(names, source, target)
        spent: dict[str, list[float]] = {name: [] for name in found}
        peaks: dict[str, list[int]] = {name: [] for name in found}
        order = random.Random(3)
        for number in range(ROUNDS + 1):
            for name in order.sample(list(found), len(found)):
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir()
                cpu_s, peak = run(found[name])
                if number:
                    spent[name].append(cpu_s)
                    peaks[name].append(peak)
        count = len(list(source.iterdir()))
    report(count, spent, peaks)


def report(count: int, spent: dict[str, list[float]], peaks: dict[str, list[int]]) -> None:
    """Print images per CPU second and memory of each candidate."""
    ours_s = statistics.median(spent["ours"])
    for name, seconds in spent.items():
        cpu_s, peak = statistics.median(seconds), max(peaks[name])
        line = f"presize, whole: {name:22} {count / cpu_s:6.1f} images per CPU s, "
        line += f"{format_bytes(peak)} at most"
        if name in RIVALS:
            promised = RIVALS[name].target
            line += f"; ours is {cpu_s / ours_s:.2f}x (at least {promised})"
        else:
            line += " (at most 200 MB)"
        print(line)


if __name__ == "__main__":
    main(None)
