"""Measurements of pipelines that never ran, built for a known verdict, and targets to open."""

import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.measure.loop import BatchReader
from tpuctl.profiling.measure.sources import open_source
from tpuctl.profiling.models import ChainNode, Device, Host, Input, Measurement, Profile
from tpuctl.profiling.request import Request, parse_target
from tpuctl.profiling.windows import NodeCost, Phase, Signals, Spread

Measured = TypeVar("Measured")
BATCH = 32
HOST = Host("testhost", 2, 16 << 30, 12 << 30, "Test CPU", "3.11.0", "2.21.0")
# Active milliseconds per example of each stage, the output first.
JPEG = {"prefetch": 0.01, "batch": 0.2, "augment": 0.3, "resize": 0.5, "decode": 6.0, "read": 0.3}
OPS = {"prefetch": "Prefetch", "batch": "BatchV2", "shuffle": "Shuffle", "repeat": "Repeat"}
OPS["parse + batch"] = "MapAndBatch"


def chain(names: tuple[str, ...], *, python: str = "", parallel: bool = True) -> ChainNode:
    """The pipeline as written, the output first in `names`."""
    node = ChainNode("TensorSlice", "tensor_slice")
    for name in reversed(names):
        op = OPS.get(name, "ParallelMap" if parallel else "Map").removesuffix("V2")
        node = ChainNode(
            op,
            name,
            location=None if name in OPS else f"/home/me/train.py:{len(name)}",
            runs_python=name == python,
            is_random=name == "augment",
            decodes_jpeg=name == "decode",
            inputs=(node,),
        )
    return node


def nodes(
    active_ms: dict[str, float], examples: float, *, calls: int | None = 2
) -> tuple[NodeCost, ...]:
    """What the runtime's model counted while that many examples went through."""
    path: tuple[str, ...] = ("Root",)
    costs = [NodeCost(path, 0.0, round(examples / BATCH), 0, None, 1.0)]
    for name, milliseconds in active_ms.items():
        op = OPS.get(name, "ParallelMapV2" if calls else "Map")
        path = (*path, op)
        single = name not in ("prefetch", "batch")
        elements = round(examples) if single else round(examples / BATCH)
        size = {"decode": 4_500_000, "read": 400_000}.get(name, 602_112) * round(examples)
        ratio = float(BATCH) if name == "batch" else 1.0
        parallelism = calls if single else None
        costs.append(
            NodeCost(path, milliseconds * examples / 1e3, elements, size, parallelism, ratio)
        )
    costs.append(NodeCost((*path, "TensorSlice"), 0.0, round(examples), 0, None, None))
    return tuple(costs)


def spread(mean: float, *, p99: float | None = None) -> Spread:
    return Spread(40, mean, mean, mean, p99 or mean, p99 or mean)


def phase(
    *,
    examples_per_s: float = 266.0,
    own: float = 0.98,
    others: float = 0.01,
    active_ms: dict[str, float] | None = None,
    calls: int | None = 2,
    wall_s: float = 5.0,
    device_s: float | None = None,
    wait: float = 0.0,
    p99: float | None = None,
    **signals: Any,
) -> Phase:
    """One window on a machine with two vCPUs."""
    examples = examples_per_s * wall_s
    steps = round(examples / BATCH)
    late_ms = signals.get("gil_overshoot_p90_ms", 0.2)
    given = {
        "run_delay_s": 0.5,
        "throttled_s": 0.0,
        "gil_overshoot_p90_ms": late_ms,
        "gil_overshoot_p50_ms": late_ms / 2,
        **signals,
    }
    return Phase(
        name="device" if device_s else "free",
        start_s=1.0,
        end_s=1.0 + wall_s,
        steps=steps,
        elements=steps,
        examples=round(examples),
        waits=replace(spread(wait * wall_s / steps), count=steps),
        step_times=spread(wall_s / steps, p99=p99),
        device_busy_s=steps * (device_s or 0.0),
        signals=Signals(
            wall_s=wall_s,
            cpu_s=own * 2 * wall_s,
            tool_cpu_s=0.01,
            consumer_cpu_s=0.005,
            vcpus_visible=given.pop("vcpus_visible", 2),
            vcpus_usable=given.pop("vcpus_usable", 2.0),
            other_cpu_s=given.pop("other_cpu_s", others * 2 * wall_s),
            steal_s=0.0,
            **given,
        ),
        nodes=nodes(active_ms or JPEG, examples, calls=calls),
        slices=(),
        nodes_vanished=False,
    )


