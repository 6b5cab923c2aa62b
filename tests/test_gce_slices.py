"""Slices on Compute Engine: three parts that are made, resumed, read as one and deleted."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests.cloud_world import Worlds
from tests.gce_world import PLAIN, V6E, ZONE, GceWorld, open_gce
from tests.waiting import at_the_same_time, wait_until
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.create import Created, NotCreated, create
from tpuctl.cloud.delete import delete, plan_delete
from tpuctl.cloud.gc import delete_orphans, find_orphans
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.list import list_tpus
from tpuctl.cloud.models import ALL_ZONES, INCOMPLETE, Node
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.requests import reconcile
from tpuctl.cloud.tpu import price_now
from tpuctl.errors import NotLoggedInError, UnavailableError
from tpuctl.providers.combined import _sort_errors
from tpuctl.providers.registry import open_provider
from tpuctl.supervise.messages import WatchResult

pytestmark = pytest.mark.slow

DAY_S = 86400
SLICE = CreateOptions("s1", "v6e-16", (ZONE,), provider="gce")


class Killed(BaseException):
    """What `kill -9` is to the code in this process: nothing catches it."""


def plan_of(api: TpuApi, options: CreateOptions = SLICE) -> CreatePlan:
    return complete_plan(api, plan_create(options))


def make(api: TpuApi, options: CreateOptions = SLICE) -> Created:
    made = create(api, plan_of(api, options), journal=Journal())
    assert isinstance(made, Created), made.failures
    return made


def die_after(api: TpuApi, nth: int) -> list[str]:
    """Die when the reply to the nth request arrives; the service has carried it out."""
    seen: list[str] = []

    def count(reply: Any, *_: Any, **__: Any) -> None:
        seen.append(f"{reply.request.method} {reply.request.path_url.partition('?')[0]}")
        if len(seen) == nth:
            _ = reply.content  # so that the connection is not left open
            raise Killed

    api._api._http._session.hooks["response"].append(count)  # type: ignore[attr-defined]
    return seen


def left(api: TpuApi) -> dict[str, str]:
    """Everything that exists, with its state, and every part of slices."""
    return {node.name: node.state for node in api.list_nodes(ALL_ZONES, leftovers=True).items}


def collect(here: GceWorld) -> None:
    """Run what `tpuctl gc --yes` runs, as a new process."""
    api, journal = here.connect(), Journal()
    reconcile(api, journal)
    found = delete_orphans(api, find_orphans(api, journal=journal), journal=journal)
    assert not found.failures


# Every fifth request, and each of them in `make soak`.
POINTS = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])


def points(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, act: Any, step: int
) -> Iterator[tuple[Any, ...]]:
    """Kill an action after every few requests, each in a world of its own, until it ends first."""
    for nth in range(step, 200, step):
        # Its own journal, too: every command reads all of it.
        monkeypatch.setenv("TPUCTL_STATE_DIR", f"{os.environ['HOME']}/{nth}")
        here = open_gce(world, monkeypatch)
        api = here.connect()
        prepared = act(here, None)
        seen = die_after(api, nth)
        try:
            act(here, api, prepared)
        except Killed:
            yield here, nth, seen[-1]
            continue
        return
    raise AssertionError("it never ends")


@POINTS
def test_gc_finds_all_that_a_killed_create_leaves(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def act(here: GceWorld, api: TpuApi | None, plan: Any = None) -> Any:
        return create(api, plan, journal=Journal()) if api else plan_of(here.api)

    states: Counter[str] = Counter()
    for here, nth, request in points(world, monkeypatch, act, step):
        states[before := left(here.api).get("s1", "nothing")] += 1
        collect(here)
        after = left(here.connect())
        if before == "READY":
            assert after == {"s1": "READY"}, "a slice that is ready is listed, not deleted unasked"
            continue
        assert after == {}, f"killed after request {nth}, {request}"
    assert states[INCOMPLETE] >= 2
    assert states["CREATING"]
    assert states["READY"]


@POINTS
def test_the_same_create_again_finishes_what_a_killed_one_began(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def act(here: GceWorld, api: TpuApi | None, plan: Any = None) -> Any:
        return create(api, plan, journal=Journal()) if api else plan_of(here.api)

    for here, nth, request in points(world, monkeypatch, act, step):
        api = here.connect()
        reconcile(api, Journal())
        if left(api).get("s1") == "READY":
            continue
        made = create(api, plan_of(api), journal=Journal())
        assert isinstance(made, Created), f"killed after request {nth}, {request}: {made.failures}"
        assert (made.state, len(made.workers)) == ("READY", 4)
        assert len(left(api)) == 1


@POINTS
def test_gc_finishes_a_killed_deletion(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    def act(here: GceWorld, api: TpuApi | None, _: Any = None) -> Any:
        if api is None:
            return make(here.api)
        return delete(api, plan_delete(api, ["s1"], journal=Journal()), journal=Journal())

    states: Counter[str] = Counter()
    for here, nth, request in points(world, monkeypatch, act, step):
        states[before := left(here.api).get("s1", "nothing")] += 1
        collect(here)
        after = left(here.connect())
        if before == "READY":
            assert after == {"s1": "READY"}, "its deletion was not requested yet"
        elif before in ("DELETING", "STOPPING"):
            api = here.connect()
            here.clock.sleep(120)
            collect(here)
            assert left(api) == {}, f"killed after request {nth}, {request}"
        else:
            assert after == {}, f"killed after request {nth}, {request}"
    assert states[INCOMPLETE]
    assert states["READY"]


GROUP = f"projects/practice/zones/{ZONE}/instanceGroupManagers/s1"


def remove(here: GceWorld, path: str = GROUP) -> None:
    """Delete one resource, as a user of the console does."""
    api: Any = here.connect()
    api._api._http.send("DELETE", path, api._api._doing("delete", "s1"))
    here.clock.sleep(120)


def test_a_group_that_goes_between_two_requests_leaves_its_parts_visible(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api)
    seen: list[str] = []

    def vanish(reply: Any, *_: Any, **__: Any) -> None:
        if reply.request.path_url.endswith("instanceGroupManagers/s1") and not seen:
            seen.append(reply.request.path_url)
            remove(here)

    api: Any = here.connect()
    api._api._http._session.hooks["response"].append(vanish)
    assert (api.get_node("s1", zone=ZONE).state, len(seen)) == (INCOMPLETE, 1)


def test_a_slice_whose_group_was_deleted_is_made_again_by_the_same_create(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    create(here.api, plan_of(here.api), journal=Journal(), wait=False)
    remove(here)
    spot = create(here.api, plan_of(here.api, replace(SLICE, spot=True)), journal=Journal())
    assert isinstance(spot, NotCreated)
    assert spot.error.hint == f"tpuctl delete s1 --zone {ZONE}"
    # The service answers a repeated request id with the operation of the group that is gone.
    assert (make(here.api).state, left(here.api)) == ("READY", {"s1": "READY"})


def test_a_slice_that_lost_a_vm_is_dead_costs_the_others_and_can_be_deleted(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    assert make(here.api).usd_per_hour == 43.2
    remove(here, f"projects/practice/zones/{ZONE}/instances/s1-w-001")
    (tpu,) = list_tpus(here.api).tpus
    assert (tpu.state, tpu.usd_per_hour) == ("TERMINATED", 32.4)
    collect(here)
    assert left(here.api) == {}


def test_a_slice_without_machines_costs_nothing_and_says_why(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch, {"zones": {ZONE: {**V6E, "capacity_chips": 8}}})
    made = create(here.api, plan_of(here.api), journal=Journal(), wait=False)
    assert isinstance(made, Created)
    here.clock.sleep(60)
    node = here.api.get_node("s1", zone=ZONE)
    assert (node.state, price_now(node)) == ("CREATING", 0)
    assert "does not have enough resources" in node.health_description


def test_a_reply_that_is_not_json_does_not_say_that_a_slice_is_gone(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = open_gce(world, monkeypatch)
    make(here.api)

    def spoil(reply: Any, *_: Any, **__: Any) -> None:
        reply._content, reply._content_consumed = b"<html>", True

    api: Any = here.connect()
    api._api._http._session.hooks["response"].append(spoil)
    with pytest.raises(UnavailableError):
        api.get_node("s1", zone=ZONE)


def test_an_expired_login_is_a_failure_only_where_a_plane_is_in_use(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(open_gce(world, monkeypatch).api)
    planes = [open_provider("gce"), open_provider("cloud-tpu")]
    notes, failures = _sort_errors([(each, NotLoggedInError("expired")) for each in planes])
    assert (len(notes), len(failures)) == (1, 1)


# The first attempt waits until its TPU is taken away, the second ends.
TWICE = ["bash", "-c", 'echo begun; test "$TPUCTL_ATTEMPT" != 1 || sleep 600']
Watched = Callable[..., tuple[WatchResult, Node]]


@pytest.fixture
def watched(world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Watched:
    """Watch a job, let a day pass when it has begun; returns what came of it, and the TPU."""
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    from tests.watch_world import SCALE, JumpingClock

    def run(event: dict[str, Any] | None, **options: Any) -> tuple[WatchResult, Node]:
        events = [{"on": "instance", "at_s": DAY_S, **event}] if event else []
        scenario = {**PLAIN, "time_scale": SCALE, "provision_s": 60, "delete_s": 20}
        scenario |= {"faults": events, **options.pop("scenario", {})}
        clock = JumpingClock()
        heard: list[bytes] = []
        here = open_gce(
            world, monkeypatch, scenario, real_time=True, machines=tmp_path / "m", clock=clock
        )

        def hear(stream: str, data: bytes) -> None:
            if not heard:
                on_start(here)
                clock.jump(DAY_S)
            heard.append(data)

        command, on_start = options.pop("command", TWICE), options.pop("on_start", print)
        meanwhile = options.pop("meanwhile", bool)
        with at_the_same_time(lambda: meanwhile(here)):
            done = library.watch("s1", command, sink=hear, **options)
        (node,) = here.api.list_nodes(ALL_ZONES, leftovers=True).items
        return done, node

    return run


def causes(done: WatchResult) -> list[str]:
    return [attempt.cause for attempt in done.attempts]


def test_a_slice_of_tpu7x_is_created_preempted_replaced_and_finishes(watched: Watched) -> None:
    event = {"name": "s1-w-*", "event": "preempt"}
    done, node = watched(event, accelerator_type="tpu7x-32", zone="us-central1-c", spot=True)
    assert causes(done) == ["preempted", "done"]
    assert "it was preempted at" in done.attempts[0].reason
    assert (node.state, node.spot, len(node.endpoints)) == ("READY", True, 4)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("host_error", "its VM s1-w-002 failed at"),
        # It ends a VM as a host error does; test_emulator_compute.py has both.
        pytest.param("maintenance", "its VM s1-w-002 failed at", marks=pytest.mark.soak),
        # As of a slice of tpu7x, above.
        pytest.param("preempt", "it was preempted at", marks=pytest.mark.soak),
    ],
)
def test_a_slice_that_loses_one_host_is_replaced_as_a_whole(
    watched: Watched, event: str, words: str
) -> None:
    lost, spot = {"name": "s1-w-002", "event": event}, event == "preempt"
    done, node = watched(lost, accelerator_type="v6e-16", zone=ZONE, provider="gce", spot=spot)
    assert causes(done) == ["preempted", "done"]
    assert words in done.attempts[0].reason
    assert (node.state, node.spot, len(node.endpoints)) == ("READY", spot, 4)


def test_a_slice_of_which_a_user_deleted_a_vm_is_not_replaced(watched: Watched) -> None:
    path = f"projects/practice/zones/{ZONE}/instances/s1-w-002"
    options: dict[str, Any] = {"accelerator_type": "v6e-16", "zone": ZONE, "provider": "gce"}
    done, node = watched(None, on_start=lambda here: remove(here, path), **options)
    assert (causes(done), node.state, len(node.endpoints)) == (["stopped"], "TERMINATED", 3)
    assert "you@example.com deleted its VM s1-w-002 at" in str(done.error)
    assert "Its other VMs cost money" in str(done.error)
    assert f"tpuctl delete s1 --zone {ZONE}" in str(done.error and done.error.hint)
    assert "costs $32.40 an hour" in done.warnings[0]
    again = library.watch("s1", TWICE, **options)
    assert (again.attempts, str(again.error)) == ((), str(done.error))


@pytest.mark.parametrize("kind", ["v6e-4", pytest.param("v6e-16", marks=pytest.mark.soak)])
def test_a_flex_start_whose_time_is_over_is_created_again_by_flex_start(
    watched: Watched, kind: str
) -> None:
    done, node = watched(None, accelerator_type=kind, zone=ZONE, flex=True, ttl_s=DAY_S)
    assert causes(done) == ["expired", "done"]
    assert "its time to live ended at" in done.attempts[0].reason
    assert (node.flex, node.provider, node.labels["tpuctl-ttl-s"]) == (True, "gce", "86400")


def test_a_slice_whose_time_to_live_is_over_is_not_created_again(watched: Watched) -> None:
    done, node = watched(None, accelerator_type="v6e-16", zone=ZONE, provider="gce", ttl_s=DAY_S)
    assert "its time to live is over" in str(done.error)
    assert node.state == "TERMINATED"


def test_a_flex_start_that_gets_no_capacity_in_time_is_requested_again(watched: Watched) -> None:
    zones = {**PLAIN["zones"], ZONE: {"pools": {"flex": {"0": 0, "9000": 64}}}}
    options: dict[str, Any] = {"accelerator_type": "v6e-4", "zone": ZONE, "flex": True}
    notes: list[str] = []

    def let_time_pass(here: GceWorld) -> None:
        clock: Any = here.clock
        wait_until(lambda: here.world.requests["compute_instances_insert"] == 1)
        clock.jump(7200)
        wait_until(lambda: here.world.requests["compute_instances_insert"] > 1)
        clock.jump(1800)

    options |= {"ttl_s": 3600, "note": notes.append, "meanwhile": let_time_pass}
    done, node = watched(None, command=["true"], scenario={"zones": zones}, **options)
    assert (causes(done), node.flex) == (["done"], True)
    assert any("Trying again" in note for note in notes)


def test_a_model_that_is_given_replaces_that_of_the_tpu(watched: Watched) -> None:
    zones = {**PLAIN["zones"], ZONE: {**V6E, "reserved_chips": 16}}
    once: dict[str, Any] = {"command": ["true"], "zone": ZONE, "scenario": {"zones": zones}}
    options = {"accelerator_type": "v6e-4", "reservation": "practice"}
    done, node = watched(None, **once, **options)
    assert (causes(done), node.reserved, node.reservation) == (["done"], True, "practice")
    plan: Any = library.watch("s1", ["true"], zone=ZONE, spot=True, dry_run=True)
    recipe = plan.watch_state.recipe
    assert (recipe.spot, recipe.reservation, recipe.provider) == (True, None, "gce")
