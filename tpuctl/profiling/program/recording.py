"""Record a program's steps and its machine, and write the result to a file once a second.

The file is always a complete result, so that a killed program leaves one too.
"""

import contextlib
import json
import os
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.codec import to_plain
from tpuctl.profiling.frameworks.stacks import StackSampler, sampling_notes
from tpuctl.profiling.measure import signals
from tpuctl.profiling.measure.loop import grown, is_warming_up, prompt_switches, spread
from tpuctl.profiling.measure.probe import GilProbe, Sampler
from tpuctl.profiling.measure.signals import describe_host
from tpuctl.profiling.models import Input, Measurement
from tpuctl.profiling.program.watch import WARM_STEPS, Series, Watch
from tpuctl.profiling.windows import Phase, Signals, StageCost
from tpuctl.units import format_count

# Also the most that a killed program loses.
WRITE_EVERY_S = 1.0
# Two ticks of the CPU clocks: what is shorter cannot be measured.
LEAST_S = 0.02
# A step this many times longer than the median is an evaluation or a checkpoint.
GAP_RATIO = 10.0


@dataclass
class _Start:
    """The readings at the start of a series' window."""

    reading: signals.Reading
    tool_cpu_s: float
    costs: tuple[StageCost, ...]


class Recording:
    """Turns the records of a `Watch` into a measurement."""

    def __init__(
        self, watch: Watch, folder: str, *, sampler: StackSampler, command: str = ""
    ) -> None:
        self.watch, self.folder, self.command = watch, folder, command
        self.sampler = sampler
        self.collectors: list[Callable[[], None]] = []
        self._starts: dict[int, _Start] = {}
        self._ends: dict[int, tuple[signals.Reading, float]] = {}
        self._written_s = 0.0
        self._probe: GilProbe | None = None
        self._sampler: Sampler | None = None
        self._overshoots_s: list[float] = []
        self._threads = signals.Threads()
        watch.begun.append(self._begin)

    def start(self) -> None:
        """Start the measuring threads, once."""
        if self._sampler is None:
            self._probe, self._sampler = GilProbe(), Sampler(self._sample)

    def write(self) -> None:
        """Write the current result."""
        measured = self.measurement()
        if measured is None:
            return
        content = {"command": self.command, "at": time.time(), "measurement": to_plain(measured)}
        place = Path(self.folder, f"{os.getpid()}.run.json")
        try:
            place.with_suffix(".new").write_text(json.dumps(content))
            place.with_suffix(".new").replace(place)
        except OSError:
            return

    def finish(self) -> Measurement | None:
        """Read everything once more and return the measurement."""
        self._sample(last=True)
        measured, series = self.measurement(), self.watch.main()
        if measured is None:
            with contextlib.suppress(OSError):
                if self.watch.unseen:
                    Path(self.folder, f"{os.getpid()}.unseen").write_text(self.watch.unseen)
                if series is not None:
                    Path(self.folder, f"{os.getpid()}.few").write_text(str(series.count + 1))
                elif steps := self.watch.other_steps():
                    content = json.dumps(to_plain(steps))
                    Path(self.folder, f"{os.getpid()}.steps").write_text(content)
        return measured

    def stop(self) -> None:
        """Stop recording; the hooks stay installed and do nothing."""
        self.watch.is_on = False
        self.sampler.stop()
        if self._probe and self._sampler:
            self._probe.end()
            self._sampler.end()

    @property
    def _tool_cpu_s(self) -> float:
        return (self._probe.cpu_s if self._probe else 0.0) + (
            self._sampler.cpu_s if self._sampler else 0.0
        )

    def _read(self, series: Series) -> signals.Reading:
        tools = [each.thread_id for each in (self._probe, self._sampler) if each]
        if series.source.kind == "tf.data":
            # The main thread only trains, so its waits for a vCPU do not delay the pipeline.
            tools.append(threading.main_thread().native_id or 0)
        return signals.read(tool_threads=tools, threads=self._threads)

    def _begin(self, series: Series) -> None:
        if id(series) in self._starts:
            return
        with prompt_switches(), self.watch.lock:
            series.poll()
            series.node_stats.reset()
            if self._probe:
                self._probe.take()
            self._starts[id(series)] = _Start(
                self._read(series), self._tool_cpu_s, series.source.costs()
            )

    def _sample(self, *, last: bool = False) -> None:
        for collect in self.collectors:
            collect()
        series = self.watch.main()
        if series is None:
            return
        is_due = last or time.perf_counter() - self._written_s > WRITE_EVERY_S
        with prompt_switches(), self.watch.lock:
            series.poll()
            if self._probe:
                self._overshoots_s = (self._overshoots_s + self._probe.take())[-2000:]
            if is_due:
                self._ends[id(series)] = self._read(series), self._tool_cpu_s
        if is_due:
            self._written_s = time.perf_counter()
            self.write()

    def measurement(self) -> Measurement | None:
        """The measurement of the main iterator's steps; None while they are too few."""
        series = self.watch.main()
        start = self._starts.get(id(series))
        end = self._ends.get(id(series))
        if series is None or start is None or end is None or len(series.steps) <= WARM_STEPS:
            return None
        if sum(series.steps) < LEAST_S:
            return None
        waits, steps, examples, gaps = _steady(series)
        signals_found = signals.between(
            start.reading,
            end[0],
            tool_cpu_s=end[1] - start.tool_cpu_s,
            consumer_cpu_s=0.0,
            gil_overshoots_s=list(self._overshoots_s),
        )
        batch = round(statistics.median(examples))
        phases = _phases(series, start, signals_found, (waits, steps), sum(examples))
        source = series.source
        return Measurement(
            kind=source.kind,
            batch_size=max(1, batch),
            chain=source.chain,
            phases=phases,
            isolated=(),
            first_batch_s=series.first_batch_s,
            threadpool_size=source.threadpool_size,
            host=describe_host(str(source.settings.get("tensorflow", ""))),
            input=Input(0, source.input.examples, 0, notes=_notes(gaps, self.sampler.folder)),
            settings=source.settings,
            lanes=source.lanes,
            runs_ahead=source.runs_ahead,
            program=self.command or "this program",
            python=sys.executable,
        )


