"""What the compiler must know about a TPU: libtpu's name of its topology, and a device's rates.

Pure, except for the dated data file beside this module.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.hardware.types import FLAT_GENERATIONS, AcceleratorType, describe
from tpuctl.units import GIB, MIB


@dataclass(frozen=True)
class Slice:
    """A TPU to compile for; a device is what JAX calls a device: a chip, or one core of it.

    Rates are per device; `topology` and `options` are arguments of libtpu. `vmem_bytes` is the
    vector memory of a core, and `vmem_limit_bytes` what a kernel may use unless it asks for more.
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
    vmem_bytes: int
    vmem_limit_bytes: int


def find_slice(accelerator_type: str) -> Slice:
    """Describe the TPU of an accelerator type.

    Raises UsageError for an unknown type, InvalidInputError for one whose topology is unknown.
    """
    kind = describe(accelerator_type)
    chips = load_facts("chips.json")["chips"]
    if kind.generation not in chips:
        raise InvalidInputError(
            f"Compiling for {kind.accelerator_type} is not supported.",
            hint=f"Supported generations: {', '.join(chips)}.",
        )
    facts = chips[kind.generation]
    # libtpu assumes that hosts have four chips unless it is told that there is only one.
    bounds = {"chips_per_host_bounds": [1, 1, 1]} if kind.chips == 1 else {}
    per_chip = kind.devices // kind.chips
    peak_tflops, hbm_gb_per_s = kind.peak_bf16_tflops_per_chip, kind.hbm_gb_per_s_per_chip
    assert peak_tflops
    assert hbm_gb_per_s
    assert kind.mxu_size
    return Slice(
        accelerator_type=kind.accelerator_type,
        generation=kind.generation,
        topology=f"{kind.generation}:{_topology(kind)}",
        options={**facts["options"], **bounds},
        chips=kind.chips,
        devices=kind.devices,
        flops_per_s=peak_tflops * 1e12 / per_chip,
        hbm_bytes_per_s=hbm_gb_per_s * 1e9 / per_chip,
        hbm_available_bytes=int(facts["hbm_available_gib_per_device"] * GIB),
        clock_hz=facts["clock_ghz"] * 1e9,
        ici_bytes_per_s=facts["ici_gb_per_s_per_link"] * 1e9,
        mxu_size=kind.mxu_size,
        vmem_bytes=facts["vmem_mib"] * MIB,
        vmem_limit_bytes=facts["vmem_default_limit_mib"] * MIB,
    )


def is_tested(jax: str, jaxlib: str, libtpu: str) -> bool:
    """Whether `fit` was tested with these versions together."""
    return any(
        (jax, jaxlib) == (one["jax"], one["jax"]) and _within(libtpu, one["libtpu"])
        for one in load_facts("tested.json")["adapter"]
    )


def known_generations(libtpu: str) -> tuple[str, ...]:
    """Return the generations for which a tested libtpu compiles."""
    known = load_facts("tested.json")["generations"]
    return next((tuple(one["knows"]) for one in known if _within(libtpu, one["libtpu"])), ())


def _within(version: str, bounds: list[str]) -> bool:
    from packaging.version import Version

    oldest, newest = map(Version, bounds)
    return oldest <= Version(version) <= newest


@functools.cache
def load_facts(name: str) -> Any:
    """Read a data file of this package."""
    return json.loads(resources.files("tpuctl.compile").joinpath(name).read_text("utf-8"))


def _topology(kind: AcceleratorType) -> str:
    if kind.topology:
        return kind.topology
    if kind.chips & (kind.chips - 1) or kind.generation not in FLAT_GENERATIONS:
        raise InvalidInputError(
            f"Could not compile for {kind.accelerator_type}: its topology is unknown.",
            hint=f"Compile for a smaller {kind.generation} with the same batch size per device.",
        )
    # 2D slices are squares, or twice as wide as high.
    height = 1 << (kind.chips.bit_length() - 1) // 2
    return f"{height}x{kind.chips // height}"
