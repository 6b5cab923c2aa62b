"""Dated facts: published step times, thresholds, relative costs of decoding."""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpuctl.codec import from_plain


def reference_step_ms(batch_size: int) -> tuple[float, str]:
    """The step time of a published training run, scaled to a batch size, and its source."""
    known = load_facts("reference_steps.json")[0]
    step_ms = known["step_ms"] * batch_size / known["batch_size"]
    sentence = (
        f"{known['model']} on a {known['accelerator_type']} takes {known['step_ms']} ms per step "
        f"of {known['batch_size']:,} images ({known['source']}); "
        f"scaled to a batch of {batch_size:,}: {step_ms:.1f} ms."
    )
    return step_ms, sentence


@dataclass(frozen=True)
class Thresholds:
    """The limits between verdicts; fractions of 1 unless the name has a unit."""

    device_wait: float
    starved_wait: float
    busy: float
    idle: float
    contended_other: float
    contended_run_delay: float
    stolen_demand: float
    throttled: float
    gil_overshoot_ms: float
    gil_overshoot_usual_ms: float
    gil_demand: float
    gil_vcpus: float
    gil_share: float
    blocked_share: float
    blocked_alone: float
    transfer_share: float
    residual: float
    serial_active: float
    vcpus_gain: float
    pool_full: float
    fits: float
    burst_ratio: float
    rare_burst: float
    startup_s: float
    longest_extrapolation: float


@functools.cache
def thresholds() -> Thresholds:
    """Read the thresholds that the verdicts use."""
    return from_plain(Thresholds, load_facts("thresholds.json"))


@functools.cache
def load_facts(name: str) -> Any:
    """Read a data file of this package."""
    return json.loads(resources.files("tpuctl.profiling").joinpath(name).read_text("utf-8"))
