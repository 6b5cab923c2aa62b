"""The port of providers: what one cannot do is refused by name, and results are joined."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests.cloud_world import Worlds
from tests.conftest import Tpuctl
from tpuctl.cloud.models import DataDisk
from tpuctl.cloud.plan import CreateOptions
from tpuctl.cloud.tpu import Balance
from tpuctl.errors import UnsupportedError, UsageError
from tpuctl.providers.check import _balance
from tpuctl.providers.colab.provider import Colab
from tpuctl.providers.combined import rank
from tpuctl.providers.port import Abilities, ProviderOffer, flag_of
from tpuctl.providers.registry import PROVIDERS, open_provider
from tpuctl.storage.local import write_atomically

ZONE = "us-central1-a"
CHIPS = {"types": ["v5litepod-8"], "capacity_chips": 32, "quota_chips": 64}
FAST = {"zones": {ZONE: CHIPS}, "time_scale": 500, "provision_s": 20, "delete_s": 20}
OTHER: dict[str, Any] = {
    "zones": ("z",),
    "labels": {"a": "b"},
    "tags": ("t",),
    "startup_script": b"x",
    "data_disks": (DataDisk("d"),),
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_option_of_create_is_honoured_or_refused_by_name(name: str) -> None:
    abilities = open_provider(name).abilities
    assert abilities.name == name
    assert abilities.options <= {each.name for each in fields(CreateOptions)}
    plain = CreateOptions("t1", "v5e-8")
    abilities.check(plain)
    for each in fields(CreateOptions):
        if each.name in ("name", "accelerator_type", "metadata", "watch"):
            continue
        before = getattr(plain, each.name)
        changed = OTHER.get(each.name, True if before is False else 5.0)
        options = replace(plain, **{each.name: changed})
        if each.name in abilities.options:
            abilities.check(options)
            continue
        with pytest.raises(UnsupportedError) as caught:
            abilities.check(options)
        assert abilities.title in str(caught.value)
        assert flag_of(each.name) in str(caught.value)
        assert caught.value.hint


def test_an_option_that_nobody_thought_of_is_refused() -> None:
    nothing = Abilities("none", "Nowhere")
    with pytest.raises(UnsupportedError, match="Nowhere does not offer --spot"):
        nothing.check(CreateOptions("t1", "v5e-8", spot=True))


def test_an_unknown_provider_is_wrong_usage_and_the_known_ones_are_named(tpuctl: Tpuctl) -> None:
    for command in (["list"], ["gc"], ["offers"], ["delete", "t1", "--yes"]):
        result = tpuctl(*command, "--provider", "aws", "--json")
        (error,) = result.document["errors"]
        assert (result.exit_code, error["code"]) == (2, "usage")
        assert "cloud-tpu" in error["hint"]


@pytest.mark.parametrize("verb", ["list", "delete", "create"])
def test_what_hosts_cannot_do_names_the_closest_thing(tpuctl: Tpuctl, verb: str) -> None:
    words = {
        "list": ["list"],
        "delete": ["delete", "t1", "--yes"],
        "create": ["create", "t1", "--type", "v5e-8"],
    }[verb]
    result = tpuctl(*words, "--provider", "hosts", "--json")
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (2, "unsupported")
    assert "--host does not offer" in error["message"]
    assert error["hint"]


def test_a_zone_has_no_effect_where_there_are_none(tpuctl: Tpuctl) -> None:
    result = tpuctl("list", "--provider", "hosts", "--zone", ZONE, "--json")
    assert result.exit_code == 2
    assert "no zones" in result.document["errors"][0]["message"]


def test_cloud_tpus_are_offered_with_price_quota_and_evidence(world: Worlds) -> None:
    world(FAST, real_time=True)
    found = library.offers("v5e-8", provider="cloud-tpu")
    assert {offer.provisioning for offer in found.offers} == {"spot", "on_demand"}
    prices = [offer.usd_per_hour or 0 for offer in found.offers]
    assert prices == sorted(prices)
    assert all(offer.chips == 8 and offer.evidence for offer in found.offers)
    every = library.offers()
    assert {offer.accelerator_type for offer in every.offers} > {"v5litepod-1", "v6e-1"}
    assert "hosts" in every.unusable


def test_offers_of_a_type_that_does_not_exist_are_wrong_usage(world: Worlds) -> None:
    world(FAST)
    with pytest.raises(UsageError):
        library.offers("v99-8")


def test_without_credentials_a_provider_is_listed_as_such(
    tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens there.
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "127.0.0.1:1")
    result = tpuctl("offers", "--json")
    assert result.exit_code == 0
    assert result.document["status"] == "attention"
    assert "No emulator answers" in result.data["unusable"]["cloud-tpu"]
    alone = tpuctl("offers", "--provider", "cloud-tpu", "--json")
    assert alone.exit_code == 3


def test_what_can_be_had_comes_first_and_free_hours_before_dollars() -> None:
    def offer(provisioning: str, usd: float | None, available: bool | None) -> ProviderOffer:
        kind: object = provisioning
        return ProviderOffer("p", "v5e-8", 8, None, kind, usd, available=available)  # type: ignore[arg-type]

    gone, unknown = offer("free", None, False), offer("units", None, None)
    cheap, dear, free = (offer("spot", 1.0, None), offer("spot", 2.0, True), offer("free", 9, True))
    assert rank([gone, dear, unknown, free, cheap]) == (free, cheap, dear, unknown, gone)


def test_how_long_a_balance_lasts() -> None:
    assert Balance("colab", "units", 30.0, 3.0).hours_left == 10
    assert Balance("colab", "units", 30.0, 0.0).hours_left is None
    assert Balance("kaggle", "hours", 18.0, reserved=9.0).hours_left == 9
    assert Balance("kaggle", "hours", None).hours_left is None


def test_doctor_counts_what_is_left_in_the_unit_of_the_account() -> None:
    assert _balance(Balance("colab", "units", 90.24, 3.0)).detail == "90.2 units left"
    assert _balance(Balance("kaggle", "hours", 18.0, reserved=9.0)).detail == "9 hours left"


def test_a_live_tpu_is_meant_although_colab_has_deleted_one_of_its_name(
    world: Worlds, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world(FAST, real_time=True)
    state = os.environ.get("TPUCTL_STATE_DIR", "")
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "another-machine"))
    library.create("t1", "v5e-8", zone=ZONE)
    monkeypatch.setenv("TPUCTL_STATE_DIR", state or str(tmp_path / "state"))
    write_atomically(Colab(None, print)._records.path("t1", "gone"), "its time to live is over.")
    assert open_provider("colab").was_deleted("t1")
    assert tpuctl("show", "t1", "--json").data["provider"] == "cloud-tpu"
    assert tpuctl("delete", "t1", "--yes", "--json").data["tpus"][0]["outcome"] == "deleted"
