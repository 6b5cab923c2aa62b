"""Growth: 1,000,000 images, 10,000 shards, 256 workers, 1,000 nodes, and a log of 1 GB."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.remote_fanout import _place as place_for_workers
from benchmarks.remote_fanout import _tpuctl as on_workers
from benchmarks.remote_fanout import _workers as workers
from tpuctl.clock import ManualClock, WallClock
from tpuctl.cloud.connect import connect
from tpuctl.cloud.models import NodeRequest
from tpuctl.emulator.server import serve
from tpuctl.emulator.service import ScaledClock

TPUCTL = [sys.executable, "-m", "tpuctl"]
LINES = "".join(
    f"2026-11-22 09:{minute:02}:00 step {minute * 7919} loss 0.{minute} on [{minute % 16}]\n"
    for minute in range(60)
)
PLAN = "import sys; from benchmarks.scale import plan; plan(sys.argv[1])"
_LINKS = 50_000
_NOISE = 0.2
_TOO_MUCH: list[str] = []


def main() -> None:
    """Print the exponent of growth from three sizes, or of those named: images, shards, ..."""
    parts = {
        "images": _images,
        "shards": _shards,
        "workers": _workers,
        "nodes": _nodes,
        "log": _log,
    }
    for name in [word for word in sys.argv[1:] if word in parts] or parts:
        parts[name]()
    if _TOO_MUCH:
        raise SystemExit(f"scale: more than promised: {', '.join(_TOO_MUCH)}")


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of the line through the logarithms: 1 is linear, 0 is flat."""
    points = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True)]
    x0, y0 = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)


def _growth(
    what: str, unit: str, runs: dict[int, tuple[float, float]], memory: float, mib: float = math.inf
) -> None:
    """Print how time and memory grow, and note what exceeds exponent 1, `memory` or `mib`."""
    sizes = list(runs)
    seconds, peaks = ([run[column] for run in runs.values()] for column in (0, 1))
    grown = exponent(sizes, seconds), exponent(sizes, peaks)
    shown = ", ".join(f"{size:,}: {s:.1f} s, {m:.0f} MiB" for size, (s, m) in runs.items())
    most = f"at most {memory:g}" if math.isinf(mib) else f"below {mib:g} MiB"
    print(
        f"scale: {what}, {unit} {shown}; time grows with exponent {grown[0]:.2f} (at most 1), "
        f"memory with {grown[1]:.2f} ({most})",
        flush=True,
    )
    if grown[0] > 1 + _NOISE or grown[1] > memory + _NOISE or max(peaks) > mib:
        _TOO_MUCH.append(what)


def _run(words: Sequence[str], *, codes: Sequence[int] = (0,)) -> tuple[float, float]:
    """Wall seconds and peak MiB of a command."""
    start = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode in codes, f"{words} ended with {child.returncode}"
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def _least(words: Sequence[str], times: int = 3) -> tuple[float, float]:
    """The quickest of some runs: what others do on this machine only adds to it."""
    return min(_run(words) for _ in range(times))


def _images() -> None:
    from tests.pictures import encoded, photograph

    data, runs = encoded(photograph("china", 24, 16)), {}
    for count in (250_000, 500_000, 1_000_000):
        with tempfile.TemporaryDirectory() as name:
            _fill(Path(name), data, count)
            runs[count] = _run([sys.executable, "-c", PLAN, name])
    _growth("plan and manifest", "images", runs, 1, 1024)


def _fill(folder: Path, data: bytes, count: int) -> None:
    """So many files; a file system allows some ten thousand links to each."""
    for number in range(count):
        path = folder / f"class-{number % 10}" / f"{number // 10_000:03}" / f"IMG_{number:07}.jpg"
        if number % 10_000 < 10:
            path.parent.mkdir(parents=True, exist_ok=True)
        if number % _LINKS == 0:
            path.write_bytes(data)
            whole = path
        else:
            os.link(whole, path)


