"""The command line killed after every request: of a slice, which gc collects, and of a launch.

A few points run here; all of them with TPUCTL_ALL_KILLS=1, as in `make test-kills` and `make soak`.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tpuctl as library
from tests.cloud_world import Worlds
from tests.conftest import Tpuctl
from tests.gce_world import PLAIN, ZONE, GceWorld, open_gce
from tests.gke_world import STAGING, Clusters, launch
from tests.gke_world import cluster as cluster
from tpuctl.cloud.models import ALL_ZONES, INCOMPLETE
from tpuctl.emulator.service import Emulator
from tpuctl.storage import open_storage

pytestmark = pytest.mark.soak

FAST = {**PLAIN, "time_scale": 500, "delete_s": 20}
# So that a create is also killed while its machines are being made.
PROVISION_S = {"create": 5000, "delete": 20}
WORDS = {
    "create": ("create", "s1", "--type", "v6e-16", "--zone", ZONE, "--provider", "gce", "--yes"),
    "delete": ("delete", "s1", "--zone", ZONE, "--yes"),
}
SAMPLE = {"create": (4, 5, 7), "delete": (4, 13, 23)}
IS_WHOLE = bool(os.environ.get("TPUCTL_ALL_KILLS"))


class Killer:
    """Kills a command when the service has carried out its nth request, before the reply.

    `hook` is the emulator's method that carries out a request, or one that begins each reply.
    """

    def __init__(self, emulator: Emulator, nth: int, hook: str = "answer") -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.nth, self.seen = nth, list[str]()
        self._act = getattr(emulator, hook)
        setattr(emulator, hook, self.act)

    def act(self, *call: Any) -> Any:
        try:
            return self._act(*call)
        finally:
            if self.process:
                self.seen.append(call[0].method if call else "reply")
                if len(self.seen) == self.nth:
                    self.process.kill()
                    self.process.wait()

    def run(self, *words: str) -> bool:
        """Run a command; whether it was killed."""
        command = [sys.executable, "-m", "tpuctl", *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        _, said = self.process.communicate(timeout=300)
        code, self.process = self.process.returncode, None
        # The last create is not killed: it gives up, because its machines take too long.
        gave_up = code == 3 and b"to wait longer: --timeout" in said
        assert code in (0, -signal.SIGKILL) or gave_up, said.decode()
        return code == -signal.SIGKILL


def parts(here: GceWorld) -> set[str]:
    """Everything that exists on Compute Engine."""
    compute = here.world.emulator.advance().compute
    made = {f"{kind} {key.name}" for kind, key in compute.resources}
    return made | {f"instances {key.name}" for key in compute.instances}


def of_others(here: GceWorld, monkeypatch: pytest.MonkeyPatch, state: Path) -> set[str]:
    """Make what is not ours: a slice and a VM of another machine, a policy of another program."""
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(state))
    for name, kind in (("s2", "v6e-16"), ("s1-w-0", "v6e-4")):
        library.create(name, kind, zone=ZONE, provider="gce", wait=False)
    api: Any = here.api
    http = api._api._http
    context = api._api._doing("make a policy", "tpuctl-s1")
    body = {
        "name": "tpuctl-s1",
        "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"},
    }
    http.send("POST", "projects/practice/regions/us-east5/resourcePolicies", context, body=body)
    return parts(here)


@pytest.mark.timeout(3600 if IS_WHOLE else 600)
@pytest.mark.parametrize("verb", ["create", "delete"])
def test_gc_collects_what_a_killed_command_leaves_and_nothing_of_others(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, tmp_path: Path, verb: str
) -> None:
    found: Counter[str] = Counter()
    for nth in range(1, 200) if IS_WHOLE else SAMPLE[verb]:
        scenario = {**FAST, "provision_s": PROVISION_S[verb]}
        here = open_gce(world, monkeypatch, scenario, real_time=True)
        others = of_others(here, monkeypatch, tmp_path / f"{nth}-others")
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / f"{nth}"))
        if verb == "delete":
            library.create("s1", "v6e-16", zone=ZONE, provider="gce")
        killer = Killer(here.world.emulator, nth)
        if not killer.run(*WORDS[verb]):
            break
        nodes = here.api.list_nodes(ALL_ZONES, leftovers=True).items
        left = {node.name: node.state for node in nodes}
        found[left.get("s1", "nothing")] += 1
        for _ in range(3):
            assert tpuctl("gc", "--yes", "--json").exit_code == 0
            here.clock.sleep(600)
        ours, where = parts(here) - others, f"killed after request {nth}, {killer.seen[-1]}"
        assert others <= parts(here), where
        if left.get("s1") == "READY":
            assert len(ours) == 7, "a slice that is ready is listed, not deleted unasked"
        else:
            assert ours == set(), where
    print(f"{verb}: {found.total()} kills, which left: {dict(found)}")  # noqa: T201
    assert found[INCOMPLETE]
    assert found.total() > (9 if IS_WHOLE else 1)


@pytest.mark.timeout(3600 if IS_WHOLE else 600)
def test_a_launch_that_was_killed_is_one_job_with_one_archive_when_run_again(
    cluster: Clusters, monkeypatch: pytest.MonkeyPatch, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    words, kills = launch("--env", "NAP=0.2", type="v6e-1"), 0
    for nth in range(1, 200) if IS_WHOLE else (3, 6, 9):
        world = cluster({"node_pools": [{"accelerator_type": "v6e-1"}]})
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / f"{nth}"))
        if not Killer(world.emulator, nth, "headers").run(*words):
            break
        kills += 1
        again = tpuctl(*words, "--json")
        assert again.exit_code == 0, f"killed after reply {nth}: {again.stderr}"
        (job_set,) = world.emulator.cluster.objects.all("jobsets")
        assert job_set["metadata"]["name"] == again.data["name"]
        assert len(list(open_storage(f"{STAGING}/tpuctl").list())) == 1
    print(f"{kills} kills")  # noqa: T201
    assert kills > (9 if IS_WHOLE else 2)
