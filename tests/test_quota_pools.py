"""What a project may have in a zone, from the limits of all pools and places."""

import pytest

from tpuctl.cloud.models import Quota
from tpuctl.cloud.quotas import chips_allowed


def limit(id: str, place: str, chips: int, *, spot: bool = False) -> Quota:
    return Quota(id, "v5e", spot, place, chips, "chips")


ZONE = limit("TPUV5sLitepodPerProjectPerZoneForTPUAPI", "us-west4-a", 16)
REGION = limit("TPUV5sLitepodPerProjectPerRegionForTPUAPI", "us-west4", 8)
SERVING = limit("TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", "us-west4-a", 0)


@pytest.mark.parametrize(
    ("quotas", "chips"),
    [
        ([], None),
        ([ZONE], 16),
        ([ZONE, REGION], 8),
        ([REGION, SERVING], 8),
        ([SERVING], 0),
        ([limit(ZONE.id, "us-west4-b", 4)], None),
        ([limit(ZONE.id, "us-west4-a", 4, spot=True)], None),
    ],
)
def test_zone_and_region_both_hold_and_the_best_pool_counts(
    quotas: list[Quota], chips: int | None
) -> None:
    assert chips_allowed(quotas, "v5e", "us-west4-a", spot=False) == chips