def plan(source: str) -> None:
    """Plan a presize of a folder, and write the manifest of what it would make."""
    from tpuctl.datasets import manifest
    from tpuctl.datasets.manifest import FinishedShard
    from tpuctl.datasets.models import PresizeOptions
    from tpuctl.datasets.prepare import prepare_sizes

    options = PresizeOptions(size=(224, 224), shard_bytes=1 << 20)
    (run,) = prepare_sizes(source, f"{source}-out", options, started_s=0.0)
    shards = [
        FinishedShard(
            job.name("0" * 8, ".tfrecord"), 1, len(job.pictures), "0" * 8, "0" * 64,
            job.pictures[0].key, job.pictures[-1].key, job=job.id,
        )
        for job in run.plan.jobs
    ]  # fmt: skip
    manifest.to_text(manifest.compose(run.plan, shards))


def _shards() -> None:
    from tests.pictures import fill, small
    from tpuctl.datasets.presize import presize

    runs = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        presize(fill(root / "photos", 1), root / "one", small())
        for count in (2_500, 5_000, 10_000):
            _multiply(root / "one", root / str(count), count)
            runs[count] = _least([*TPUCTL, "data", "verify", str(root / str(count)), "--json"])
    _growth("data verify", "shards", runs, 0)


def _multiply(one: Path, many: Path, count: int) -> None:
    """A data set of the same shard again and again."""
    document = json.loads((one / "manifest.json").read_text())
    (shard,) = document["shards"]
    names = [f"train-{index:05}-of-{count:05}-{shard['crc32c']}.tfrecord" for index in range(count)]
    many.mkdir()
    for name in names:
        os.link(one / shard["name"], many / name)
    document["totals"] = {name: total * count for name, total in document["totals"].items()}
    document["shards"] = [{**shard, "name": name, "job": f"{name}"} for name in names]
    (many / "manifest.json").write_text(json.dumps(document))


def _workers() -> None:
    commands = {
        "run": ["--", "true"],
        "logs": ["--job", "j"],
        "top": ["--once"],
    }
    with place_for_workers(None) as root, workers(root, 256) as hosts:
        _run(
            on_workers(
                root, hosts, "run", "--job", "j", "--detach", "--no-check", "--", "echo", "x"
            )
        )
        for command, words in commands.items():
            runs = {n: _least(on_workers(root, hosts[:n], command, *words)) for n in (64, 128, 256)}
            _growth(command, "workers", runs, 1)


def _nodes() -> None:
    for command, words in {"list": ["--all-zones"], "gc": [], "gc --yes": []}.items():
        runs = {}
        for count in (250, 500, 1000):
            with _dead_nodes(count):
                times = 1 if "--yes" in command else 3
                runs[count] = _least([*TPUCTL, *command.split(), *words, "--json"], times)
        _growth(command, "nodes", runs, 1)


@contextmanager
def _dead_nodes(count: int) -> Iterator[None]:
    """An emulator with so many preempted TPUs, its time fast enough that polling does not count."""
    zone = {"types": ["v5litepod-8"], "capacity_chips": 8 * count, "quota_chips": 8 * count}
    preempt = {"on": "node", "event": "preempt", "at_s": 1, "every": True}
    scenario = {"zones": {"us-west4-a": zone}, "provision_s": 0, "delete_s": 1}
    scenario |= {"faults": [preempt], "time_scale": 1000}
    now = WallClock().now()
    with serve(scenario, clock=ScaledClock(now, 1000)) as emulator:
        api = connect("practice", endpoint=emulator.endpoint, clock=ManualClock(now))
        for number in range(count):
            name = f"n{number}"
            api.create_node(
                NodeRequest(name, "us-west4-a", "v5litepod-8", "v2-alpha-tpuv5-lite", name)
            )
        with tempfile.TemporaryDirectory() as state:
            os.environ |= {
                "TPUCTL_TPU_ENDPOINT": emulator.endpoint,
                "TPUCTL_STATE_DIR": state,
                "GRPC_VERBOSITY": "NONE",
            }
            yield


def _log() -> None:
    runs = {}
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "train.log"
        for mib in (64, 256, 1024):
            with log.open("w") as file:
                for _ in range(mib * (1 << 20) // len(LINES)):
                    file.write(LINES)
                file.write("RuntimeError: TPU backend initialization is taking more than 60 s\n")
            runs[mib] = _run([*TPUCTL, "explain", str(log)], codes=(0, 1))
    _growth("explain", "MiB of log", runs, 0)


if __name__ == "__main__":
    main()
