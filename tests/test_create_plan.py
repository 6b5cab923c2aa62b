"""What can be known to fail is refused before any request; the rest is derived from the type."""

from dataclasses import replace
from typing import Any

import pytest

from tpuctl.cloud.models import LABEL_CREATE_ID, LABEL_MAX_USD_CENTS, LABEL_TTL_S, DataDisk, Quota
from tpuctl.cloud.placement import (
    DataSource,
    apply_quota,
    egress_usd_per_gib,
    is_far,
    rank_offers,
    traffic_warnings,
)
from tpuctl.cloud.plan import CreateOptions, Offer, parse_data_disk, plan_create, request_for
from tpuctl.errors import InvalidInputError, TpuctlError, UsageError
from tpuctl.hardware.types import describe

ZONE = "us-central1-a"


def options(name: str = "t1", kind: str = "v5e-8", **more: Any) -> CreateOptions:
    return CreateOptions(name, kind, **{"zones": (ZONE,), **more})


def test_a_type_in_any_spelling_becomes_runtime_version_workers_and_price() -> None:
    for spelling in ("v5e-8", "v5litepod-8", "V5LITE-8"):
        plan = plan_create(options(kind=spelling))
        assert plan.accelerator_type == "v5litepod-8"
        assert (plan.chips, plan.workers, plan.topology) == (8, 1, "2x4")
        assert plan.runtime_version == "v2-alpha-tpuv5-lite"
        assert plan.offers == (Offer(ZONE, 9.6),)
    assert plan_create(options(kind="v4-32")).workers == 4


def test_a_generation_of_the_other_control_plane_is_refused_with_its_flag() -> None:
    with pytest.raises(InvalidInputError) as caught:
        plan_create(options(kind="tpu7x-8"))
    assert "--provider gce" in str(caught.value.hint)


