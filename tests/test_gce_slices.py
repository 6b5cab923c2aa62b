"""Slices on Compute Engine: three parts that are made, resumed, read as one and deleted."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests.cloud_world import Worlds
from tests.gce_world import PLAIN, ZONE, GceWorld, open_gce
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.create import Created, create
from tpuctl.cloud.delete import delete, plan_delete
from tpuctl.cloud.gc import delete_orphans, find_orphans
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, INCOMPLETE
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, CreatePlan, plan_create
from tpuctl.cloud.requests import reconcile

pytestmark = pytest.mark.slow

SLICE = CreateOptions("s1", "v6e-16", (ZONE,), provider="gce")


class Killed(BaseException):
    """What `kill -9` is to the code in this process: nothing catches it."""


def plan_of(api: TpuApi, options: CreateOptions = SLICE) -> CreatePlan:
    return complete_plan(api, plan_create(options))


def make(api: TpuApi, options: CreateOptions = SLICE) -> Created:
    made = create(api, plan_of(api, options), journal=Journal())
    assert isinstance(made, Created), made
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


def points(world: Worlds, monkeypatch: pytest.MonkeyPatch, act: Any) -> Iterator[tuple[Any, ...]]:
    """Kill an action after each of its requests, in a world of its own, until it is not reached."""
    for nth in range(1, 200):
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


def test_gc_finds_all_that_a_killed_create_leaves(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(here: GceWorld, api: TpuApi | None, plan: Any = None) -> Any:
        return create(api, plan, journal=Journal()) if api else plan_of(here.api)

    states: Counter[str] = Counter()
    for here, nth, request in points(world, monkeypatch, act):
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


def test_the_same_create_again_finishes_what_a_killed_one_began(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(here: GceWorld, api: TpuApi | None, plan: Any = None) -> Any:
        return create(api, plan, journal=Journal()) if api else plan_of(here.api)

    for here, nth, request in points(world, monkeypatch, act):
        api = here.connect()
        reconcile(api, Journal())
        if left(api).get("s1") == "READY":
            continue
        made = create(api, plan_of(api), journal=Journal())
        assert isinstance(made, Created), f"killed after request {nth}, {request}: {made.failures}"
        assert (made.state, len(made.workers)) == ("READY", 4)
        assert len(left(api)) == 1


def test_gc_finishes_a_killed_deletion(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(here: GceWorld, api: TpuApi | None, _: Any = None) -> Any:
        if api is None:
            return make(here.api)
        return delete(api, plan_delete(api, ["s1"], journal=Journal()), journal=Journal())

    states: Counter[str] = Counter()
    for here, nth, request in points(world, monkeypatch, act):
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


def test_a_slice_of_tpu7x_is_created_preempted_replaced_and_finishes(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("asyncssh", reason="asyncssh is not installed")
    event = {"on": "instance", "name": "s1-w-*", "event": "preempt", "at_s": 1500}
    scenario = {**PLAIN, "time_scale": 200, "provision_s": 60, "delete_s": 20, "faults": [event]}
    here = open_gce(world, monkeypatch, scenario, real_time=True, machines=tmp_path)
    # The first attempt waits until it is taken away, the second ends.
    script = 'test "$TPUCTL_ATTEMPT" != 1 || sleep 600'
    done = library.watch(
        "s1", ["bash", "-c", script], accelerator_type="tpu7x-32", zone="us-central1-c", spot=True,
        delete_at_end=True,
    )  # fmt: skip
    assert [attempt.cause for attempt in done.attempts] == ["preempted", "done"]
    assert "it was preempted at" in done.attempts[0].reason
    assert left(here.api) == {}
