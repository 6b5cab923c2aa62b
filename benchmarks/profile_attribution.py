"""How right is `profile` about which stage costs the CPU time?

    python -m benchmarks profile_attribution
    python -m benchmarks.profile_attribution --repeats 3 --seconds 8

Ground truth: every stage alone on inputs held in memory, its CPU time less that of the source.
Profiled as usual and with `--deep`, all on one pinned vCPU. Printed: the distance between the true
and the reported shares (total variation, 0 to 1) and whether the costliest stage is named, a tie
within two points being right.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

PIPELINES = ("jpeg", "heavy", "python")
NAMES = ("read", "decode", "resize", "augment", "batch")
WAYS = ("live", "deep")
TIE = 0.02
# Elements in memory, and passes through them, so that starting a pass weighs nothing.
HELD, PASSES, ROUNDS = 16, 8, 5
MODULE = Path(__file__).with_name("profile_pipelines.py")


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    if arguments.truth:
        print(json.dumps(measure_truth(arguments.truth)))
        sys.stdout.flush()
        os._exit(0)
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_BENCH_PHOTOS"] = folder
        make_photos(folder)
        os.sched_setaffinity(0, {min(everywhere)})
        rows = [row for name in PIPELINES for row in compare(name, arguments)]
    os.sched_setaffinity(0, everywhere)
    for way in WAYS:
        show_way(way, [row for row in rows if row["way"] == way])


def show_way(way: str, rows: list[dict[str, Any]]) -> None:
    right = sum(row["top1"] for row in rows)
    print(f"{way}: costliest stage named: {right} of {len(rows)}")
    for name in PIPELINES:
        mine = [row["tvd"] for row in rows if row["pipeline"] == name]
        print(f"{way}: share error (TVD) {name}: median {median(mine):.3f}, worst {max(mine):.3f}")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--truth", choices=PIPELINES, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def compare(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Profile one pipeline with two calls and with as many as tf.data likes."""
    from tpuctl.profiling.profile import profile_target

    truth = in_child("--truth", name)
    print(f"{name}: truth      {show(truth)}")
    runs = [(calls, way) for calls in ("2", "-1") for way in WAYS]
    rows = []
    for calls, way in runs * arguments.repeats:
        os.environ["TPUCTL_BENCH_CALLS"] = calls
        profile = profile_target(f"{MODULE}:{name}", seconds=arguments.seconds, deep=way == "deep")
        shares = normal({plain(each.name): each.cpu_ms_per_example for each in profile.stages})
        row = {
            "pipeline": name,
            "way": way,
            "tvd": distance(truth, shares),
            "top1": same_top(truth, shares),
        }
        rows.append(row)
        print(
            f"{name}: {'autotune' if calls == '-1' else calls + ' calls ':9} {show(shares)}  "
            f"TVD {row['tvd']:.3f}  top-1 {'right' if row['top1'] else 'WRONG'}  "
            f"[{way}; {profile.verdict}; {profile.stages[0].method}; "
            f"others {other_share(profile):.0%} of the vCPUs]",
            flush=True,
        )
    return rows


def plain(name: str) -> str:
    """The stage that a function of the suite stands for."""
    return name.removeprefix("heavy_").removeprefix("python_")


def other_share(profile: Any) -> float:
    signals = profile.signals
    return (signals.other_cpu_s or 0.0) / signals.wall_s / signals.vcpus_visible


def in_child(*words: str) -> dict[str, float]:
    output = subprocess.run(
        [sys.executable, str(Path(__file__)), *words],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    ).stdout
    shares: dict[str, float] = json.loads(output.splitlines()[-1])
    return shares


def make_photos(folder: str) -> None:
    code = (
        f"from pathlib import Path; import profile_pipelines as p; p.make_photos(Path({folder!r}))"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=MODULE.parent, stderr=subprocess.DEVNULL
    )


def measure_truth(name: str) -> dict[str, float]:
    """Take each stage's CPU time alone, in the process that this is."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sys.path.insert(0, str(MODULE.parent))
    import profile_pipelines as pipelines
    import tensorflow as tf

    augment = {"jpeg": "augment", "heavy": "heavy_augment", "python": "python_augment"}[name]
    functions = [pipelines.read, pipelines.decode, pipelines.resize, getattr(pipelines, augment)]
    held = tf.data.Dataset.from_tensor_slices(pipelines.photos()[:HELD]).cache()
    costs = {}
    for stage, function in zip(NAMES, functions, strict=False):
        source = held.repeat(PASSES)
        costs[stage] = alone(tf, source, source.map(function))
        held = held.map(function).cache()
    source = held.repeat(PASSES)
    batches = source.batch(pipelines.BATCH, drop_remainder=True)
    costs["batch"] = alone(tf, source, batches, each=pipelines.BATCH)
    return normal(costs)


def alone(tf: Any, source: Any, dataset: Any, *, each: int = 1) -> float:
    """CPU seconds of a pass through the stage beyond one through its inputs.

    Of both goes off what counting takes: a pass through as many numbers as come out of them.
    """
    elements = HELD * PASSES
    numbers, fewer = tf.data.Dataset.range(elements), tf.data.Dataset.range(elements // each)

    def cost(which: Any) -> float:
        start = time.process_time()
        which.reduce(tf.constant(0), lambda count, _: count + 1)
        return time.process_time() - start

    for which in (source.take(HELD), dataset.take(1)):
        cost(which)
    rounds = [(cost(dataset) - cost(fewer)) - (cost(source) - cost(numbers)) for _ in range(ROUNDS)]
    return max(0.0, median(rounds))


def normal(costs: dict[str, float]) -> dict[str, float]:
    total = sum(costs.get(name, 0.0) for name in NAMES)
    return {name: costs.get(name, 0.0) / total for name in NAMES}


def distance(truth: dict[str, float], shares: dict[str, float]) -> float:
    return sum(abs(truth[name] - shares[name]) for name in NAMES) / 2


def same_top(truth: dict[str, float], shares: dict[str, float]) -> bool:
    return truth[max(shares, key=shares.__getitem__)] >= max(truth.values()) - TIE


def show(shares: dict[str, float]) -> str:
    return "  ".join(f"{name} {shares[name]:5.1%}" for name in NAMES)


if __name__ == "__main__":
    main(sys.argv[1:])
