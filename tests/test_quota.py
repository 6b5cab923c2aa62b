"""`quota`: limits by zone and generation, and where one TPU of a type may exist."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE
from tpuctl.cloud.models import Quota
from tpuctl.cloud.quotas import QuotaTable, chips_allowed, read_all_quotas, read_quotas
from tpuctl.errors import NotLoggedInError, UsageError
from tpuctl.reporters.types import render_quotas

Worlds = Callable[..., CloudWorld]
ZONES = {
    HERE: {"types": ["v5litepod-8", "v5p-8"], "quota_chips": 4, "spot_quota_chips": 16},
    FAR: {"types": ["v5litepod-8"], "quota_chips": 0},
}


def quota(place: str, limit: int, *, spot: bool = False, counts: str = "chips") -> Quota:
    return Quota("id", "v5e" if counts == "chips" else "v4", spot, place, limit, counts)


def test_the_limits_are_shown_zone_by_zone(
    world: Worlds, golden: Callable[[str, str], None]
) -> None:
    table = read_quotas(world({"zones": ZONES}).api)
    limits = {(item.generation, item.zone): item for item in table.limits}
    assert (limits["v5e", HERE].on_demand_chips, limits["v5e", HERE].spot_chips) == (4, 16)
    assert limits["v5e", FAR].on_demand_chips == 0
    golden("quota.txt", render_quotas(table) + "\n")


def test_a_type_fits_where_the_limit_is_large_enough(
    world: Worlds, golden: Callable[[str, str], None]
) -> None:
    table = read_quotas(world({"zones": ZONES}).api, "v5e-8")
    fits = {item.zone: (item.on_demand_fits, item.spot_fits) for item in table.limits}
    assert fits[HERE] == (False, True)
    assert fits[FAR] == (False, False)
    assert (table.chips, table.warnings) == (8, ())
    golden("quota_v5e_8.txt", render_quotas(table) + "\n")


@pytest.mark.parametrize(("zone", "zones"), [(HERE, {HERE}), (f"{HERE},{FAR}", {HERE, FAR})])
def test_one_zone_or_several_are_shown_alone(world: Worlds, zone: str, zones: set[str]) -> None:
    api = world({"zones": ZONES}).api
    assert {item.zone for item in read_all_quotas([api], "v5e-8", zone).limits} == zones
    assert read_all_quotas([api], "v5e-8", "-") == read_all_quotas([api], "v5e-8")


def test_a_type_that_fits_nowhere_is_warned_of(world: Worlds) -> None:
    table = read_quotas(world({"zones": {FAR: ZONES[FAR]}}).api, "v5e-16")
    assert table.warnings == ("No zone is known to have quota for a v5litepod-16.",)


def test_the_least_of_zone_and_region_counts_and_nothing_is_not_zero() -> None:
    both = [quota(HERE, 64), quota("us-central1", 16), quota("us-central1", 128, spot=True)]
    assert chips_allowed(both, "v5e", HERE, spot=False) == 16
    assert chips_allowed(both, "v5e", HERE, spot=True) == 128
    assert chips_allowed(both, "v5e", FAR, spot=False) is None
    assert chips_allowed(both, "v6e", HERE, spot=False) is None


def test_cores_are_counted_as_chips() -> None:
    cores = [quota("us-central2-b", 32, counts="cores")]
    assert chips_allowed(cores, "v4", "us-central2-b", spot=False) == 16


def test_a_project_without_quota_says_so() -> None:
    assert "No known quota for TPUs" in render_quotas(QuotaTable("p", None, None, ()))
    assert "No known quota for v6e-8" in render_quotas(QuotaTable("p", "v6e-8", 8, ()))


def test_an_unknown_type_is_wrong_usage_before_any_request(world: Worlds) -> None:
    here = world()
    with pytest.raises(UsageError):
        read_quotas(here.api, "v5e-7")
    assert here.emulator.requests == []


def test_an_unknown_type_is_wrong_usage_without_a_login(
    tpuctl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotLoggedInError("no")

    monkeypatch.setattr("tpuctl.api.cloud.open_cloud", refuse)
    assert tpuctl("quota", "v9").exit_code == 2
    assert tpuctl("quota", "v6e-8").exit_code == 1


@pytest.mark.parametrize("error", ["permission", "api_disabled"])
def test_quotas_that_may_not_be_read_are_an_error_with_a_next_step(
    world: Worlds, tpuctl: Callable[..., Any], error: str
) -> None:
    world({"faults": [{"on": "list_quota_infos", "error": error, "every": True}]})
    result = tpuctl("quota", "--json")
    (failure,) = result.document["errors"]
    assert result.exit_code == 1
    assert failure["hint"]
