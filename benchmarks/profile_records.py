"""Measurements of the labelled pipelines, kept as lines of JSON to judge again without a run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, TypeVar

from benchmarks.profile_labels import Label
from tpuctl.codec import from_plain, to_plain
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.models import ChainNode, Device, Measurement, Profile
from tpuctl.profiling.windows import StageCost

Located = TypeVar("Located", ChainNode, StageCost)
RECORDS = Path(__file__).with_name("labelled_measurements.jsonl")


def keep(place: Path, name: str, measured: Measurement) -> None:
    """Add a measurement to a file, without what says whose machine it was."""
    host = replace(measured.host, name="")
    phases = tuple(
        replace(phase, slices=(), costs=tuple(map(_without_folder, phase.costs)))
        for phase in measured.phases
    )
    known = replace(
        measured,
        host=host,
        phases=phases,
        chain=_without_folders(measured.chain),
        trace_files=(),
    )
    line = json.dumps({"name": name, "measured": _short(to_plain(known))}, separators=(",", ":"))
    with place.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_records(place: Path = RECORDS) -> Iterator[tuple[str, Measurement]]:
    """Yield the kept measurements with the names of their pipelines."""
    for line in place.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield record["name"], from_plain(Measurement, record["measured"])


def conclude(label: Label, measured: Measurement) -> Profile:
    """Judge a measurement as the product does."""
    device = Device(label.step_ms, "given")
    return build_profile(measured, target=label.name, image_size=224, device=device)


def _without_folders(node: ChainNode) -> ChainNode:
    return replace(_without_folder(node), inputs=tuple(map(_without_folders, node.inputs)))


def _without_folder(located: Located) -> Located:
    place = located.location
    return replace(located, location=PurePath(place).name if place else None)


def _short(value: Any) -> Any:
    """Keep six digits of every number."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value
