"""What Compute Engine offers of each generation: machine types, images, disks, zones and prices."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from tpuctl.errors import InvalidArgumentError, UsageError
from tpuctl.hardware.types import (
    AcceleratorType,
    Price,
    describe,
    load_data,
    parse_type,
    usd_per_hour,
)

CLOUD_TPU, GCE = "cloud-tpu", "gce"
"""The two control planes of Google Cloud that have TPUs."""

_MACHINE = re.compile(r"(ct\w+|tpu\w+)-\w+-\d+t(-tpu)?")


@dataclass(frozen=True)
class Limits:
    """The limits of flex-start: run times, and how long one VM may wait for capacity."""

    min_run_s: int
    max_run_s: int
    max_wait_s: int


@dataclass(frozen=True)
class Hardware:
    """How the machines of a generation are created; None leaves a choice to the service.

    `quota` are the words of the quota ids that a model of provisioning draws on.
    """

    image: str
    zones: tuple[str, ...]
    quota: dict[str, list[str]]
    note: str | None = None
    disk_type: str | None = None
    secure_boot: bool | None = None
    threads_per_core: dict[str, int] | None = None
    rarely_granted: tuple[int, ...] = ()


def flex_limits() -> Limits:
    """Return the limits of flex-start."""
    return Limits(**load_data("compute_engine")["flex"])


@cache
def hardware_of(generation: str) -> Hardware | None:
    """Return how machines of a generation are created; None where Compute Engine has none."""
    found = load_data("compute_engine")["generations"].get(generation)
    return found and Hardware(**{**found, "zones": tuple(found["zones"])})


@cache
def describe_on(plane: str, text: str) -> AcceleratorType:
    """Look up a type on a control plane; `runtime_version` is the image family on Compute Engine.

    Raises UsageError if it is unknown, InvalidArgumentError where the plane does not have it.
    """
    kind = describe(text)
    if plane != GCE:
        return kind
    hardware = hardware_of(kind.generation)
    if hardware is None or kind.machine_type is None:
        raise InvalidArgumentError(
            f"Compute Engine does not offer {kind.generation}.",
            hint="The Cloud TPU API does: --provider cloud-tpu",
        )
    prices = {zone: _price(kind, zone) for zone in hardware.zones}
    return replace(
        kind,
        runtime_version=hardware.image,
        zones=hardware.zones,
        usd_per_hour=prices,
        prices_as_of=load_data("compute_engine")["prices"]["as_of"],
        note=hardware.note,
    )


def _price(kind: AcceleratorType, zone: str) -> Price:
    models = (list_price(GCE, kind.accelerator_type, zone, m) for m in ("on_demand", "spot"))
    return Price(*models)


def list_price(plane: str, accelerator_type: str, zone: str, model: str) -> float | None:
    """Return the hourly list price of a TPU in US dollars, without disks; None if unknown.

    `model` is `on_demand`, `spot`, `flex` or `reserved`. On Compute Engine, a reservation has no
    list price, and flex-start can be cheaper than spot.
    """
    if plane != GCE:
        return usd_per_hour(accelerator_type, zone, spot=model == "spot")
    generation, chips = parse_type(accelerator_type)
    regions = load_data("compute_engine")["prices"]["regions"].get(generation, {})
    price = regions.get(zone.rpartition("-")[0], {}).get(model)
    return None if price is None else round(price * chips, 4)


def model_of(source: Any) -> Literal["on_demand", "spot", "flex", "reserved"]:
    """Return how a TPU, or options to create one, are provisioned."""
    if source.flex:
        return "flex"
    is_reserved = source.reserved or source.reservation
    return "spot" if source.spot else "reserved" if is_reserved else "on_demand"


def is_tpu_machine(machine_type: str) -> bool:
    """Whether a machine type has TPUs, also of a generation that we do not know."""
    return _MACHINE.fullmatch(machine_type) is not None


@cache
def types_of_machines(machine_types: frozenset[str]) -> tuple[str, ...]:
    """List the known types that are made of some machine types."""
    return tuple(kind.accelerator_type for kind in _kinds() if kind.machine_type in machine_types)


@cache
def type_of_machine(machine_type: str, hosts: int) -> str | None:
    """Return the type of a slice of that many machines; None for an unknown machine type."""
    for kind in _kinds():
        if kind.workers == 1 and kind.machine_type == machine_type.removesuffix("-tpu"):
            prefix, _, number = kind.accelerator_type.rpartition("-")
            return f"{prefix}-{int(number) * hosts}"
    return None


@cache
def _kinds() -> tuple[AcceleratorType, ...]:
    """Describe the known types in powers of two."""
    found = []
    for family in load_data("families")["families"]:
        for power in range(15):
            with suppress(UsageError):
                found.append(describe(f"{family['prefix']}-{2**power}"))
    return tuple(found)


def place_of(zone: str | None, provider: str) -> str:
    """Return where a TPU is: both control planes may have one of the same name in a zone."""
    return provider if zone is None else f"{zone} on {GCE}" if provider == GCE else zone
