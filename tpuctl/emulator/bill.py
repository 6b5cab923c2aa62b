"""What the emulated chips would cost: list prices by type, location and provisioning model."""

from dataclasses import dataclass

from tpuctl.emulator.resources import Host


@dataclass(frozen=True)
class Charge:
    """The use of a TPU's chips for some time; `usd` is None if there is no list price."""

    resource: str
    accelerator_type: str
    chips: int
    model: str
    seconds: float
    usd: float | None


def charge(node: Host, seconds: float) -> Charge:
    """Return what using a node or a Compute Engine instance costs."""
    price = node.usd_per_hour()
    usd = None if price is None else price * seconds / 3600
    return Charge(node.path, node.accelerator_type, node.chips, node.model, seconds, usd)
