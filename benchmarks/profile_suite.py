"""Is the verdict of `profile` right, on pipelines whose cause is known by construction?

    python -m benchmarks profile_suite
    python -m benchmarks.profile_suite --only tiny,transfer --seconds 6
    python -m benchmarks.profile_suite --keep benchmarks/labelled_measurements.jsonl

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
from pathlib import Path

from benchmarks.profile_labels import LABELS, QUIET, Label, disturbance, grade, summary
from benchmarks.profile_records import conclude, keep
from tpuctl.errors import TpuctlError
from tpuctl.profiling.models import Measurement
from tpuctl.profiling.profile import measure
from tpuctl.profiling.request import Request, parse_target
from tpuctl.progress import silent

MODULE = Path(__file__).with_name("labelled_pipelines.py")
OLDER = MODULE.with_name("profile_pipelines.py")
TRIES = 3


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    chosen = [label for label in LABELS if not arguments.only or label.name in arguments.only]
    there = [label for label in chosen if importlib.util.find_spec(label.needs)]
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ["TPUCTL_BENCH_PHOTOS"] = folder
        if any(label.needs == "tensorflow" for label in there):
            make_photos(folder)
        rows = [try_to_judge(label, arguments) for label in there]
    for part in ("fit", "held out"):
        results = [row for label, row in zip(there, rows, strict=True) if label.part == part]
        print(summary(part, results))
    missing = sorted({label.needs for label in chosen if label not in there})
    if missing:
        print(f"left out, not installed: {', '.join(missing)}")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--keep", type=Path, help="add every measurement to this file")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None)
    return parser.parse_args(words)


def try_to_judge(label: Label, arguments: argparse.Namespace) -> str:
    """Judge one pipeline; one that cannot be measured does not stop the others."""
    try:
        return judge(label, arguments)
    except TpuctlError as error:
        print(f"{label.name:18} could not be measured: {error}", flush=True)
        return "wrong"


def judge(label: Label, arguments: argparse.Namespace) -> str:
    """Profile one pipeline, again while others disturb it, and compare with its label."""
    for _ in range(arguments.tries):
        measured = take(label, arguments.seconds)
        profile = conclude(label, measured)
        if label.verdicts == ("stolen",) or disturbance(measured.phases[0].signals) < QUIET:
            break
    if arguments.keep:
        keep(arguments.keep, label.name, measured)
    signals = measured.phases[0].signals
    result = grade(label, profile.verdict, signals)
    named = next((stage.name for stage in profile.stages if stage.is_bottleneck), None)
    stage_ok = label.stage is None or (named is not None and label.stage in named)
    wait = profile.input_wait_fraction
    print(
        f"{label.name:18} {'/'.join(label.verdicts):16} {profile.verdict:10} {result:8}"
        f" stage {'ok' if stage_ok else f'{named} and not {label.stage}'}"
        f"  [wait {0.0 if wait is None else wait:.0%}, others {disturbance(signals):.0%}]",
        flush=True,
    )
    if result != "right":
        for line in profile.evidence:
            print(f"{'':18} - {line}", flush=True)
    return result


def take(label: Label, seconds: float) -> Measurement:
    """Measure one pipeline in a process of its own."""
    module = MODULE if f"def {label.name}(" in MODULE.read_text() else OLDER
    request = Request(
        target=parse_target(f"{module}:{label.name}"),
        batch_size=16,
        image_size=224,
        seconds=seconds,
        steps=None,
        device_step_ms=label.step_ms,
        wait_limit_s=max(30.0, 4 * seconds),
    )
    return measure(request, on_progress=silent)


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