def test_spot_has_a_price_of_its_own() -> None:
    assert plan_create(options(spot=True)).offers[0].usd_per_hour == 1.96


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (options(kind="v5e-7"), UsageError, "v5e-7 does not exist"),
        (options(kind="gpu"), UsageError, "not a valid accelerator type"),
        (options(kind="tpu7x-8"), InvalidInputError, "does not offer tpu7x"),
        (options(name=""), InvalidInputError, "is not a valid TPU name"),
        (options(name="T1"), InvalidInputError, "is not a valid TPU name"),
        (options(name="1t"), InvalidInputError, "is not a valid TPU name"),
        (options(name="t-"), InvalidInputError, "is not a valid TPU name"),
        (options(name="t" * 64), InvalidInputError, "is not a valid TPU name"),
        (options(name="t1\n"), InvalidInputError, "is not a valid TPU name"),
        (options(name="../t1"), InvalidInputError, "is not a valid TPU name"),
        (options(zones=("-",)), InvalidInputError, "is not a valid zone"),
        (options(zones=("us-central1-a/..",)), InvalidInputError, "is not a valid zone"),
        (options(zones=(ZONE, ZONE)), UsageError, "given twice"),
        (options(spot=True, reserved=True), UsageError, "exclude each other"),
        (options(runtime_version="v2-alpha-tpuv6e"), InvalidInputError, "of v6e, not of v5e"),
        (options(ttl_s=0.0), InvalidInputError, "--ttl must be a finite number greater than 0"),
        (options(ttl_s=0.5), InvalidInputError, "at least 1s"),
        (
            options(max_usd=-1.0),
            InvalidInputError,
            "--max-usd must be a finite number greater than 0",
        ),
        (options(max_usd=float("nan")), InvalidInputError, "finite"),
        (options(max_usd=float("inf")), InvalidInputError, "finite"),
        (options(zones=("mars-north1-a",), max_usd=5.0), InvalidInputError, "Cannot keep a budget"),
        (options(labels={"tpuctl-create": "x"}), InvalidInputError, "is reserved"),
        (options(labels={"Team": "x"}), InvalidInputError, "is not a valid label"),
        (options(labels={"team": "A B"}), InvalidInputError, "is not a valid label"),
        (options(labels={f"l{n}": "" for n in range(62)}), InvalidInputError, "Too many labels"),
    ],
)
def test_what_cannot_work_is_refused_before_any_request(
    wanted: CreateOptions, error: type[TpuctlError], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_create(wanted)


def test_a_budget_becomes_a_life_time_and_the_shorter_limit_counts() -> None:
    assert plan_create(options(max_usd=9.6)).offers[0].ttl_s == 3600
    assert plan_create(options(max_usd=9.6, ttl_s=7200.0)).offers[0].ttl_s == 3600
    assert plan_create(options(max_usd=9.6, ttl_s=60.0)).offers[0].ttl_s == 60
    assert plan_create(options(max_usd=9.6, spot=True)).offers[0].ttl_s == 17632


def test_a_zone_whose_price_is_unknown_is_not_tried_on_a_budget() -> None:
    plan = plan_create(options(zones=(ZONE, "mars-north1-a"), max_usd=5.0))
    assert [offer.zone for offer in plan.to_try] == [ZONE]
    assert "--max-usd needs it" in (plan.offers[1].not_tried or "")


DISK = f"projects/p/zones/{ZONE}/disks/photos"


def test_a_zone_that_the_data_disks_are_not_in_is_not_tried() -> None:
    here, region = DataDisk(DISK), DataDisk("projects/p/regions/us-central1/disks/all")
    plan = plan_create(options(zones=(ZONE, "us-east5-a"), data_disks=(here, region)))
    assert [offer.not_tried for offer in plan.offers] == [
        None,
        f"its data disk photos is in {ZONE}",
    ]
    with pytest.raises(InvalidInputError, match="Cannot create t1 in us-east5-a"):
        plan_create(options(zones=("us-east5-a",), data_disks=(here,)))


@pytest.mark.parametrize(
    ("text", "disk"),
    [
        (f"source={DISK}", DataDisk(DISK)),
        (f"mode=read-only,source={DISK}", DataDisk(DISK, read_only=True)),
        (f"source={DISK},mode=read-write", DataDisk(DISK)),
        ("photos", None),
        (f"source={DISK},mode=r", None),
        (f"source={DISK},size=3", None),
        ("source=,mode=read-only", None),
    ],
)
def test_a_data_disk_is_written_as_for_gcloud(text: str, disk: DataDisk | None) -> None:
    if disk:
        assert parse_data_disk(text) == disk
    else:
        with pytest.raises(InvalidInputError, match="is not a valid data disk"):
            parse_data_disk(text)


def test_what_is_dangerous_but_possible_is_a_warning() -> None:
    plan = plan_create(options(ttl_s=120.0, zones=("mars-north1-a",)))
    assert any("The price of" in warning for warning in plan.warnings)
    assert any("is deleted 2m 00s after" in warning for warning in plan.warnings)
    pod = plan_create(options(kind="v4-32", runtime_version="tpu-vm-tf-2.17.1"))
    assert any("is for a single worker, but this TPU has 4" in warning for warning in pod.warnings)


def test_the_request_carries_its_identity_its_limits_and_its_guard() -> None:
    plan = plan_create(options(max_usd=20.0, labels={"team": "a"}, internal_ip=True, spot=True))
    request = request_for(plan, plan.offers[0], project="p", create_id="id-1")
    assert request.labels == {
        "team": "a",
        LABEL_CREATE_ID: "id-1",
        LABEL_TTL_S: str(int(20 / 1.96 * 3600)),
        LABEL_MAX_USD_CENTS: "2000",
    }
    assert "--create-id=id-1" in request.metadata["startup-script"]
    assert (request.external_ips, request.spot) == (False, True)


def test_without_a_limit_there_is_no_guard() -> None:
    plan = plan_create(options())
    assert request_for(plan, plan.offers[0], project="p", create_id="i").metadata == {}


def test_the_cheapest_zone_comes_first_then_the_most_quota_and_the_unknown_last() -> None:
    offers = (
        Offer("unknown-a", None),
        Offer("full-a", 1.0, not_tried="quota 0"),
        Offer("small-a", 2.0, quota_chips=8),
        Offer("large-a", 2.0, quota_chips=64),
        Offer("dear-a", 3.0),
    )
    zones = [offer.zone for offer in rank_offers(offers)]
    assert zones == ["large-a", "small-a", "dear-a", "unknown-a", "full-a"]


@pytest.mark.parametrize(
    ("limit", "spot", "reason"),
    [
        (0, False, "quota 0 chips"),
        (4, False, "has 8"),
        (8, False, None),
        (0, True, None),
    ],
)
def test_a_zone_without_quota_is_not_tried(limit: int, spot: bool, reason: str | None) -> None:
    quota = Quota("q", "v5e", spot, "us-central1", limit, "chips")
    offer = apply_quota(Offer(ZONE, 9.6), [quota], describe("v5e-8"), False)
    assert (reason is None) == (offer.not_tried is None)
    assert (reason or "") in (offer.not_tried or "")
    assert offer.quota_chips == (None if spot else limit)


def test_a_reason_not_to_try_is_kept() -> None:
    offer = replace(Offer(ZONE, None), not_tried="no price")
    quota = Quota("q", "v5e", False, ZONE, 0, "chips")
    assert apply_quota(offer, [quota], describe("v5e-8"), False).not_tried == "no price"


@pytest.mark.parametrize(
    ("location", "zone", "far"),
    [
        ("us-central1", "us-central1-a", False),
        ("us-central1", "us-central2-b", True),
        ("us", "us-west4-a", False),
        ("us", "europe-west4-a", True),
        ("eu", "europe-west4-a", False),
        ("nam4", "us-east1-d", False),
        ("nam4", "us-west4-a", True),
        ("asia", "asia-northeast1-b", False),
        ("nowhere-yet", "us-west4-a", True),
    ],
)
def test_traffic_leaves_a_region_only_when_it_does(location: str, zone: str, far: bool) -> None:
    assert is_far(location, zone) == far


def test_traffic_costs_by_the_parts_of_the_world_at_its_ends() -> None:
    assert egress_usd_per_gib("us-central1", "us-west4") == 0.02
    assert egress_usd_per_gib("us", "northamerica-northeast1") == 0.02
    assert egress_usd_per_gib("europe-west4", "us-west4") == 0.08
    assert egress_usd_per_gib("us", "australia-southeast1") == 0.157


def test_the_warning_names_what_is_where_and_what_it_costs() -> None:
    sources = (DataSource("gs://data", "us"), DataSource("This machine", "us-west4"))
    (note,) = traffic_warnings(("us-west4-a", "us-central1-a"), sources)
    assert note.startswith("This machine is in us-west4, not in us-central1:")
    assert "about $0.0200 per GiB ($20.48 per TiB; as of 2026-09)" in note
    assert traffic_warnings(("us-west4-a",), sources) == ()
