"""Compare what `profile run` says of public pipelines with what is true of them.

    python -m benchmarks.pipelines
    python -m benchmarks.pipelines --part seen --only big_vision,vit_jax --repeat 3

Each file in `cases/` is a pipeline written after a public one, with inputs made here. `truth`
finds out what limits it and which stage costs most, without tpuctl. Half of the pipelines, chosen
by the hash of their source's address, was never looked at while rules were changed, except those
in `OPENED`, which count as seen. A pipeline whose truths disagree is dropped and named, and one
whose framework is missing left out.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.pipelines.inputs import FOLDER, make_all
from benchmarks.pipelines.truth import CASES, LITTLE, QUIET, REST, TIE, Truth
from tpuctl.profiling.called import DECODE_IN

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_S = 400
# Of the unseen half: rules were changed for what went wrong in these.
OPENED = (
    *("cached_cifar", "codeparrot_chunks", "csv_table", "grain_masking", "grain_text"),
    *("gzip_interleave", "nmt_buckets", "siamese_triplets", "tacotron2_mels"),
    *("bert_pretrain", "driving_batches", "nanodo_packing", "scipy_spectrogram", "unet_sequence"),
)


@dataclass(frozen=True)
class Case:
    """One pipeline: its file, where it is from, and which half it belongs to."""

    name: str
    source: str
    needs: str
    stages: dict[str, str]
    is_program: bool

    @property
    def part(self) -> str:
        """By the hash of the source, so that nobody chose, unless it was opened since."""
        if self.name in OPENED:
            return "seen"
        return ("seen", "unseen")[int(hashlib.sha256(self.source.encode()).hexdigest(), 16) % 2]

    @property
    def target(self) -> str:
        return f"{CASES / self.name}.py"


@dataclass(frozen=True)
class Row:
    """What is true, what was said, and whether the two agree."""

    case: Case
    truth: Truth
    profile: dict[str, Any]
    verdict_ok: bool
    stage: str
    stage_ok: bool
    others: float


def read_case(path: Path) -> Case:
    """Read a pipeline's facts without importing its framework."""
    text = path.read_text()
    facts: dict[str, Any] = {}
    for name in ("SOURCE", "NEEDS", "STAGES"):
        found = re.search(rf"^{name} = (\(.*?^\)|{{.*?}}|\".*?\")$", text, re.M | re.S)
        assert found, f"{path} has no {name}"
        facts[name] = eval(found[1])
    is_program = "\nIS_PROGRAM = True" in text
    return Case(path.stem, facts["SOURCE"], facts["NEEDS"], facts["STAGES"], is_program)


def main(words: Sequence[str] = ()) -> None:
    arguments = read_arguments(words)
    cases = [read_case(path) for path in sorted(CASES.glob("*.py"))]
    cases = [each for each in cases if arguments.part in ("both", each.part)]
    cases = [each for each in cases if not arguments.only or each.name in arguments.only]
    there = [each for each in cases if find_spec(each.needs)]
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        os.environ.setdefault(FOLDER, folder)
        os.environ["PYTHONPATH"] = str(ROOT)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        make_all()
        truths = find_truths(there, arguments.repeat, Path(folder))
        rows = [compare(each, truths[each.name], arguments) for each in there]
    lines = report(rows, [each for each in cases if each not in there])
    print("\n".join(lines[lines.index("") :]))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("seen", "unseen", "both"), default="both")
    parser.add_argument("--only", type=lambda text: text.split(","), default=None)
    parser.add_argument("--repeat", type=int, default=2, help="rounds of leaving stages out")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each profile")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    parser.add_argument("--keep", type=Path, help="add every truth and profile to this file")
    return parser.parse_args(words)


def find_truths(cases: list[Case], repeat: int, folder: Path) -> dict[str, Truth]:
    """Find out what is true; TensorFlow is slow to import, so all of its share a process."""
    of_tensorflow = [each.name for each in cases if each.needs == "tensorflow"]
    groups = [[each.name] for each in cases if each.needs != "tensorflow"]
    place = folder / f"truths.{os.getpid()}"
    place.touch()
    for names in filter(None, [of_tensorflow, *groups]):
        words = [*names, "--repeat", str(repeat), "--out", str(place)]
        command = [sys.executable, "-m", "benchmarks.pipelines.truth", *words]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=ROOT,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIME_LIMIT_S * len(names),
            )
        print(f"left stages out of {', '.join(names)}", flush=True)
    found = {each["name"]: Truth(**each) for each in map(json.loads, place.open())}
    return {
        each.name: found.get(each.name) or Truth(each.name, why_dropped="its process ended")
        for each in cases
    }


def compare(case: Case, truth: Truth, arguments: argparse.Namespace) -> Row:
    """Profile, and compare with what is true."""
    profile = {} if truth.why_dropped else take_profile(case, truth, arguments.seconds)
    row = grade(case, truth, profile)
    if arguments.keep:
        with arguments.keep.open("a") as file:
            file.write(json.dumps({"truth": vars(truth), "profile": profile}) + "\n")
    print(line_of(row), flush=True)
    return row


