"""The verbs of `tpuctl.cloud` do from Python what the command line does."""

from collections.abc import Callable

import pytest

import tpuctl
from tests.cloud_world import CloudWorld
from tests.tpus import FAR, HERE, ask, ask_with_ttl, nodes_of
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.tpu import Tpu
from tpuctl.errors import UnavailableError

Worlds = Callable[..., CloudWorld]


def test_the_day_of_a_tpu_in_python(world: Worlds) -> None:
    here = world({"time_scale": 500, "provision_s": 20, "delete_s": 20}, real_time=True)
    ask(here, "t1")
    ask_with_ttl(Journal(), here, "t2", 1, zone=FAR)
    waited = tpuctl.wait("t1")
    assert waited.tpu
    assert [tpu.name for tpu in tpuctl.list(zone=HERE).tpus] == ["t1"]
    assert {tpu.name for tpu in tpuctl.list(all_zones=True).tpus} == {"t1", "t2"}
    shown = tpuctl.show("t1")
    assert isinstance(shown, Tpu)
    assert shown.id == waited.tpu.id
    assert [find.name for find in tpuctl.gc().found] == ["t2"]
    assert tpuctl.gc(yes=True).freed_chips == 8
    assert tpuctl.delete("t1").freed_chips == 8
    assert tpuctl.wait("t1", "gone").tpu is None
    assert nodes_of(here) == {}
    assert tpuctl.quota("v5e-8").limits


def test_the_verbs_are_named_and_nothing_else_is() -> None:
    assert {"list", "show", "wait", "delete", "gc", "quota"} <= set(dir(tpuctl))
    with pytest.raises(AttributeError, match="no attribute 'destroy'"):
        _ = tpuctl.destroy


def test_no_emulator_where_one_is_set_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "127.0.0.1:9")
    with pytest.raises(UnavailableError) as refused:
        tpuctl.list()
    assert "tpuctl emulator start" in str(refused.value.hint)
