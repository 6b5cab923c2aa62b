"""List TPUs and queued resources with their costs."""

from dataclasses import dataclass, field

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import take_snapshot
from tpuctl.cloud.models import ALL_ZONES
from tpuctl.cloud.tpu import Balance, QueuedTpu, Tpu, about_prices, describe_node, describe_queued
from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome, Status


@dataclass(frozen=True)
class TpuList(Outcome):
    """All TPUs and queued resources, and the zones that did not answer.

    The sums leave out unknown costs; `unpriced` counts the running TPUs without a known price.
    """

    zone: str | None
    tpus: tuple[Tpu, ...]
    queued_resources: tuple[QueuedTpu, ...] = ()
    unreachable_zones: tuple[str, ...] = ()
    usd_per_hour: float = 0.0
    usd_so_far: float = 0.0
    unpriced: int = 0
    emulated: bool = False
    balances: tuple[Balance, ...] = ()
    notes: tuple[str, ...] = field(default=(), metadata={"internal": True})
    failures: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})
    place: str = field(default="in any zone", metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`partial` when something could not be listed."""
        return "partial" if self.unreachable_zones or self.failures else "ok"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The zones that did not answer, and the notes of providers."""
        if not self.unreachable_zones:
            return self.notes
        zones = ", ".join(self.unreachable_zones)
        return (
            *self.notes,
            f"No answer from {zones}: TPUs there are not shown, but may cost money.",
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from."""
        return (about_prices(),)


def list_tpus(api: TpuApi, *, zone: str | None = None) -> TpuList:
    """List the nodes and queued resources of a zone, or of all zones."""
    seen = take_snapshot(api, zone or ALL_ZONES)
    now = api.clock.now()
    tpus = tuple(describe_node(node, now=now, emulated=api.emulated) for node in seen.nodes)
    queued = tuple(describe_queued(item, now=now) for item in seen.queued)
    return TpuList(
        zone=zone,
        tpus=tuple(sorted(tpus, key=lambda tpu: (tpu.is_dead, tpu.zone, tpu.name))),
        queued_resources=tuple(sorted(queued, key=lambda item: (item.zone, item.name))),
        unreachable_zones=seen.unreachable_zones,
        usd_per_hour=round(sum(tpu.usd_per_hour or 0 for tpu in tpus), 4),
        usd_so_far=round(sum(tpu.usd_so_far or 0 for tpu in tpus), 4),
        unpriced=sum(tpu.usd_per_hour is None for tpu in tpus),
        emulated=api.emulated,
        failures=seen.failures,
    )
