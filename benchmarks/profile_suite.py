"""Is the verdict of `profile` right, on pipelines whose cause is known by construction?

    python -m benchmarks profile_suite
    python -m benchmarks.profile_suite --only tiny,transfer --seconds 6

A run in which other programs took a notable part of the vCPUs is repeated; the thresholds were
fitted on the part `fit`, and what counts is the part `held out`. Pipelines whose framework is not
installed are left out, and named.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULE = Path(__file__).with_name("labelled_pipelines.py")
OLDER = MODULE.with_name("profile_pipelines.py")
QUIET, TRIES = 0.15, 3


@dataclass(frozen=True)
class Label:
    """A pipeline, the device it feeds, what is true of it, and which part of the suite it is in."""

    name: str
    step_ms: float
    verdicts: tuple[str, ...]
    stage: str | None
    part: str
    needs: str = "tensorflow"


LABELS = (
    Label("jpeg", 20, ("vcpu",), "decode", "fit"),
    Label("heavy", 20, ("vcpu",), None, "held out"),
    Label("python", 20, ("gil",), "python_augment", "fit"),
    Label("generator", 5, ("gil",), "from_generator", "held out"),
    Label("slowio", 20, ("io", "threadpool"), "slow_read", "fit"),
    Label("slowio_wide", 20, ("threadpool",), "slow_read", "held out"),
    Label("serial", 20, ("serial",), "decode", "fit"),
    Label("serial_interleave", 1, ("serial",), None, "held out"),
    Label("tiny", 0.01, ("serial",), None, "held out"),
    Label("batch_bound", 5, ("serial",), "batch", "held out"),
    Label("transfer", 5, ("transfer",), "transfer", "held out", "jax"),
    Label("bursty", 8, ("bursty",), "work", "fit"),
    Label("fast", 50, ("device",), None, "fit"),
    Label("slow_start", 20, ("startup",), None, "held out"),
    Label("torch_sleeps", 20, ("io",), "nap", "fit", "torch"),
    Label("torch_alone", 20, ("serial",), "matrices", "held out", "torch"),
    Label("torch_one_worker", 20, ("serial",), "matrices", "held out", "torch"),
    Label("torch_workers", 20, ("vcpu",), "matrices", "held out", "torch"),
    Label("torch_python", 10, ("gil", "serial"), "loop", "held out", "torch"),
    Label("grain_python", 10, ("gil",), "loop", "fit", "grain"),
    Label("grain_sleeps", 20, ("io",), "nap", "held out", "grain"),
    Label("grain_works", 20, ("vcpu",), "matrices", "held out", "grain"),
    Label("iterable_sleeps", 20, ("io",), "nap", "held out", "numpy"),
    Label("iterable_works", 20, ("serial",), "matrices", "fit", "numpy"),
    Label("iterable_bursts", 30, ("bursty",), None, "held out", "numpy"),
)


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    chosen = [label for label in LABELS if not arguments.only or label.name in arguments.only]
    there = [label for label in chosen if importlib.util.find_spec(label.needs)]
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_BENCH_PHOTOS"] = folder
        if any(label.needs == "tensorflow" for label in there):
            make_photos(folder)
        rows = [judge(label, arguments) for label in there]
    for part in ("fit", "held out"):
        results = [row for label, row in zip(there, rows, strict=True) if label.part == part]
        counts = {word: results.count(word) for word in ("right", "unknown", "wrong")}
        print(f"verdicts, {part}: {counts}")
    missing = sorted({label.needs for label in chosen if label not in there})
    if missing:
        print(f"left out, not installed: {', '.join(missing)}")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--only", type=lambda text: text.split(","), default=None)
    return parser.parse_args(words)


def judge(label: Label, arguments: argparse.Namespace) -> str:
    """Profile one pipeline, again while others disturb it, and compare with its label."""
    profile = take(label, arguments.seconds)
    for _ in range(arguments.tries - 1):
        if disturbance(profile) < QUIET:
            break
        profile = take(label, arguments.seconds)
    result = "unknown" if profile.verdict == "unknown" else "wrong"
    # Neighbours that are really there may be blamed for what would else be our own doing.
    stolen = disturbance(profile) >= QUIET and "vcpu" in label.verdicts
    if profile.verdict in (*label.verdicts, *(["stolen"] if stolen else [])):
        result = "right"
    named = next((stage.name for stage in profile.stages if stage.is_bottleneck), None)
    stage_ok = label.stage is None or (named is not None and label.stage in named)
    wait = profile.input_wait_fraction
    print(
        f"{label.name:18} {'/'.join(label.verdicts):16} {profile.verdict:10} {result:8}"
        f" stage {'ok' if stage_ok else f'{named} and not {label.stage}'}"
        f"  [wait {0.0 if wait is None else wait:.0%}, others {disturbance(profile):.0%}]",
        flush=True,
    )
    if result != "right":
        for line in profile.evidence:
            print(f"{'':18} - {line}", flush=True)
    return result


def take(label: Label, seconds: float) -> Any:
    from tpuctl.pipeline import profile_target

    module = MODULE if f"def {label.name}(" in MODULE.read_text() else OLDER
    place = f"{module}:{label.name}"
    return profile_target(place, seconds=seconds, batch_size=16, device_step_ms=label.step_ms)


def disturbance(profile: Any) -> float:
    """The share of the vCPUs that others took."""
    signals = profile.signals
    return (signals.other_cpu_s or 0.0) / signals.wall_s / signals.vcpus_visible


def make_photos(folder: str) -> None:
    code = "from pathlib import Path; import sys; import profile_pipelines as p; "
    code += "p.make_photos(Path(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", code, folder],
        check=True,
        cwd=MODULE.parent,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