def take_profile(case: Case, truth: Truth, seconds: float) -> dict[str, Any]:
    """Run the command that a user runs."""
    command = [sys.executable, "-m", "tpuctl", "profile", "run", "--seconds", str(seconds)]
    if case.is_program:
        command += ["--json", "--", sys.executable, case.target]
    else:
        command += ["--device-step-ms", f"{truth.step_ms:.4g}", "--json", f"{case.target}:make"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(process.communicate(timeout=TIME_LIMIT_S)[0])
    except (ValueError, subprocess.TimeoutExpired) as error:
        return {"error": {"message": f"{type(error).__name__}"}}
    finally:
        with contextlib.suppress(ProcessLookupError):
            # With it ends the program that it profiles, if it did not.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return found


def grade(case: Case, truth: Truth, profile: dict[str, Any]) -> Row:
    """Compare the verdict, which neighbours may have a part in, and the costliest stage."""
    result = profile.get("data") or profile
    verdict = result.get("verdict", "failed")
    signals = result.get("signals") or {}
    wall_s = signals.get("wall_s") or 1.0
    others = (signals.get("other_cpu_s") or 0.0) / wall_s / (signals.get("vcpus_visible") or 1)
    blamed = verdict == "stolen" and others >= QUIET and truth.limit != "waiting"
    stage, *equals = costliest(truth, result, is_program=case.is_program)
    words = [case.stages[each] for each in truth.stages if each != REST]
    right = any(re.search(each, name) for each in words for name in (stage, *equals))
    if REST in truth.stages:
        right |= not any(re.search(each, stage) for each in case.stages.values())
    return Row(case, truth, result, verdict in truth.verdicts or blamed, stage, right, others)


def costliest(truth: Truth, result: dict[str, Any], *, is_program: bool = False) -> list[str]:
    """The stage that a reader of the profile would work on: the named one, else the costliest.

    Its equals follow, as in the truth. What a program's stages do not claim is its training, which
    the truth has not.
    """
    stages = result.get("stages") or []
    named = [each for each in stages if each.get("is_bottleneck")]
    rest = (result.get("residual") or {}).get("cpu_ms_per_example") or 0.0
    rest = 0.0 if is_program else rest
    sums: dict[str, float] = {}
    for each in stages:
        function = each["name"].removeprefix(DECODE_IN)
        sums[function] = sums.get(function, 0.0) + each["cpu_ms_per_example"]
    largest = max(sums, key=sums.__getitem__, default=None)
    claimed = sum(sums.values())
    # As of the truth: the rest is many things, and no stage to work on.
    is_little = claimed < LITTLE * (claimed + rest) and truth.limit != "waiting"
    if largest is None or is_little:
        return [REST]
    stage = str(named[0]["name"]) if named else largest
    equals = [name for name, cost in sums.items() if cost >= TIE * sums[largest]]
    return [stage, *(equals if stage.removeprefix(DECODE_IN) in equals else ())]


def line_of(row: Row) -> str:
    truth, name = row.truth, row.case.name
    if truth.why_dropped:
        return f"| {row.case.part} | {name} | dropped: {truth.why_dropped} | | | | | |"
    said = row.profile.get("verdict") or f"failed: {row.profile.get('error') or row.profile}"[:80]
    total = sum(truth.saved_ms.values()) or 1.0
    true = ", ".join(f"{each} {truth.saved_ms[each] / total:.0%}" for each in truth.stages)
    cells = (
        row.case.part, name, "/".join(truth.verdicts), said, "yes" if row.verdict_ok else "NO",
        true, row.stage, "yes" if row.stage_ok else "NO",
    )  # fmt: skip
    return f"| {' | '.join(cells)} | {row.others:.0%} |"


def report(rows: list[Row], missing: list[Case]) -> list[str]:
    """The table, the rates of both halves, every piece of advice, and what was left out."""
    lines = [
        "| half | pipeline | limit | said | right | costliest stage | said | right | others |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(line_of, sorted(rows, key=lambda row: (row.case.part, row.case.name))),
        "",
    ]
    for part in ("seen", "unseen"):
        mine = [row for row in rows if row.case.part == part and not row.truth.why_dropped]
        if mine:
            lines.append(f"{part}: {_rates(mine)}")
    lines.append("")
    for row in rows:
        lines += [
            f"{row.case.name}: {a['what']} [{a['change']}]" for a in row.profile.get("advice") or ()
        ]
    if missing:
        names = ", ".join(f"{each.name} ({each.needs})" for each in missing)
        lines.append(f"left out, not installed: {names}")
    return lines


def _rates(rows: list[Row]) -> str:
    verdicts, stages = sum(r.verdict_ok for r in rows), sum(r.stage_ok for r in rows)
    both = sum(r.verdict_ok and r.stage_ok for r in rows)
    return (
        f"verdict right in {verdicts} of {len(rows)}, costliest stage in {stages}, "
        f"both in {both} ({both / len(rows):.0%})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
