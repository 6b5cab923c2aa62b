"""Workers of an emulated TPU by its name: from the API to real SSH and back."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.cloud_world import MORNING
from tests.waiting import wait_until
from tests.workers import alive
from tpuctl.clock import Clock, ManualClock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.cloud.models import Endpoint, Node, NodeRequest
from tpuctl.emulator.server import serve
from tpuctl.emulator.service import ScaledClock
from tpuctl.errors import TpuctlError, UnavailableError, UsageError, WrongStateError
from tpuctl.remote.hosts import find_node, split_user, workers_of
from tpuctl.remote.keys import KeyPair, ensure_key, key_for_tpus
from tpuctl.settings import state_dir

pytestmark = pytest.mark.slow

ZONE = "us-central1-a"
SCALE = 500
SCENARIO: dict[str, Any] = {
    "provision_s": 10,
    "time_scale": SCALE,
    "zones": {ZONE: {"types": ["v5litepod-16"], "capacity_chips": 64, "quota_chips": 64}},
}
KEY = KeyPair(Path("k"), "ssh-ed25519 AAAA me@laptop")


class Practice:
    """An emulator whose workers are machines, its clock, and the API to it."""

    def __init__(self, api: TpuApi, clock: Clock, folder: Path) -> None:
        self.api, self.clock, self.folder = api, clock, folder

    def create(self, *, tell_key: bool = True, metadata: dict[str, str] | None = None) -> Node:
        """Make t1; a command line cannot wait on this clock until it has taken the key."""
        request = NodeRequest(
            "t1", ZONE, "v5litepod-16", "v2-alpha-tpuv5-lite", "0a" * 16, metadata=metadata or {}
        )
        self.api.create_node(request)
        self.clock.sleep(11)
        node = self.api.get_node("t1", zone=ZONE)
        if tell_key:
            user, _ = split_user("t1")
            ensure_key(self.api, node, user, key_for_tpus(state_dir()))
        return node

    def home(self, node: Node, worker: int) -> Path:
        return self.folder / node.id / str(worker) / "home"


@contextmanager
def practising(
    folder: Path, *faults: dict[str, Any], clock: Clock | None = None, **more: Any
) -> Iterator[Practice]:
    scenario = {**SCENARIO, "faults": list(faults), **more}
    clock = clock or ManualClock(MORNING)
    with serve(scenario, clock=clock, machines=folder) as emulator:
        os.environ["TPUCTL_TPU_ENDPOINT"] = emulator.endpoint
        yield Practice(connect("p", endpoint=emulator.endpoint, clock=clock), clock, folder)


@pytest.fixture
def practice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Practice]:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    monkeypatch.setenv("TPUCTL_ZONE", ZONE)
    with practising(tmp_path / "machines") as world:
        yield world


def test_a_tpu_is_reached_by_its_name_with_a_key_that_it_is_told(
    tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TPUCTL_TPU_ENDPOINT", "TPUCTL_PROJECT"):
        monkeypatch.setenv(name, "p")
    run = ("run", "t1", "--zone", ZONE, "--json", "--", "sh", "-c", "echo $TPU_WORKER_ID; pwd")
    with practising(tmp_path / "m", clock=ScaledClock(MORNING, SCALE)) as practice:
        node = practice.create(tell_key=False)
        first = tpuctl(*run)
        assert [worker["stdout"].split() for worker in first.data["workers"]] == [
            [str(index), str(practice.home(node, index))] for index in range(4)
        ]
        told = practice.api.get_node("t1", zone=ZONE).metadata["ssh-keys"]
        assert tpuctl(*run).exit_code == 0
        assert practice.api.get_node("t1", zone=ZONE).metadata["ssh-keys"] == told


def test_every_worker_knows_the_others(tpuctl, practice) -> None:
    node = practice.create()
    result = tpuctl("run", "t1", "--worker", "3", "--", "printenv", "TPU_WORKER_HOSTNAMES")
    names = [endpoint.internal_ip for endpoint in node.endpoints]
    assert result.stdout.strip() == ",".join(map(str, names))


def test_files_go_to_a_tpu_and_jobs_run_there(tpuctl, practice, tmp_path: Path) -> None:
    node = practice.create()
    (tmp_path / "train.sh").write_text("echo step 1; exit 3\n")
    assert tpuctl("cp", str(tmp_path / "train.sh"), "t1:code/").exit_code == 0
    assert (practice.home(node, 3) / "code" / "train.sh").is_file()
    started = tpuctl("run", "t1", "--chdir", "code", "--job", "j", "--", "sh", "train.sh")
    assert f"tpuctl logs t1 --zone {ZONE} --job j -f" in started.stdout
    followed = tpuctl("logs", "t1", "-f")
    assert followed.exit_code == 3
    assert "step 1" in followed.stdout


def test_a_preempted_tpu_takes_its_processes_and_its_disk_with_it(
    tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    fault = {"on": "node", "name": "t1", "event": "preempt", "at_s": 1000, "nth": 1}
    marker = f"preempt-{os.getpid()}"
    with practising(tmp_path / "machines", fault) as practice:
        old = practice.create()
        job = ("run", "t1", "--zone", ZONE, "--job", "j", "--", "sh", "-c", "sleep 600; :", marker)
        assert tpuctl(*job).exit_code == 0
        assert len(alive(marker)) >= 4
        practice.clock.sleep(1000)
        wait_until(lambda: alive(marker) == [])
        refused = tpuctl("run", "t1", "--zone", ZONE, "--", "true")
        assert refused.exit_code == 1
        assert "PREEMPTED" in refused.stderr
        practice.api.delete_node("t1", zone=ZONE)
        practice.clock.sleep(600)
        new = practice.create()
        assert not practice.home(old, 0).exists()
        assert new.id != old.id
        assert tpuctl("run", "t1", "--zone", ZONE, "--", "true").exit_code == 0


def test_a_worker_that_is_down_refuses(
    tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    fault = {"on": "node", "name": "t1", "event": "worker_down", "at_s": 100, "worker": 2}
    with practising(tmp_path / "machines", fault) as practice:
        practice.create()
        practice.clock.sleep(100)
        result = tpuctl("run", "t1", "--zone", ZONE, "--", "true")
        assert result.exit_code == 3
        assert "worker 2" in result.stderr
        assert "--worker 0-1,3" in result.stderr


def test_a_tpu_that_is_not_ready_says_how_to_wait_for_it(practice) -> None:
    request = NodeRequest("t2", ZONE, "v5litepod-16", "v2-alpha-tpuv5-lite", "0b" * 16)
    practice.api.create_node(request)
    with pytest.raises(UnavailableError, match="still CREATING") as caught:
        find_node(practice.api, "t2", ZONE)
    assert caught.value.hint == f"tpuctl wait t2 --zone {ZONE} --for ready"
    practice.clock.sleep(11)
    practice.api.delete_node("t2", zone=ZONE)
    with pytest.raises(WrongStateError, match="DELETING"):
        find_node(practice.api, "t2", ZONE)


def test_a_key_is_added_to_those_that_are_there(practice) -> None:
    node = practice.create(tell_key=False)
    other = KeyPair(Path("o"), "ssh-ed25519 BBBB you@desk")
    assert ensure_key(practice.api, node, "me", KEY)
    assert ensure_key(practice.api, practice.api.get_node("t1", zone=ZONE), "you", other)
    node = practice.api.get_node("t1", zone=ZONE)
    assert node.metadata["ssh-keys"].splitlines() == [f"me:{KEY.public}", f"you:{other.public}"]
    assert not ensure_key(practice.api, node, "me", KEY)


def test_with_os_login_no_metadata_is_touched(practice) -> None:
    node = practice.create(tell_key=False)
    with_login = {**node.metadata, "enable-oslogin": "TRUE"}
    assert not ensure_key(practice.api, replace(node, metadata=with_login), "me", KEY)
    assert "ssh-keys" not in practice.api.get_node("t1", zone=ZONE).metadata


def test_our_own_key_is_made_once_and_only_ours_to_read(tmp_path: Path) -> None:
    pair = key_for_tpus(tmp_path)
    assert key_for_tpus(tmp_path) == pair
    assert pair.path.stat().st_mode & 0o077 == 0
    assert pair.path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_commands_that_make_the_key_at_once_use_the_same_one(tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        with ThreadPoolExecutor(4) as pool:
            pairs = set(pool.map(key_for_tpus, [folder] * 4))
        assert len(pairs) == 1
        public = ["ssh-keygen", "-y", "-f", str(pairs.pop().path)]
        written = (folder / "ssh" / "id_tpuctl.pub").read_text().split()[:2]
        assert subprocess.check_output(public, text=True).split()[:2] == written


def test_gclouds_key_is_used_where_there_is_one(tmp_path: Path) -> None:
    ssh = Path.home() / ".ssh"
    ssh.mkdir()
    (ssh / "google_compute_engine").write_text("private")
    (ssh / "google_compute_engine.pub").write_text("ssh-rsa AAAA me\n")
    assert key_for_tpus(tmp_path).public == "ssh-rsa AAAA me"


def test_a_chosen_key_without_its_public_half_says_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("private")
    with pytest.raises(TpuctlError, match="are needed, and one is missing") as caught:
        key_for_tpus(tmp_path, tmp_path / "k")
    assert "ssh-keygen -y" in (caught.value.hint or "")


def a_node(*endpoints: Endpoint, **metadata: str) -> Node:
    return Node(
        "t1", ZONE, "7", "v5litepod-16", "r", "READY", "HEALTHY", MORNING,
        endpoints=endpoints, metadata=metadata,
    )  # fmt: skip


def test_the_outer_address_is_used_unless_it_is_declined_or_missing() -> None:
    node = a_node(Endpoint("10.0.0.1", "34.0.0.1"), Endpoint("10.0.0.2", None))
    assert [host.address for host in workers_of(node, "me")] == ["34.0.0.1", "10.0.0.2"]
    inside = workers_of(node, "me", internal_ip=True)
    assert [host.address for host in inside] == ["10.0.0.1", "10.0.0.2"]
    assert [host.key_alias for host in inside] == ["tpu.7-0", "tpu.7-1"]
    assert inside[0].port == 22


def test_a_worker_without_an_address_is_named() -> None:
    with pytest.raises(TpuctlError, match="Worker 1 of t1"):
        workers_of(a_node(Endpoint("10.0.0.1", None), Endpoint(None, None)), "me")


@pytest.mark.parametrize(
    ("text", "user", "name"), [("me@t1", "me", "t1"), ("a-b_1@t1", "a-b_1", "t1")]
)
def test_a_user_may_stand_before_the_name(text: str, user: str, name: str) -> None:
    assert split_user(text) == (user, name)


@pytest.mark.parametrize("text", ["@t1", "me@", "-x@t1", "M e@t1", "a@b@t1"])
def test_what_is_no_user_and_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        split_user(text)


def test_nobody_logs_in_to_a_tpu_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "root")
    assert split_user("t1") == ("tpuctl", "t1")
    monkeypatch.setenv("LOGNAME", "Ana.Maria")
    assert split_user("t1") == ("ana_maria", "t1")


def test_a_chip_that_somebody_holds_keeps_a_job_from_starting(
    tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    fault = {"on": "node", "name": "t1", "event": "worker_busy", "at_s": 100, "worker": 1}
    with practising(tmp_path / "machines", fault) as practice:
        practice.create()
        job = ("run", "t1", "--zone", ZONE, "--job", "j", "--", "true")
        assert tpuctl(*job).exit_code == 0
        practice.clock.sleep(100)
        refused = tpuctl(*job[:-3], "k", *job[-2:])
        assert refused.exit_code == 1
        assert "worker 1" in refused.stderr
        assert "held by process" in refused.stderr
        assert alive("infinity")
    wait_until(lambda: not alive("infinity"))


@pytest.mark.slow
def test_a_tpu_whose_chips_somebody_uses_is_seen_by_top_and_freed(
    tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    fault = {"on": "node", "name": "t1", "event": "worker_busy", "worker": 2}
    with practising(tmp_path / "machines", {**fault, "duty_cycle_percent": 87.5}) as practice:
        practice.create()
        where = ("t1", "--zone", ZONE, "--worker", "1-2")

        def chips() -> list[dict[str, Any]]:
            return tpuctl("top", *where, "--json").data["workers"][1]["chips"]  # type: ignore[no-any-return]

        wait_until(lambda: chips()[0]["duty_cycle_percent"] is not None)
        assert [chip["duty_cycle_percent"] for chip in chips()] == [87.5] * 4
        assert [chip["hbm_bytes"] for chip in chips()] == [16 << 30] * 4
        freed = tpuctl("free", *where, "--yes", "--json")
        assert freed.exit_code == 0
        assert [len(worker["holders"]) for worker in freed.data["workers"]] == [0, 1]
        assert [chip["holder_pid"] for chip in chips()] == [None] * 4
        assert "worker 1-2: all chips are free" in tpuctl("free", *where, "--dry-run").stdout
