"""What measuring costs, and whether one vCPU tells what two would do.

    python -m benchmarks profile_figures

Overhead: CPU time per example with the measuring threads against a bare loop, processes in turns,
medians; of `--deep` what its windows say, traced ones beside others. Stall: the CPU time per
example on one vCPU predicts the wait on two, which is measured. Where two busy vCPUs share caches
or a core, an example takes more CPU time on them, which one of them cannot foretell.
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
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.profile_suite import OLDER, make_photos

PIPELINES = ("jpeg", "heavy")
# Device steps as multiples of what one vCPU needs for a batch.
FACTORS = (0.4, 0.7)


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    if arguments.plain:
        print(json.dumps(consume(arguments.plain, arguments.seconds)))
        sys.stdout.flush()
        os._exit(0)
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_BENCH_PHOTOS"] = folder
        make_photos(folder)
        show_overhead(arguments)
        show_deep(arguments)
        show_stalls(arguments)


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
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
    """What a host trace costs beside windows without one, and that it stops where it costs more."""
    found = [
        take("jpeg", arguments.seconds, None, deep=True).deep for _ in range(arguments.repeats)
    ]
    slowdowns = [each.slowdown for each in found if each.slowdown is not None]
    overhead = median(each.overhead_fraction for each in found)
    beside = f"CPU per element x{1 + median(slowdowns):.3f}" if slowdowns else "too few elements"
    print(f"deep overhead: tracing takes {overhead:.2%} of the vCPUs; {beside} beside it")
    tiny = take("tiny", arguments.seconds, None, deep=True).deep
    print(f"deep overhead, tiny elements: {tiny.note}")


def show_stalls(arguments: argparse.Namespace) -> None:
    """Predict the wait on two vCPUs from one, and measure it."""
    from tpuctl.pipeline.whatif import what_if

    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("stall on two vCPUs: this machine has one")
        return
    for name in PIPELINES:
        with running_on(cpus[:1]):
            one = take(name, arguments.seconds, None)
        for factor in FACTORS:
            step_ms = factor * one.batch_size * one.cpu_ms_per_example
            with running_on(cpus[:2]):
                two = take(name, arguments.seconds, step_ms)
            idle = [
                what_if(
                    batch_size=one.batch_size,
                    cpu_ms_per_example=measured.cpu_ms_per_example,
                    vcpus=2,
                    step_ms=step_ms,
                ).mxu_idle_fraction
                for measured in (one, two)
            ]
            others = (two.signals.other_cpu_s or 0.0) / two.signals.wall_s / 2
            dearer = two.cpu_ms_per_example / one.cpu_ms_per_example
            print(
                f"stall of {name}, step {step_ms:.0f} ms: measured {two.input_wait_fraction:.2f}, "
                f"predicted {idle[0]:.2f} from one vCPU and {idle[1]:.2f} from what an example "
                f"takes on two, x{dearer:.2f} (others took {others:.0%})"
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
    from tpuctl.pipeline import profile_target

    return profile_target(f"{OLDER}:{name}", seconds=seconds, device_step_ms=step_ms, deep=deep)


def in_child(name: str, seconds: float) -> float:
    words = ["--plain", name, "--seconds", str(seconds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.profile_figures", *words],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


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