def measurement(*phases: Phase, python: str = "", **changes: Any) -> Measurement:
    """A whole measurement around its windows."""
    ops = [cost.path[-1] for cost in phases[0].nodes]
    names = tuple(changes.pop("active_ms", JPEG))
    given: dict[str, Any] = {
        "kind": "photos",
        "batch_size": BATCH,
        "chain": chain(names, python=python, parallel="Map" not in ops),
        "phases": phases,
        "isolated": (),
        "first_batch_s": 0.3,
        "threadpool_size": 2,
        "host": HOST,
        "input": Input(200, 200, 80_000_000),
    }
    return Measurement(**{**given, **changes})


def starving(**free: Any) -> tuple[Phase, Phase]:
    """A pipeline that gives half of what the device would take: free, then with the device."""
    return (
        phase(**free),
        phase(**{**free, "device_s": BATCH / 532.0, "wait": 0.5}),
    )


def profile(measured: Measurement, **changes: Any) -> Profile:
    """What follows from a measurement."""
    device = next((each for each in measured.phases if each.name == "device"), None)
    step_ms = device.device_busy_s / device.steps * 1e3 if device else None
    built = build_profile(
        measured,
        target="photos",
        image_size=224,
        device=Device(step_ms, "given") if step_ms else None,
    )
    return replace(built, created="2026-11-20T00:00:00+00:00", tpuctl_version="0.0.0", **changes)


def listed_shard(name: str, size_bytes: int, records: int) -> dict[str, Any]:
    """The entry of a shard in the manifest of a data set."""
    keys = {"crc32c": "AAAAAA==", "sha256": "0" * 64, "first_key": "a", "last_key": "b"}
    return {"name": name, "bytes": size_bytes, "records": records, **keys}


def manifest(*shards: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The manifest of a data set of JPEGs."""
    options = {"size": [96, 128], "mode": "cover", "encode": "jpeg", "format": "tfrecord"}
    document: dict[str, Any] = {
        "schema": "tpuctl.dataset/1",
        "plan_id": "p",
        "options": options,
        "classes": [],
        "totals": {},
        "quarantined": {},
        "shards": list(shards),
    }
    return {**document, **changes}


def write_target(folder: Path, body: str) -> str:
    """Write a Python file with a function `make`."""
    place = folder / "train.py"
    place.write_text("import time\nimport tensorflow as tf\n" + textwrap.dedent(body))
    return f"{place}:make"


def up_to_three_times(
    take: Callable[[], Measured], is_clear: Callable[[Measured], bool]
) -> Measured:
    """Take a short measurement, and again while neighbours blur it; returns the last one."""
    for _ in range(2):
        if is_clear(measured := take()):
            return measured
    return take()


def is_io_or_disturbed(verdict: str, reasons: Iterable[str]) -> bool:
    """Whether a pipeline is found to wait for data, or neighbours hide what it waits for."""
    is_disturbed = re.search("too much to know why|other processes are idle", " ".join(reasons))
    return verdict == "io" or (verdict == "unknown" and is_disturbed is not None)


def take_two_batches(place: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Open a target and step as the measuring process does, without starting one."""
    # It does not survive being forgotten and loaded again by one process.
    importlib.import_module("tensorflow")
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.modules", dict(sys.modules))
    request = Request(parse_target(place), 4, 32, 1.0, None, None, 3.0)
    reader = BatchReader(open_source(request, ""), batch_size=4)
    reader.step()
    return reader.step()
