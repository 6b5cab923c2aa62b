"""Which stage costs the CPU time: tpuctl, XProf and py-spy on the same pipelines.

The truth is each stage alone (benchmarks/profile_attribution.py). The error of an answer is the
total variation distance between its shares and the true ones, 0 to 1. XProf's answer is the self
time of its operations and of the batch iterator, each counted for the stage whose function has it;
py-spy's the samples in the function of the stage. A part of docs/peers.md:

    python -m benchmarks.side_by_side attribution
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import profile_attribution as suite
from benchmarks.peers import make_environment

HEAD = (
    "| pipeline | tool | error of the shares, median (worst) | costliest stage |",
    "|---|---|---|---|",
)
PINS = {"xprof": ("xprof==2.24.2",), "py-spy": ("py-spy==0.4.3",)}
PIPELINES = {
    "jpeg": "tf.data, JPEG decoding",
    "heavy": "tf.data, heavy augmentation",
    "python": "tf.data with a Python function",
    "iterable": "Python functions alone",
}
ROUNDS, SECONDS, RATE = 2, 5.0, 100
STAGE_OF = {"ReadFile": "read", "DecodeJpeg": "decode", "ResizeBilinear": "resize"}
SPIED = {
    "read": "read", "decode": "decode", "resize": "resize", "augment": "augment",
    "shift": "augment", "stack": "batch",
}  # fmt: skip
_XPROF = """
import sys
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
found, _ = xspace_to_tool_data([sys.argv[1]], "framework_op_stats", {})
sys.stdout.write(found.decode() if isinstance(found, bytes) else found)
"""
Shares = dict[str, float]


def table() -> list[str]:
    """The lines of the table, all tools in turns."""
    names = {name: f"{name} {pin[0].partition('==')[2]}" for name, pin in PINS.items()}
    tools = {"tpuctl": ours, names["xprof"]: xprof, names["py-spy"]: py_spy}
    lines = list(HEAD)
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ |= {"TPUCTL_BENCH_PHOTOS": folder, "TPUCTL_BENCH_CALLS": "2"}
        suite.make_photos(folder)
        for name in PIPELINES:
            lines += _rows(name, tools)
    return lines


def _rows(name: str, tools: dict[str, Callable[[str], Shares]]) -> list[str]:
    truth = own_truth() if name == "iterable" else suite.in_child("--truth", name)
    print(f"{name}: truth {suite.show(truth)}", flush=True)
    answers: dict[str, list[Shares]] = {tool: [] for tool in tools}
    for _ in range(ROUNDS):
        for tool, ask in tools.items():
            answers[tool].append(ask(name))
            print(f"{name}: {tool} {answers[tool][-1]}", flush=True)
    return [
        f"| {PIPELINES[name]} | {tool} | {_verdict(truth, said)} |"
        for tool, said in answers.items()
    ]


def _verdict(truth: Shares, said: list[Shares]) -> str:
    known = [suite.normal(each) for each in said if any(map(each.get, suite.NAMES))]
    if not known:
        return "sees none of the stages | not named"
    errors = [suite.distance(truth, each) for each in known]
    right = sum(suite.same_top(truth, each) for each in known)
    return f"{median(errors):.3f} ({max(errors):.3f}) | named in {right} of {len(said)}"


def ours(name: str) -> Shares:
    """What `tpuctl profile run` says."""
    from tpuctl.profiling.profile import profile_target

    profile = profile_target(f"{suite.MODULE}:{name}", seconds=SECONDS)
    shares: Shares = {}
    for each in profile.stages:
        # A method of the suite, or the library's call in it; the generator itself stacks.
        stage = suite.plain(each.name.rpartition(".")[2]).replace("iterable", "batch")
        shares[stage] = shares.get(stage, 0.0) + (each.cpu_ms_per_example or 0.0)
    return shares


def xprof(name: str) -> Shares:
    """What XProf's operation statistics say of a trace."""
    with tempfile.TemporaryDirectory() as folder:
        _watched(name, folder)
        trace = next(Path(folder).rglob("*.xplane.pb"), None)
        if trace is None:
            return {}
        python = make_environment("xprof", PINS["xprof"])
        said = subprocess.run(
            [python, "-c", _XPROF, trace], check=True, capture_output=True, text=True
        ).stdout
    tables = json.loads(said)
    rows = [[cell and cell.get("v") for cell in row["c"]] for row in tables[0]["rows"]]
    shares: Shares = {}
    for _, where, kind, operation, _, _, _, self_time, *_ in rows:
        if (
            where != "Host"
            or kind == "IDLE"
            or (kind == "Dataset" and "Batch" not in operation.split("::")[-1])
        ):
            continue
        stage = "batch" if kind == "Dataset" else STAGE_OF.get(kind, "augment")
        shares[stage] = shares.get(stage, 0.0) + self_time
    return shares


def py_spy(name: str) -> Shares:
    """The samples that py-spy took in the functions of the stages, the innermost counting."""
    python = make_environment("py-spy", PINS["py-spy"])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "samples")
        spy = [
            str(python.with_name("py-spy")),
            "record",
            "-r",
            str(RATE),
            "-f",
            "raw",
            "-o",
            str(out),
            "--",
        ]
        _watched(name, None, before=spy)
        lines = out.read_text(encoding="utf-8").splitlines()
    shares: Shares = {}
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [
            frame.split(" (")[0].rpartition(".")[2]
            for frame in stack.split(";")
            if "profile_pipelines" in frame or frame.startswith("stack")
        ]
        stage = next((SPIED[each] for each in reversed(frames) if each in SPIED), None)
        if stage:
            shares[stage] = shares.get(stage, 0.0) + int(count)
    return shares


def _watched(name: str, trace: str | None, before: list[str] | None = None) -> None:
    command = [*(before or []), sys.executable, __file__, name, trace or ""]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, **quiet)  # type: ignore[call-overload]


def own_truth() -> Shares:
    """CPU time of each Python function alone, on inputs in memory."""
    import numpy as np

    from benchmarks import profile_pipelines as pipelines

    held: list[Any] = pipelines.photos()[: suite.HELD]
    costs = {}
    for stage, function in pipelines.PYTHON_STAGES.items():
        begun = time.process_time()
        made = [function(each) for each in held]
        costs[stage] = time.process_time() - begun
        held = made
    begun = time.process_time()
    np.stack(held)
    costs["batch"] = time.process_time() - begun
    return suite.normal(costs)


def _run(name: str, trace: str) -> None:
    """Take batches for a while, traced or not; this is the process that is watched."""
    from benchmarks import profile_pipelines as pipelines

    batches: Any = iter(getattr(pipelines, name)())
    next(batches)
    if trace and name != "iterable":
        pipelines.tf.profiler.experimental.start(trace)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        next(batches)
    if trace and name != "iterable":
        pipelines.tf.profiler.experimental.stop()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _run(*sys.argv[1:])
