"""`list` and `show`: what there is, over real gRPC."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests import contract
from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE, ask, printed, queue, sent
from tpuctl.cloud.list import list_tpus
from tpuctl.cloud.models import LABEL_TTL_S
from tpuctl.cloud.tpu import QueuedTpu, Tpu
from tpuctl.errors import NotFoundError, RateLimitedError, UnavailableError, UsageError
from tpuctl.remote.jobs import show_with_jobs
from tpuctl.reporters import tpus as report

Worlds = Callable[..., CloudWorld]
Tpuctl = Callable[..., Any]
Golden = Callable[[str, str], None]


def test_every_zone_is_listed_in_one_request_for_each_kind(world: Worlds) -> None:
    here = world()
    ask(here, "t1")
    ask(here, "t2", zone=FAR)
    here.clock.sleep(3600)
    seen = list_tpus(here.api)
    assert [(tpu.name, tpu.zone, tpu.state) for tpu in seen.tpus] == [
        ("t2", FAR, "READY"),
        ("t1", HERE, "READY"),
    ]
    assert [tpu.usd_so_far for tpu in seen.tpus] == [pytest.approx(12.48), pytest.approx(9.6)]
    assert seen.usd_per_hour == pytest.approx(22.08)
    assert (seen.status, seen.exit_code, seen.emulated) == ("ok", 0, True)
    assert sorted(call for call in here.emulator.requests if call[0].startswith("list")) == [
        ("list_nodes", "-", ""),
        ("list_queued_resources", "-", ""),
    ]


def test_one_zone_is_listed_alone(world: Worlds) -> None:
    here = world()
    ask(here, "t1")
    ask(here, "t2", zone=FAR)
    seen = list_tpus(here.api, zone=FAR)
    assert [tpu.name for tpu in seen.tpus] == ["t2"]


def test_a_zone_that_does_not_answer_is_named_and_the_rest_is_shown(world: Worlds) -> None:
    away = {"on": "list_nodes", "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    ask(here, "t1")
    ask(here, "t2", zone=FAR)
    seen = list_tpus(here.api)
    assert [tpu.name for tpu in seen.tpus] == ["t1"]
    assert seen.unreachable_zones == (FAR,)
    assert (seen.status, seen.exit_code) == ("partial", 0)
    assert seen.warnings == (
        f"No answer from {FAR}: TPUs there are not shown, but may cost money.",
    )


def test_where_all_zones_at_once_are_refused_each_is_asked_at_the_same_time(world: Worlds) -> None:
    refused = {"on": "list_nodes", "zone": "-", "error": "zone_hidden", "every": True}
    here = world({"faults": [refused]})
    ask(here, "t1")
    ask(here, "t2", zone=FAR)
    queue(here, "q1")
    here.clock.sleep(200)
    seen = list_tpus(here.api)
    assert {tpu.name for tpu in seen.tpus} == {"t1", "t2", "q1"}
    assert [item.name for item in seen.queued_resources] == ["q1"]
    assert sent(here, "list_locations") == [""]


def test_a_list_without_its_queued_resources_is_partial_and_fails(world: Worlds) -> None:
    fault = {"on": "list_queued_resources", "error": "permission", "every": True}
    here = world({"faults": [fault]})
    ask(here, "t1")
    seen = list_tpus(here.api)
    assert [tpu.name for tpu in seen.tpus] == ["t1"]
    assert (seen.status, seen.exit_code) == ("partial", 1)
    assert [error.code for error in seen.failures] == ["permission_denied"]


def test_a_dead_node_and_its_dead_queued_resource_block_their_chips_once(world: Worlds) -> None:
    here = world({"faults": [{"on": "node", "name": "q1", "event": "preempt", "at_s": 300}]})
    queue(here, "q1")
    here.clock.sleep(600)
    seen = list_tpus(here.api)
    assert [seen.tpus[0].is_dead, seen.queued_resources[0].is_dead] == [True, True]
    assert "holding its name and the quota of 8 chips: q1." in report.render_tpus(seen)


def test_a_dead_tpu_is_shown_with_what_it_still_blocks(world: Worlds, golden: Golden) -> None:
    death = {"on": "node", "name": "t2", "event": "preempt", "at_s": 600}
    here = world({"faults": [death]})
    ask(here, "t1", labels={LABEL_TTL_S: "14400"})
    ask(here, "t2", spot=True)
    queue(here, "q1", zone=FAR, kind="v5e-16")
    here.clock.sleep(7200)
    ask(here, "t3", zone=FAR)
    golden("list.txt", report.render_tpus(list_tpus(here.api)) + "\n")


def test_nothing_is_said_to_be_nothing(world: Worlds) -> None:
    here = world()
    assert "No TPUs in any zone." in report.render_tpus(list_tpus(here.api)) + "\n"
    assert f"No TPUs in {HERE}." in report.render_tpus(list_tpus(here.api, zone=HERE))
    partly = replace(list_tpus(here.api), failures=(UnavailableError("No answer."),))
    assert "No TPUs at the providers that answered." in report.render_tpus(partly)


def test_the_age_is_the_services_however_wrong_the_laptops_clock(world: Worlds) -> None:
    here = world()
    ask(here, "t1", labels={LABEL_TTL_S: "7200"})
    here.clock.sleep(3600)
    for days in (1, -1):
        (tpu,) = list_tpus(here.connect(wrong_by=timedelta(days=days))).tpus
        assert (round(tpu.age_s), round(tpu.ttl_left_s or 0)) == (3600, 3600)


def test_show_finds_a_tpu_in_whatever_zone_it_is(world: Worlds, golden: Golden) -> None:
    here = world()
    ask(here, "pod", zone=FAR, kind="v5e-16", labels={LABEL_TTL_S: "7200", "team": "vision"})
    here.clock.sleep(1800)
    shown = show_with_jobs(here.api, "pod")
    assert isinstance(shown, Tpu)
    assert (shown.zone, len(shown.workers), shown.ttl_left_s) == (FAR, 4, 5400)
    text = printed(report.render_tpu(shown)).replace(shown.id, "ID")
    golden("show_pod.txt", text.replace(shown.labels["tpuctl-create"], "CREATE-ID"))


def test_show_of_a_name_in_two_zones_asks_which(world: Worlds) -> None:
    here = world()
    ask(here, "t1")
    ask(here, "t1", zone=FAR)
    with pytest.raises(UsageError, match=f"in {FAR}, {HERE}") as refused:
        show_with_jobs(here.api, "t1")
    assert "--zone" in str(refused.value.hint)
    assert show_with_jobs(here.api, "t1", zone=FAR).zone == FAR


def test_show_of_what_waits_in_line_shows_the_queued_resource(world: Worlds) -> None:
    here = world({"zones": {HERE: {"capacity_chips": 0}}})
    queue(here, "q1")
    here.clock.sleep(60)
    for zone in (None, HERE):
        shown = show_with_jobs(here.api, "q1", zone=zone)
        assert isinstance(shown, QueuedTpu)
        assert shown.state == "WAITING_FOR_RESOURCES"
    assert "WAITING_FOR_RESOURCES" in printed(report.render_tpu(shown))


def test_show_of_nothing_names_the_zone(world: Worlds) -> None:
    here = world()
    with pytest.raises(NotFoundError, match=f"TPU t1 not found in {HERE}"):
        show_with_jobs(here.api, "t1", zone=HERE)
    with pytest.raises(NotFoundError, match="TPU t1 not found in any zone"):
        show_with_jobs(here.api, "t1")


def test_what_may_be_in_a_silent_zone_is_not_said_to_be_nowhere(world: Worlds) -> None:
    away = {"on": "list_nodes", "zone": FAR, "error": "unavailable", "every": True}
    here = world({"faults": [away]})
    with pytest.raises(UnavailableError, match=f"{FAR} did not"):
        show_with_jobs(here.api, "t1")


def test_both_lists_failing_is_the_error_itself(world: Worlds) -> None:
    faults = [
        {"on": method, "error": "rate_limit", "every": True}
        for method in ("list_nodes", "list_queued_resources")
    ]
    with pytest.raises(RateLimitedError):
        list_tpus(world({"faults": faults}).api)


def test_list_and_show_keep_the_contract_on_the_command_line(world: Worlds, tpuctl: Tpuctl) -> None:
    here = world()
    ask(here, "t1")
    queue(here, "q1")
    here.clock.sleep(300)
    listed = tpuctl("list", "--json").document
    assert contract.problems(listed, "list", contract.TPU_LIST) == []
    assert [tpu["name"] for tpu in listed["data"]["tpus"]] == ["q1", "t1"]
    shown = tpuctl("show", "t1", "--json").document
    assert contract.problems(shown, "show", contract.TPU) == []
    assert (shown["data"]["created"], shown["data"]["emulated"]) == ("2026-11-20T09:00:00Z", True)


def test_the_zone_that_is_set_is_the_zone_that_is_listed(
    world: Worlds, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()
    ask(here, "t1")
    ask(here, "t2", zone=FAR)
    monkeypatch.setenv("TPUCTL_ZONE", FAR)
    names = [
        {tpu["name"] for tpu in tpuctl("list", "--json", *more).data["tpus"]}
        for more in ((), ("--all-zones",), ("--zone", "-"), ("--zone", HERE))
    ]
    assert names == [{"t2"}, {"t1", "t2"}, {"t1", "t2"}, {"t1"}]


def test_auto_looks_in_every_zone_and_deletes_all_of_none(
    world: Worlds, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(world(), "t1")
    monkeypatch.setenv("TPUCTL_ZONE", "auto")
    assert [tpu["name"] for tpu in tpuctl("list", "--json").data["tpus"]] == ["t1"]
    assert tpuctl("show", "t1", "--zone", "auto").exit_code == 0
    refused = tpuctl("delete", "--all", "--yes")
    assert (refused.exit_code, "--zone -" in refused.stderr) == (2, True)


@pytest.mark.parametrize("name", ["", "a/b", "../t1", "t1 ", "t1\n", "?x=1", "é"])
def test_a_name_that_none_can_bear_is_refused_without_a_request(
    world: Worlds, tpuctl: Tpuctl, name: str
) -> None:
    here = world()
    result = tpuctl("show", "--json", "--zone", HERE, "--", name)
    assert result.exit_code in (1, 2)
    assert result.document["errors"][0]["code"] in ("invalid", "usage")
    assert here.emulator.requests == []
