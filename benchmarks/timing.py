"""Compare whole commands fairly on a noisy machine: in turns, by medians."""

import statistics
import subprocess
import time
from collections.abc import Sequence


def run_s(command: Sequence[str]) -> float:
    """Wall seconds of one run; raises CalledProcessError when it fails."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def ratio_of_commands(ours: Sequence[str], theirs: Sequence[str], runs: int = 15) -> float:
    """Median of ours over median of theirs, the two run in turns after one warm-up each."""
    run_s(ours), run_s(theirs)
    pairs = [(run_s(ours), run_s(theirs)) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
