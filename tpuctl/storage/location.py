"""Whether a bucket lies where a machine is: bytes from elsewhere are slow, and cost money."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FACTS = Path(__file__).parent / "data" / "locations.json"


@dataclass(frozen=True)
class Location:
    """Where a bucket keeps its bytes: `US-CENTRAL1`, `EU`, `NAM4`; two regions of one's choice."""

    name: str
    regions: tuple[str, ...] = ()

    def holds(self, zone: str) -> bool | None:
        """Whether a zone, `us-central1-a`, is inside; None for a place that is not known here."""
        region = zone.rpartition("-")[0].lower()
        if self.regions:
            return region in {name.lower() for name in self.regions}
        facts = _facts()
        if wide := facts["multi_regions"].get(self.name.upper()):
            return region.startswith(tuple(wide["prefixes"])) and region not in wide["except"]
        if pair := facts["dual_regions"].get(self.name.upper()):
            return region in pair
        return region == self.name.lower() if "-" in self.name else None


def warning_of(address: str, location: Location, zone: str) -> str | None:
    """Say that a bucket is not where the machine is; None where it is, or nobody knows."""
    if location.holds(zone) is not False:
        return None
    place = "+".join(location.regions) or location.name
    return (
        f"{address} is in {place}, this machine in {zone}: every byte between them is slow and is "
        f"charged for. A bucket in {zone.rpartition('-')[0]} costs nothing to read."
    )


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_FACTS.read_text(encoding="utf-8"))
    return facts
