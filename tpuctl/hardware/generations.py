"""The generations of TPU, as a running machine shows them."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Generation:
    """One generation of TPU chip: how to recognise it and how it counts."""

    name: str
    pci_device: str
    pci_subsystem: str | None
    driver: str
    node: str
    tensorcores_per_chip: int
    devices_per_chip: int
    needs: tuple[str, ...]


@cache
def load_data(name: str) -> dict[str, Any]:
    """Read one of the dated data files of this package."""
    data: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return data


@cache
def generations() -> tuple[Generation, ...]:
    """All generations whose chips can be recognised on a PCI bus, oldest first."""
    return tuple(
        Generation(**{**entry, "needs": tuple(entry["needs"])})
        for entry in load_data("generations")["generations"]
    )


@cache
def known_chips() -> dict[str, int]:
    """The PCI ids of TPU chips, and how many devices libtpu counts on each such chip."""
    return {item.pci_device: item.devices_per_chip for item in generations()}


def generation(name: str) -> Generation | None:
    """The generation with that name, if it is known."""
    return next((item for item in generations() if item.name == name), None)


def generation_of_type(accelerator_type: str) -> str | None:
    """Read the generation out of an accelerator type such as `v5litepod-8`."""
    family = accelerator_type.strip().lower().rpartition("-")[0]
    aliases = {"v5litepod": "v5e", "v5lite": "v5e", "v7x": "tpu7x", "7x": "tpu7x"}
    name = aliases.get(family, family)
    return name if generation(name) else None
