"""The part of a TPU that a compiler must know: its name for the topology, and what a device can do.

Pure but for the dated data file beside this module.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.hardware.types import AcceleratorType, describe
from tpuctl.units import GIB


@dataclass(frozen=True)
class Slice:
    """A TPU to compile for. A device is what JAX calls one: a chip, or one core of it.

    Rates are those of one device; `topology` and `options` are libtpu's own words.
    """

    accelerator_type: str
    generation: str
    topology: str
    options: dict[str, Any]
    chips: int
    devices: int
    flops_per_s: float
    hbm_bytes_per_s: float
    hbm_available_bytes: int
    clock_hz: float
    ici_bytes_per_s: float
    mxu_size: int


def find_slice(accelerator_type: str) -> Slice:
    """Describe a TPU by the name of its type.

    Raises UsageError for an unknown type, InvalidInputError for one whose topology is not known.
    """
    kind = describe(accelerator_type)
    facts = _facts(kind)
    per_chip = kind.devices // kind.chips
    peak_tflops, hbm_gb_per_s = kind.peak_bf16_tflops_per_chip, kind.hbm_gb_per_s_per_chip
    assert peak_tflops
    assert hbm_gb_per_s
    assert kind.mxu_size
    return Slice(
        accelerator_type=kind.accelerator_type,
        generation=kind.generation,
        topology=f"{kind.generation}:{_topology(kind)}",
        options=_options(kind, facts),
        chips=kind.chips,
        devices=kind.devices,
        flops_per_s=peak_tflops * 1e12 / per_chip,
        hbm_bytes_per_s=hbm_gb_per_s * 1e9 / per_chip,
        hbm_available_bytes=int(facts["hbm_available_gib_per_device"] * GIB),
        clock_hz=facts["clock_ghz"] * 1e9,
        ici_bytes_per_s=facts["ici_gb_per_s_per_link"] * 1e9,
        mxu_size=kind.mxu_size,
    )


@functools.cache
def load_facts(name: str) -> Any:
    """Read a data file of this package."""
    return json.loads(resources.files("tpuctl.compile").joinpath(name).read_text("utf-8"))


def _facts(kind: AcceleratorType) -> Any:
    chips = load_facts("chips.json")["chips"]
    if kind.generation not in chips:
        raise InvalidInputError(
            f"Compiling for {kind.accelerator_type} is not known to work.",
            hint=f"Generations that do: {', '.join(chips)}.",
        )
    return chips[kind.generation]


def _options(kind: AcceleratorType, facts: Any) -> dict[str, Any]:
    """libtpu takes hosts to have four chips unless it is told that there is only one."""
    alone = {"chips_per_host_bounds": [1, 1, 1]} if kind.chips == 1 else {}
    return {**facts["options"], **alone}


def _topology(kind: AcceleratorType) -> str:
    if kind.topology:
        return kind.topology
    if kind.chips & (kind.chips - 1) or kind.generation not in ("v2", "v3", "v5e", "v6e"):
        raise InvalidInputError(
            f"The topology of a {kind.accelerator_type} is not known, so nothing can be compiled.",
            hint=f"Compile for a smaller {kind.generation}: a device's share depends on its batch.",
        )
    # Flat slices are squares, or twice as wide as high.
    height = 1 << (kind.chips.bit_length() - 1) // 2
    return f"{height}x{kind.chips // height}"
