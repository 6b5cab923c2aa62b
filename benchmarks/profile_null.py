"""What `--deep` finds that it costs, in turns with a profiler that records nothing.

    python -m benchmarks.profile_null jpeg --repeats 5

What the second says is noise and what windows do at their ends; the difference is tracing.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.profile_suite import OLDER, make_photos
from tpuctl.profiling.measure.host_trace import Profiler, Running, capture, pooled
from tpuctl.profiling.measure.loop import BatchReader, Limit, Recorder
from tpuctl.profiling.measure.probe import Sampler

BATCH = 16


class Nothing:
    """A `Profiler` that records nothing."""

    def __init__(self) -> None:
        self._file = Path()

    def start(self, folder: Path) -> None:
        """Remember where the empty file goes."""
        self._file = folder / "nothing.xplane.pb"

    def stop(self) -> Path:
        """Write the empty file."""
        self._file.touch()
        return self._file


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", default="jpeg")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(words)
    with photographs():
        print_both(arguments.name, arguments.repeats)
    sys.stdout.flush()
    os._exit(0)  # Pipelines with Python functions can hang the interpreter at exit.


@contextmanager
def photographs() -> Iterator[None]:
    """Have a folder of photographs, that of the caller where there is one."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder:
        if "TPUCTL_BENCH_PHOTOS" not in os.environ:
            os.environ["TPUCTL_BENCH_PHOTOS"] = folder
            make_photos(folder)
        yield


def print_both(name: str, repeats: int) -> None:
    """Trace in turns with a profiler that records nothing."""
    from tpuctl.profiling.frameworks._tf import TensorFlowProfiler

    running = run(name)
    profilers: dict[str, Profiler] = {"nothing": Nothing(), "TensorFlow's": TensorFlowProfiler()}
    found: dict[str, list[float]] = {each: [] for each in profilers}
    for _ in range(repeats):
        for each, profiler in profilers.items():
            with tempfile.TemporaryDirectory() as folder:
                deep, _files = capture(running, profiler, Path(folder))
            if deep.slowdown is not None:
                found[each].append(1 + deep.slowdown)
    for each, ratios in found.items():
        told = pooled(ratios)
        middle = f"median {median(ratios) - 1:+.1%}" if ratios else "too few elements"
        print(f"{name}, {each} as the profiler: CPU per element {middle}, mean {told}")


def run(name: str) -> Running:
    """Let a pipeline run in this process."""
    sys.path.insert(0, str(OLDER.parent))
    import profile_pipelines

    from tpuctl.profiling.frameworks._tf import open_dataset

    source = open_dataset(getattr(profile_pipelines, name)())
    reader = BatchReader(source, batch_size=BATCH)
    recorder = Recorder(reader, Sampler(lambda: None))
    reader.step()
    recorder.record(Limit(2.0), None)
    began_s = time.perf_counter()

    return Running(
        measure=lambda seconds: recorder.record(Limit(seconds, least_steps=1), None),
        settle=lambda: recorder.settle(None),
        profiled_s=lambda: time.perf_counter() - began_s,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
