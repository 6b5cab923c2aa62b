"""Managed instance groups."""

from collections.abc import Sequence

from tpuctl.emulator.world import World


def settle(world: World, freed: Sequence[str]) -> None:
    """Review."""
    world.compute.changed.clear()
