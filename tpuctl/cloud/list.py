"""`list` and `show`: what there is, what it costs, what dead ones still block."""

from dataclasses import dataclass, field

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.lookup import find, take_snapshot
from tpuctl.cloud.models import ALL_ZONES, Node
from tpuctl.cloud.tpu import QueuedTpu, Tpu, about_prices, describe_node, describe_queued
from tpuctl.errors import TpuctlError
from tpuctl.outcome import Outcome, Status


@dataclass(frozen=True)
class TpuList(Outcome):
    """Every TPU and queued resource that could be seen, and the zones that could not be.

    The sums leave out what is not known; `unpriced` counts the running TPUs without a price.
    """

    zone: str | None
    tpus: tuple[Tpu, ...]
    queued_resources: tuple[QueuedTpu, ...]
    unreachable_zones: tuple[str, ...]
    usd_per_hour: float
    usd_so_far: float
    unpriced: int
    emulated: bool
    failed: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`partial` when something could not be seen."""
        return "partial" if self.unreachable_zones or self.failed else "ok"

    @property
    def exit_code(self) -> int:
        """That of what could not be listed at all; zones that are away are only a warning."""
        return self.failed[0].exit_code if self.failed else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The zones that did not answer: what is there is not shown, but may be billed."""
        if not self.unreachable_zones:
            return ()
        zones = ", ".join(self.unreachable_zones)
        return (f"No answer from {zones}: what is there is not shown, and may be billed.",)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Where the prices come from."""
        return (about_prices(),)

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """What could not be listed."""
        return self.failed


def list_tpus(api: TpuApi, *, zone: str | None = None) -> TpuList:
    """List nodes and queued resources of a zone, or of all zones, in two requests at once."""
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
        failed=seen.failures,
    )


def show_tpu(api: TpuApi, name: str, *, zone: str | None = None) -> Tpu | QueuedTpu:
    """Show one TPU, or the queued resource that waits for it; without a zone all are searched."""
    found = find(api, name, zone)
    now = api.clock.now()
    if isinstance(found, Node):
        return describe_node(found, now=now, emulated=api.emulated)
    return describe_queued(found, now=now)
