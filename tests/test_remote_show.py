"""`show` names the jobs on a TPU, and a TPU that `create` made knows our key from the start."""

from pathlib import Path

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests import contract
from tests.watch_world import ZONE, watching
from tpuctl.cloud.models import NodeRequest
from tpuctl.remote.keys import KeyPair, first_key, knows_key, with_key

KEY = KeyPair(Path("k"), "ssh-ed25519 AAAA me@laptop")
CREATE = ("create", "t1", "--type", "v5e-8", "--zone", ZONE, "--yes")


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_PROJECT", "p")


@pytest.mark.slow
def test_what_create_makes_lets_us_in_and_show_names_its_jobs(tpuctl, tmp_path: Path) -> None:
    with watching(tmp_path, time_scale=300) as world:
        assert tpuctl(*CREATE).exit_code == 0
        assert tpuctl("show", "t1", "--json").data["jobs"] == []
        run = ("run", "t1", "--zone", ZONE, "--job")
        assert tpuctl(*run, "first", "--", "sh", "-c", "exit 3").exit_code == 0
        assert tpuctl("logs", "t1", "--zone", ZONE, "-f").exit_code == 3
        assert tpuctl(*run, "second", "--", "sleep", "600").exit_code == 0
        shown = tpuctl("show", "t1", "--json")
        assert contract.problems(shown.document, "show", contract.TPU) == []
        jobs = {job["job"]: job["workers"][0]["state"] for job in shown.data["jobs"]}
        assert jobs == {"first": "finished", "second": "running"}
        assert "exit code 3" in tpuctl("show", "t1").words
        methods = [method for method, _, _ in world.emulator.requests]
        assert "update_node" not in methods


@pytest.mark.slow
def test_show_tells_no_worker_of_our_key_and_says_why_it_knows_no_jobs(
    tpuctl, tmp_path: Path
) -> None:
    with watching(tmp_path, time_scale=300) as world:
        api = world.api()
        api.create_node(NodeRequest("t1", ZONE, "v5litepod-8", "v2-alpha-tpuv5-lite", "0a" * 16))
        assert tpuctl("show", "t1", "--json").data["jobs_why_null"] == "it is CREATING"
        world.clock.jump(100)
        shown = tpuctl("show", "t1", "--json", "-v")
        assert shown.data["jobs"] is None
        assert "do not know our key yet" in shown.data["jobs_why_null"]
        assert "its jobs are not known" in shown.stderr
        assert "ssh-keys" not in api.get_node("t1", zone=ZONE).metadata


def test_a_key_is_added_once_beside_those_of_others() -> None:
    both = with_key({"ssh-keys": "you:ssh-rsa BBBB\n", "a": "b"}, "me", KEY)
    assert both == {"ssh-keys": f"you:ssh-rsa BBBB\nme:{KEY.public}", "a": "b"}
    assert with_key(both, "me", KEY) == both
    assert knows_key(both, "me", KEY)
    assert not knows_key(both, "you", KEY)


def test_without_a_place_for_a_key_a_tpu_is_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file is in the way")
    assert first_key(tmp_path / "state", "me") == {}
