"""Kill -9 at every single step of a create, then any command: nothing is billed unknown to us."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld, Worlds
from tests.conftest import Tpuctl
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID, NodeRequest

A, B = "us-west4-a", "us-central1-a"
ZONE = {"types": ["v5litepod-8"], "capacity_chips": 16, "quota_chips": 32}
FAST = {"time_scale": 500, "provision_s": 45, "delete_s": 5}

# Forks a child for each line of its input. The child creates a TPU as the program does, but the
# n-th thing that it does to the file system or asks the service is its last.
NURSERY = """
import json, os, signal, sys
from pathlib import Path
from tpuctl.cloud import _google_api, connect
from tpuctl.cloud.create import Created, create
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.cloud.placement import complete_plan

def live(n, endpoint, folder, options, timeout_s):
    left = n
    def step():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def deadly(work):
        def act(*arguments, **named):
            step()
            result = work(*arguments, **named)
            step()
            return result
        return act
    class Mortal:
        def __getattr__(self, name):
            found = getattr(api, name)
            return deadly(found) if callable(found) else found
    api = connect.connect(None, endpoint=endpoint)
    plan = complete_plan(api, plan_create(CreateOptions(**options)))
    for name in ("replace", "unlink"):
        setattr(os, name, deadly(getattr(os, name)))
    create(Mortal(), plan, journal=Journal(Path(folder)), timeout_s=timeout_s)
    os._exit(0)

for line in sys.stdin:
    if (child := os.fork()) == 0:
        try:
            live(*json.loads(line))
        finally:
            import traceback; traceback.print_exc(); os._exit(1)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Nursery:
    """Makes creates that die at a step."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def kill_at(
        self, step: int, here: CloudWorld, journal: Journal, options: Any, timeout_s: float
    ) -> bool:
        """Whether the create was killed; otherwise it has ended by itself."""
        assert self._process.stdin
        assert self._process.stdout
        order = [step, here.emulator.endpoint, str(journal.folder), options, timeout_s]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, 9), "the create itself has failed"
        return status == 9


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"GRPC_VERBOSITY": "NONE"},
    )
    with process:
        yield Nursery(process)
        assert process.stdin
        process.stdin.close()


def things(here: CloudWorld) -> list[Any]:
    nodes = here.api.list_nodes(ALL_ZONES).items
    return [*nodes, *here.api.list_queued_resources(ALL_ZONES).items]


def unknown(here: CloudWorld, journal: Journal) -> list[str]:
    """What exists, and so may be billed, without an entry that leads to it."""
    known = {e.create_id for e in journal.entries(here.api) if e.phase != "closed"}
    return [thing.name for thing in things(here) if thing.labels[LABEL_CREATE_ID] not in known]


def test_the_check_would_find_what_nobody_knows_of(world: Worlds, tmp_path: Path) -> None:
    here = world({"zones": {A: ZONE}})
    here.api.create_node(NodeRequest("t1", A, "v5litepod-8", "v2-alpha-tpuv5-lite", "nobody-knows"))
    assert unknown(here, Journal(tmp_path)) == ["t1"]


SEARCH = {
    "zones": {A: ZONE, B: ZONE},
    "faults": [{"on": "create_node", "zone": A, "error": "stockout", "after_s": 20}],
    **FAST,
}
RACE = {"zones": {A: {**ZONE, "capacity_chips": 0}, B: ZONE}, **FAST}
SLOW = {"zones": {A: ZONE, B: ZONE}, **FAST, "provision_s": 1e6}
OPTIONS = {"name": "t1", "accelerator_type": "v5e-8", "zones": [A, B]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "options", "timeout_s", "lands"),
    [
        pytest.param(SEARCH, OPTIONS, 1e6, True, id="search"),
        pytest.param(
            RACE, OPTIONS | {"queued": True}, 1e6, True, id="race", marks=pytest.mark.soak
        ),
        pytest.param(SLOW, OPTIONS, 31.0, False, id="deadline", marks=pytest.mark.soak),
    ],
)
def test_killed_at_any_step_nothing_is_billed_that_is_not_known(
    world: Worlds,
    tpuctl: Tpuctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nursery: Nursery,
    scenario: dict[str, Any],
    options: dict[str, Any],
    timeout_s: float,
    lands: bool,
) -> None:
    step, killed = 0, True
    while killed:
        step += 1
        state = tmp_path / str(step)
        monkeypatch.setenv("TPUCTL_STATE_DIR", str(state))
        journal, here = Journal(state / "creates"), world(scenario, real_time=True)
        killed = nursery.kill_at(step, here, journal, options, timeout_s)
        assert unknown(here, journal) == [], f"step {step}"
        assert tpuctl("list", "--json").exit_code == 0
        assert unknown(here, journal) == [], f"step {step}"
        if killed:
            words = ["create", "t1", "--type", "v5e-8", "--zones", f"{A},{B}", "--yes"]
            in_line = ["--queued"] if options.get("queued") else []
            again = tpuctl(*words, *in_line, "--timeout", f"{timeout_s}s")
            # Killed after the very last word of the journal: it is there, and known to be ready.
            is_there = again.exit_code == 1 and "already exists in" in again.stderr
            expected = again.exit_code == (0 if lands else 3)
            assert expected or (lands and is_there), f"step {step}: {again.stderr}"
        assert tpuctl("gc", "--yes", "--json").exit_code == 0
        left = {(thing.name, thing.state) for thing in things(here)}
        wanted = {("t1", "READY"), ("t1", "ACTIVE")} if lands else set()
        assert left <= wanted, f"step {step}"
        assert len([n for n in things(here) if n.state == "READY"]) == int(lands), f"step {step}"
    assert step > 20
