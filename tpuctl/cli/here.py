"""What this machine is to the others: its zone, and its share of work that several do."""

from tpuctl.datasets.models import Part, parse_part
from tpuctl.datasets.places import bucket_of
from tpuctl.runtime.chips import find_chips
from tpuctl.runtime.live import live_machine
from tpuctl.runtime.topology import find_topology
from tpuctl.settings import load_settings


def zone(flag: str | None, *places: str) -> str | None:
    """The zone that is set, else that of this machine; None where no bucket is involved."""
    if not any(bucket_of(place) for place in places):
        return None
    return load_settings({"zone": flag})["zone"] or _own_zone()


def part(hosts: str, dst: str) -> Part | None:
    """The share that `--hosts` asks for; `auto` asks for one only where all see the target.

    Raises UsageError.
    """
    if hosts != "auto":
        return parse_part(hosts)
    if not bucket_of(dst):
        return None
    machine = live_machine()
    topology = find_topology(machine, find_chips(machine))
    if topology.worker is None or topology.hosts < 2:
        return None
    return Part(topology.worker, topology.hosts)


def _own_zone() -> str | None:
    place = live_machine().metadata("instance/zone")
    return place.rpartition("/")[2] if place else None
