"""Capacity: the pools of a zone, which are shared with nodes, and the quotas of a region."""

from collections.abc import Sequence

from tpuctl.emulator.compute.resources import Instance, region_of
from tpuctl.emulator.errors import ServiceError, compute_error
from tpuctl.emulator.world import World


def refuse_capacity(world: World, wanted: Sequence[Instance]) -> ServiceError | None:
    """Return why a set of identical instances cannot be created now; None if it can."""
    first = wanted[0]
    chips = sum(instance.chips for instance in wanted)
    if chips > _free(world, first):
        if first.reserved:
            return compute_error("reservation_full", reservation="practice")
        facts = {"project": first.key.project, "zone": first.key.zone}
        return compute_error("stockout", machine_type=first.machine.name, **facts)
    # The service was observed to check quota after capacity (2026-11-22).
    return _lacks_quota(world, first, chips)


def _free(world: World, wanted: Instance) -> int:
    """Count the free chips in the pools that the instances would use."""
    free = [world.free_chips(wanted.key.zone, reserved=wanted.reserved)]
    age_s = (world.now - world.began).total_seconds()
    for pool, steps in world.scenario.compute_zones[wanted.key.zone].pools.items():
        if _is_in(wanted, pool):
            chips = next((steps[at] for at in sorted(steps, reverse=True) if at <= age_s), 0)
            used = (
                other.chips
                for other in world.compute.instances.values()
                if other.holds_chips and other.key.zone == wanted.key.zone and _is_in(other, pool)
            )
            free.append(chips - sum(used))
    return min(free)


def _is_in(instance: Instance, pool: str) -> bool:
    """Whether an instance uses the chips of a pool: `spot`, a machine type, or `TYPE/spot`."""
    return pool in (
        instance.model,
        instance.machine.name,
        f"{instance.machine.name}/{instance.model}",
    )


def _lacks_quota(world: World, wanted: Instance, chips: int) -> ServiceError | None:
    if wanted.reserved:
        return None
    region = region_of(wanted.key.zone)
    plan = world.scenario.compute.quota(region)
    used = {True: 0, False: 0}
    for other in world.compute.instances.values():
        is_same = other.machine.generation == wanted.machine.generation
        place = (other.key.project, region_of(other.key.zone))
        if other.holds_chips and is_same and place == (wanted.key.project, region):
            used[other.model != "on_demand"] += other.chips
    spot_left = plan.spot_quota_chips - used[True]
    left = plan.quota_chips - used[False]
    # Flex-start uses preemptible quota first, then standard quota.
    if chips <= {"on_demand": left, "spot": spot_left}.get(wanted.model, max(left, spot_left)):
        return None
    quota = wanted.machine.quota(plan, spot=wanted.model == "spot")
    return compute_error("quota", region=region, **quota)