def _steady(series: Series) -> "tuple[array[float], array[float], array[float], int]":
    """The steps after the warm-up without evaluations and checkpoints, and the number of these."""
    skip = WARM_STEPS if series.count <= len(series.steps) else 0
    rows = list(zip(series.waits, series.steps, series.examples, strict=True))[skip:]
    usual = statistics.median(step for _, step, _ in rows)
    kept = [row for row in rows if row[1] - row[0] <= GAP_RATIO * usual]
    columns = [array("d", column) for column in zip(*kept, strict=True)]
    return columns[0], columns[1], columns[2], len(rows) - len(kept)


def _phases(
    series: Series,
    start: _Start,
    found: Signals,
    times: "tuple[array[float], array[float]]",
    examples: float,
) -> tuple[Phase, Phase]:
    """The same window from the view of the pipeline and of the device."""
    waits, steps = times
    length_s = sum(steps)
    common: dict[str, Any] = {
        "start_s": start.reading.at_s - series.created_s,
        "end_s": start.reading.at_s - series.created_s + length_s,
        "steps": len(steps),
        "elements": len(steps),
        "examples": round(examples),
        "waits": spread(waits),
        "step_times": spread(steps),
        "device_busy_s": max(0.0, length_s - sum(waits)),
        "signals": found,
        "nodes": series.node_stats.costs(),
        "slices": (),
        "nodes_vanished": series.node_stats.nodes_vanished,
        "warming_up": is_warming_up(steps),
    }
    free = Phase(name="free", costs=grown(start.costs, series.source.costs()), **common)
    return free, Phase(name="device", **common)


def _notes(gaps: int, folder: str) -> tuple[str, ...]:
    notes = sampling_notes(folder)
    if gaps:
        pauses = format_count(gaps, "long pause")
        notes = (f"Not counted: {pauses} between steps (evaluation, checkpoints).", *notes)
    return notes
