"""What is true of a pipeline, without tpuctl: `python -m benchmarks.pipelines.truth NAME...`.

Every stage is replaced in turn by what it had computed before: what that saves is its cost. CPU
time is compared, which other programs change little; repeats alternate, and their median counts.
Elapsed time counts where helper threads burn CPU time beside the one that limits, and time without
CPU use where nothing runs: what is left without the wait is the next limit, not the rest's cost.
Throughput on one vCPU against all, threads that run or could run, and py-spy tell what limits it:
threads that hand work to each other, or wait for the lock, could run and gain nothing from a vCPU.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pipelines.inputs import WITHOUT

CASES = Path(__file__).with_name("cases")
WARM_CPU_S, WARM_WALL_S, FILL_S = 0.4, 0.8, 4.0
# Long beside what buffers hold, which are filled and emptied without an example coming out.
LEAST_CPU_S, LEAST_WALL_S, MOST_WALL_S, WAITING_S = 1.0, 0.5, 15.0, 1.2
SPY_S = 2
QUIET, TIE, LITTLE = 0.15, 0.8, 0.33
# All vCPUs make it so many times faster than one: hardly, as they should, and at most if busy.
HARDLY, GAINS, SURELY = 1.2, 1.5, 1.7
# One thread holds the lock for most of the time, or, of 100 samples, half of it, give or take 0.1;
# helper threads use more than one thread's CPU.
HELD, SPIED, HELPED = 0.8, 0.4, 1.15
NEARLY = 0.02  # A consumer that waits longer is kept busy only on average.
REST = "(rest)"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Span:
    """One stretch of reading: per example, and what the machine did meanwhile."""

    cpu_ms: float
    wall_ms: float
    batch: float
    runnable: float
    busy: float
    others: float

    @property
    def waiting_ms(self) -> float:
        """Time in which not even one thread ran."""
        return max(0.0, self.wall_ms - self.cpu_ms)


@dataclass
class Truth:
    """What is true of a pipeline, with the evidence; `why_dropped` where its parts disagree."""

    name: str
    limit: str = ""
    verdicts: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    step_ms: float = 0.0
    saved_ms: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, float] = field(default_factory=dict)
    why_dropped: str = ""


def load(name: str, without: str | None = None) -> Any:
    """Import a pipeline again, with one stage left out."""
    os.environ.pop(WITHOUT, None)
    if without:
        os.environ[WITHOUT] = without
    spec = importlib.util.spec_from_file_location(f"case_{name}", CASES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def batches(module: Any) -> Iterator[Any]:
    """Epoch after epoch; what the first one caches is not in the others."""
    data = module.make()
    if ".cache(" in Path(module.__file__).read_text():
        end_s = time.perf_counter() + FILL_S
        deque(itertools.takewhile(lambda _: time.perf_counter() < end_s, data), maxlen=0)
    while True:
        if isinstance(data, Iterator):
            yield from data
            data = module.make()
        elif hasattr(data, "workers"):
            yield from in_threads(data)
        else:
            yield from data


def in_threads(data: Any) -> Iterator[Any]:
    """A PyDataset as Keras reads it: by as many threads as it says, a few batches ahead."""
    with ThreadPoolExecutor(data.workers) as pool:
        ahead: deque[Any] = deque()
        for index in range(len(data)):
            ahead.append(pool.submit(data.__getitem__, index))
            if len(ahead) > data.workers:
                yield ahead.popleft().result()
        yield from (each.result() for each in ahead)


def examples(batch: Any) -> int:
    while not hasattr(batch, "shape"):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch
        if isinstance(batch, list) and not hasattr(batch[0], "shape"):
            return len(batch)
        batch = batch[0] if isinstance(batch, (list, tuple)) else batch
    return int(batch.shape[0])


def family() -> list[Path]:
    """This process and its workers."""
    me = Path(f"/proc/{os.getpid()}")
    found = [me]
    for children in me.glob("task/*/children"):
        with contextlib.suppress(OSError):
            found += [Path(f"/proc/{pid}") for pid in children.read_text().split()]
    return found


DELAYS: dict[Path, int] = {}
DELAYED = [0.0]


def delayed_s() -> float:
    """Seconds that threads waited for a vCPU, also those that ended between two calls."""
    for place in family():
        for each in place.glob("task/*/schedstat"):
            with contextlib.suppress(OSError):
                delay = int(each.read_text().split()[1])
                DELAYED[0] += max(0, delay - DELAYS.get(each, 0)) / 1e9
                DELAYS[each] = delay
    return DELAYED[0]


def counters() -> dict[str, float]:
    """CPU seconds of the family, seconds its threads waited for a vCPU, and of all the machine."""
    times = os.times()
    cpu_s = time.process_time() + times.children_user + times.children_system
    for place in family():
        with contextlib.suppress(OSError):
            if place.name != str(os.getpid()):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                cpu_s += (int(fields[11]) + int(fields[12])) * TICK_S
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
    machine_s = (sum(ticks) - ticks[3] - ticks[4]) * TICK_S
    return {"wall": time.perf_counter(), "cpu": cpu_s, "delay": delayed_s(), "machine": machine_s}


def pin(vcpus: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), vcpus)


def span(name: str, without: str | None = None, vcpus: set[int] | None = None) -> Span:
    """Read from a pipeline for about a second of CPU time."""
    everywhere = os.sched_getaffinity(0)
    pin(vcpus or everywhere)
    try:
        with contextlib.closing(batches(load(name, without))) as data:  # type: ignore[type-var]
            start = counters()
            next(data), next(data)
            while (now := counters())["cpu"] - start["cpu"] < WARM_CPU_S:
                if now["wall"] - start["wall"] > WARM_WALL_S:
                    break
                next(data)
            return stretch(data, len(vcpus or everywhere))
    finally:
        pin(everywhere)
        os.environ.pop(WITHOUT, None)


def stretch(data: Iterator[Any], vcpus: int) -> Span:
    start, count, steps, looked_s = counters(), 0, 0, 0.0
    while True:
        count, steps = count + examples(next(data)), steps + 1
        if time.perf_counter() - looked_s < LEAST_WALL_S / 6:
            continue
        looked_s = time.perf_counter()
        end = counters()
        wall, cpu, delay, machine = (end[key] - start[key] for key in start)
        is_waiting = wall > WAITING_S and (cpu + delay) < 0.6 * wall
        if (cpu > LEAST_CPU_S and wall > LEAST_WALL_S) or is_waiting or wall > MOST_WALL_S:
            break
    others = max(0.0, machine - cpu) / wall / (os.cpu_count() or 1)
    scale = 1000 / count
    return Span(
        cpu * scale, wall * scale, count / steps, (cpu + delay) / wall, cpu / wall / vcpus, others
    )


def spy(name: str, stages: dict[str, str]) -> dict[str, float]:
    """The share of py-spy's samples in each stage, and of the time that the lock was held."""
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not tool:
        return {}
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(batches(load(name))) as data:  # type: ignore[type-var]
        next(data)
        command = [tool, "record", "--nonblocking", "-p", str(os.getpid()), "-d", str(SPY_S)]
        command += ["-r", "50", "-f", "raw"]
        runs = [
            subprocess.Popen([*command, *more, "-o", f"{folder}/{i}"], stderr=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL)
            for i, more in enumerate((["--subprocesses"], ["--gil"]))
        ]  # fmt: skip
        while any(run.poll() is None for run in runs):
            next(data)
        rows, locked = (_raw(Path(folder, str(i))) for i in range(2))
    total = sum(count for _, count in rows)
    found = {"lock": sum(count for _, count in locked) / (50 * SPY_S)}
    if total < 20:
        return found
    for stage, words in stages.items():
        mine = sum(
            count for stack, count in rows if re.search(rf"(^|;)({stage}|{words}) \(", stack)
        )
        found[stage] = mine / total
    return found


