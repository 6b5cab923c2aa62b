"""What is true of each labelled pipeline, and whether a profile of it says so."""

import math
from dataclasses import dataclass

from tpuctl.profiling.windows import Signals

# With more of the vCPUs taken by others a run says as much about them as about the pipeline.
QUIET = 0.15
GRADES = ("right", "unknown", "wrong")
# In all else neighbours have a part when they are really there.
NOT_BY_NEIGHBOURS = {"io", "startup"}


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
    Label("generator", 5, ("gil",), "from_generator", "fit"),
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
    Label("small_pool", 2, ("threadpool",), "work", "held out"),
    Label("enough_threads", 20, ("io",), "call", "fit"),
    Label("fine_python", 4, ("gil",), "call", "held out"),
    Label("threads_that_sleep", 10, ("io",), None, "held out", "numpy"),
    Label("threads_at_work", 10, ("vcpu",), None, "held out", "numpy"),
    Label("slow_pipe", 10, ("io",), None, "held out", "numpy"),
    Label("neighbours", 10, ("stolen",), None, "fit", "numpy"),
    Label("torch_python_workers", 10, ("vcpu",), "loop", "held out", "torch"),
)


def grade(label: Label, verdict: str, signals: Signals) -> str:
    """Say whether a verdict is right, an abstention, or wrong."""
    if verdict == "unknown":
        return "unknown"
    blamed = verdict == "stolen" and disturbance(signals) >= QUIET
    right = verdict in label.verdicts or (blamed and set(label.verdicts) - NOT_BY_NEIGHBOURS)
    return "right" if right else "wrong"


def disturbance(signals: Signals) -> float:
    """The share of the vCPUs that others took."""
    return (signals.other_cpu_s or 0.0) / signals.wall_s / signals.vcpus_visible


def summary(part: str, grades: list[str]) -> str:
    """A line that says how many were right, and whether that is what we want."""
    counts = {each: grades.count(each) for each in GRADES}
    allowed = math.ceil(len(grades) / 12)
    verdict = "met" if not counts["wrong"] and counts["unknown"] <= allowed else "not met"
    return f"verdicts, {part}: {counts} (none wrong and at most {allowed} unknown: {verdict})"
