"""What measuring costs, and whether one vCPU tells what two would do.

    python -m benchmarks profile_figures

Overhead: CPU time per example with the measuring threads against a bare loop, processes in turns,
medians; of `--deep` what it says itself. Stall: the CPU time per example on one vCPU predicts the
wait on two, which is measured, in turns. Medians; rounds in which other programs or other machines
took a notable part of the vCPUs are left out, and counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.profile_suite import OLDER, make_photos
from tpuctl.profiling.whatif import Scaling, WhatIf, what_if
from tpuctl.profiling.windows import Signals

PARTS = ("live", "deep", "stall")
PIPELINES = ("jpeg", "heavy")
STALLING = (*PIPELINES, "python")
# Device steps as multiples of what one vCPU needs for a batch.
FACTORS = (0.3, 0.4, 0.55, 0.7)
# Where others take more of the vCPUs than this, the wait is theirs.
QUIET = 0.05


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    if arguments.plain:
        print(json.dumps(consume(arguments.plain, arguments.seconds)))
        sys.stdout.flush()
        os._exit(0)
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_BENCH_PHOTOS"] = folder
        make_photos(folder)
        for part in [arguments.only] if arguments.only else PARTS:
            {"live": show_overhead, "deep": show_deep, "stall": show_stalls}[part](arguments)


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="of the stalls, each pipeline")
    parser.add_argument("--pipelines", type=lambda text: text.split(","), default=STALLING)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--plain", choices=PIPELINES, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def show_overhead(arguments: argparse.Namespace) -> None:
    """Compare a measured run with a bare loop over the same pipeline."""
    with_us, without, reported = [], [], []
    for _ in range(arguments.repeats):
        without.append(in_child("jpeg", arguments.seconds))
        profile = take("jpeg", arguments.seconds, None)
        with_us.append(profile.cpu_ms_per_example / 1000)
        reported.append(profile.overhead_fraction)
    ratio = median(with_us) / median(without)
    print(f"live overhead: CPU per example x{ratio:.3f} of a bare loop's; ", end="")
    print(f"own threads take {median(reported):.2%} of the vCPUs")


def show_deep(arguments: argparse.Namespace) -> None:
    """What a host trace costs, and that it stops where it costs too much."""
    found = [
        take("jpeg", arguments.seconds, None, deep=True).deep for _ in range(arguments.repeats)
    ]
    ended = sum(each.ended is not None for each in found)
    print(f"deep: {ended} of {len(found)} traces stopped themselves")
    collecting = median(each.overhead_fraction for each in found)
    print(f"deep overhead: while it traces, {collecting:.2%} of the vCPUs")
    tiny = take("tiny", arguments.seconds, None, deep=True).deep
    print(f"deep overhead, tiny elements: {tiny.note}")


def show_stalls(arguments: argparse.Namespace) -> None:
    """Predict the wait on two vCPUs from one, and measure it."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("stall on two vCPUs: this machine has one")
        return
    for name in arguments.pipelines:
        rounds = [one_and_two(name, cpus, arguments.seconds) for _ in range(arguments.rounds)]
        for factor, turns in zip(FACTORS, zip(*rounds, strict=True), strict=True):
            print(
                f"stall of {name}, step x{factor:g} of a batch on one vCPU: {verdict(turns)}",
                flush=True,
            )


@dataclass(frozen=True)
class Turn:
    """What was predicted from one vCPU, and what was then measured on two.

    `plain` is the prediction by the formula alone; `disturbed` what others took of the vCPUs.
    """

    plain: float
    predicted: WhatIf
    measured: float
    disturbed: float


def one_and_two(name: str, cpus: list[int], seconds: float) -> list[Turn]:
    """Profile on one vCPU, then with every device step on two."""
    with running_on(cpus[:1]):
        one = take(name, seconds, None)
    ask = partial(
        what_if, batch_size=one.batch_size, cpu_ms_per_example=one.cpu_ms_per_example, vcpus=2
    )
    turns = []
    for factor in FACTORS:
        step_ms = factor * one.batch_size * one.cpu_ms_per_example
        with running_on(cpus[:2]):
            two = take(name, 2 * seconds, step_ms)
        turns.append(
            Turn(
                plain=ask(step_ms=step_ms, scaling=Scaling(1.0)).mxu_idle_fraction,
                predicted=ask(step_ms=step_ms, scaling=one.scaling),
                measured=two.input_wait_fraction,
                disturbed=max(lost(one.signals), lost(two.device_signals)),
            )
        )
    return turns


def lost(signals: Signals) -> float:
    """The share of the vCPUs that other programs and other machines had."""
    lost_s = (signals.other_cpu_s or 0.0) + (signals.steal_s or 0.0)
    return lost_s / signals.wall_s / signals.vcpus_visible


def verdict(turns: Sequence[Turn]) -> str:
    """Medians of the quiet rounds, and how many there were."""
    quiet = [turn for turn in turns if turn.disturbed < QUIET]
    if not quiet:
        least = min(turn.disturbed for turn in turns)
        return f"no quiet round of {len(turns)} (others took {least:.0%} and more)"
    errors = [turn.predicted.mxu_idle_fraction - turn.measured for turn in quiet]
    return (
        f"predicted {median(turn.predicted.mxu_idle_fraction for turn in quiet):.2f} "
        f"({median(turn.predicted.mxu_idle_low for turn in quiet):.2f} to "
        f"{median(turn.predicted.mxu_idle_high for turn in quiet):.2f}; "
        f"{median(turn.plain for turn in quiet):.2f} if nothing grew), "
        f"measured {median(turn.measured for turn in quiet):.2f}, off by {median(errors):+.2f} "
        f"({min(errors):+.2f} to {max(errors):+.2f}; {len(quiet)} of {len(turns)} rounds quiet)"
    )


@contextmanager
def running_on(cpus: list[int]) -> Iterator[None]:
    """Let the processes that are started inside have so many vCPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def take(name: str, seconds: float, step_ms: float | None, *, deep: bool = False) -> Any:
    from tpuctl.profiling.profile import profile_target

    return profile_target(f"{OLDER}:{name}", seconds=seconds, device_step_ms=step_ms, deep=deep)


def in_child(name: str, seconds: float) -> float:
    words = ["--plain", name, "--seconds", str(seconds)]
    said = run_module("profile_figures", *words, stdout=subprocess.PIPE)
    return float(json.loads(said.splitlines()[-1]))


def run_module(name: str, *words: str, stdout: int | None = None) -> bytes:
    """Run a part of the bench in a process of its own; gives what it printed, if that is piped."""
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        check=True,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    return done.stdout or b""


def consume(name: str, seconds: float) -> float:
    """CPU seconds per example of a bare loop over a pipeline."""
    sys.path.insert(0, str(OLDER.parent))
    import profile_pipelines

    iterator = iter(getattr(profile_pipelines, name)())
    for _ in range(8):
        next(iterator)
    start, cpu, examples = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        examples += int(next(iterator).shape[0])
    return (time.process_time() - cpu) / examples


if __name__ == "__main__":
    main(sys.argv[1:])