def _raw(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    rows = (line.rpartition(" ") for line in path.read_text().splitlines())
    return [(stack, int(count)) for stack, _, count in rows]


def measure(name: str, repeat: int) -> Truth:
    """Leave stages out, change the vCPUs, sample, and conclude."""
    module = load(name)
    stages: dict[str, str] = module.STAGES
    everywhere = os.sched_getaffinity(0)
    whole: list[Span] = []
    alone: list[Span] = []
    without: dict[str, list[Span]] = {stage: [] for stage in stages}
    for _ in range(repeat):
        whole.append(span(name))
        for stage in stages:
            without[stage].append(span(name, stage))
        alone.append(span(name, vcpus={min(everywhere)}))
    truth = Truth(name)
    conclude_limit(truth, whole, alone, spied := spy(name, stages), len(everywhere))
    conclude_stages(truth, whole, without, spied)
    batch_s = min(each.cpu_ms for each in whole) * whole[0].batch / 1000
    slow = getattr(module, "CONSUMER", "") == "slow"
    truth.step_ms = max(0.05, 1000 * batch_s * (4 if slow else 1 / 6))
    if slow:
        truth.limit, truth.verdicts = "device", ["device"]
        _check_consumer(truth, name)
    return truth


def conclude_limit(
    truth: Truth,
    whole: list[Span],
    alone: list[Span],
    spied: dict[str, float],
    vcpus: int = 2,
) -> None:
    """Name what limits the pipeline, from threads that can run, and from one vCPU against all.

    Threads that could run and gain nothing from more vCPUs are one thread; if some, both limit.
    """
    runnable = sorted(each.runnable for each in whole)[len(whole) // 2]
    ratio = min(each.wall_ms for each in alone) / min(each.wall_ms for each in whole)
    # What all vCPUs would gain if they were busy, whatever others took of them.
    most = vcpus * min(each.cpu_ms for each in alone) / min(each.cpu_ms for each in whole)
    others = min(max(a.others, b.others) for a, b in zip(whole, alone, strict=True))
    lock = spied.get("lock", -1.0)
    truth.evidence = {
        "runnable": runnable, "ratio": ratio, "most": most, "others": others, "lock": lock,
        "busy": max(each.busy for each in whole),
    }  # fmt: skip
    by_threads = "vcpu" if runnable >= 1.5 else "waiting" if runnable < 0.6 else ""
    if 0.75 <= runnable < 1.3:
        by_threads = "one thread"
    if by_threads == "vcpu" and lock >= HELD and runnable < 2 and truth.evidence["busy"] < 0.75:
        by_threads = "one thread"
    competes = by_threads == "vcpu"
    gain = min(ratio, most) if others < QUIET else most
    if competes and gain <= HARDLY:
        by_threads = "one thread"
    found = by_threads
    if others < QUIET:
        one_busy = max(each.busy for each in alone)
        slower = "one thread" if one_busy >= 0.75 else "waiting" if one_busy < 0.6 else ""
        by_ratio = "vcpu" if ratio >= GAINS else slower if ratio <= 1.3 else ""
        by_ratio = by_threads if competes and ratio < GAINS else by_ratio
        if by_threads and by_ratio and by_threads != by_ratio:
            truth.why_dropped = f"threads say {by_threads}, one vCPU against all {by_ratio}"
        found = by_ratio or by_threads
    if not found:
        truth.why_dropped = f"between two limits ({runnable:.2f} threads, ratio {ratio:.2f})"
    truth.limit = found
    is_held = lock < 0 or lock >= (LITTLE if competes else SPIED)
    one = ["gil", "serial"] if is_held else ["serial"]
    is_little = ratio < GAINS if others < QUIET else most < SURELY or is_held
    some = ["vcpu", *one] if competes and is_little else ["vcpu"]
    verdicts = {"vcpu": some, "waiting": ["io", "threadpool"], "one thread": one}
    truth.verdicts = verdicts.get(found, [])


def conclude_stages(
    truth: Truth, whole: list[Span], without: dict[str, list[Span]], spied: dict[str, float]
) -> None:
    """Name the stage whose absence saves most: of CPU time, or of time where that says nothing."""
    unit = "waiting_ms" if truth.limit == "waiting" else "cpu_ms"
    is_helped = median(each.cpu_ms / each.wall_ms for each in whole) > HELPED
    if truth.limit == "one thread" and is_helped and truth.evidence["others"] < QUIET:
        unit = "wall_ms"

    def usual(spans: list[Span]) -> float:
        return median(getattr(each, unit) for each in spans)

    total = usual(whole)
    saved = {stage: max(0.0, total - usual(spans)) for stage, spans in without.items()}
    saved[REST] = max(0.0, total - sum(saved.values()))
    truth.saved_ms = saved
    truth.stages = costliest_of(saved)
    shares = {stage: spied[stage] for stage in without if stage in spied}
    if sum(shares.values()) >= 0.5 and unit == "cpu_ms":
        top = max(shares, key=shares.__getitem__)
        truth.evidence[f"py-spy {top}"] = shares[top]
        if max(shares.get(each, 0.0) for each in truth.stages) < TIE * shares[top]:
            truth.why_dropped = f"py-spy says {top}, leaving out says {'/'.join(truth.stages)}"


def costliest_of(saved: dict[str, float]) -> list[str]:
    """The stage that saves most, and its equals; the rest only where the stages are little of all.

    The rest is many things: reads, batches, and handing elements on, a part of which every stage
    has that is replaced and not taken away.
    """
    stages = {name: each for name, each in saved.items() if name != REST}
    if sum(stages.values()) < LITTLE * sum(saved.values()):
        return [REST]
    return [name for name, each in stages.items() if each >= TIE * max(stages.values())]


def _check_consumer(truth: Truth, name: str) -> None:
    """Whether a consumer that takes a step's time really never waits."""
    step_s, waited = truth.step_ms / 1000, 0.0
    data = batches(load(name))
    next(data)
    start = time.perf_counter()
    # Several epochs of most pipelines: each may start late.
    for _ in range(max(8, int(3.0 / step_s))):
        before = time.perf_counter()
        next(data)
        took = time.perf_counter() - before
        waited += max(0.0, took - step_s)
        time.sleep(max(0.0, step_s - took))
    share = waited / (time.perf_counter() - start)
    truth.evidence["waited"] = share
    if NEARLY < share <= 0.05:
        truth.verdicts = ["device", "bursty"]
    if share > 0.05 and truth.evidence["others"] < QUIET:
        truth.why_dropped = f"a slow consumer waited {share:.0%} of its time"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for name in arguments.names:
        try:
            truth = measure(name, arguments.repeat)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            truth = Truth(name, why_dropped=f"{type(error).__name__}: {reason[:80]}")
        with arguments.out.open("a") as file:
            file.write(json.dumps(asdict(truth)) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
