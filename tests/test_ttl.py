"""The guard on the VM, executed: it deletes its own TPU when its time is over, and no other."""

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import CloudWorld, Worlds
from tests.waiting import wait_until
from tpuctl.cloud import ttl
from tpuctl.cloud.create import Created, create
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.models import ALL_ZONES, LABEL_CREATE_ID, LABEL_TTL_S
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.cloud.ttl import GUARD, GuardTarget, startup_script
from tpuctl.errors import InvalidInputError

A = "us-west4-a"
ONE = {"zones": {A: {"types": ["v5litepod-8", "v5litepod-16"], "capacity_chips": 64}}}
NASTY = b'#!/bin/sh\n# \'"$(reboot)`\\ \xff\x00END\nEND\ncp "$0" "$TPUCTL_GUARD_FOLDER/seen"'


def made(here: CloudWorld, tmp_path: Path, kind: str = "v5e-8", **options: Any) -> Created:
    plan = complete_plan(here.api, plan_create(CreateOptions("t1", kind, zones=(A,), **options)))
    result = create(here.api, plan, journal=Journal(tmp_path / "creates"))
    assert isinstance(result, Created)
    return result


def metadata_of(here: CloudWorld, worker: int = 0) -> str:
    return f"{here.emulator.http}/vm/{here.api.project}/{A}/t1/{worker}"


def look_once(
    here: CloudWorld, create_id: str, *, worker: int = 0, api: str | None = None
) -> "subprocess.CompletedProcess[str]":
    words = ["--project", here.api.project, "--zone", A, "--name", "t1", "--create-id", create_id]
    places = ["--api", api or here.emulator.http, "--metadata", metadata_of(here, worker)]
    return subprocess.run(
        [sys.executable, "-I", str(GUARD), *words, *places, "--once"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_the_guard_waits_while_there_is_time_and_deletes_when_it_is_over(
    world: Worlds, tmp_path: Path
) -> None:
    here = world(ONE)
    create_id = made(here, tmp_path, ttl_s=3600.0).labels[LABEL_CREATE_ID]
    early = look_once(here, create_id)
    assert early.returncode == 0
    assert "t1 has 3480 s left; next look in 3480 s" in early.stdout
    here.clock.sleep(3481)
    late = look_once(here, create_id)
    assert "t1 has expired: deletion requested; next look in 60 s" in late.stdout
    assert here.api.get_node("t1", zone=A).state == "DELETING"
    assert "deletion requested" in look_once(here, create_id).stdout
    assert here.requests["delete_node"] == 1
    here.clock.sleep(60)
    assert here.api.list_nodes(ALL_ZONES).items == ()


def test_the_guard_of_a_queued_tpu_deletes_its_place_in_the_queue_too(
    world: Worlds, tmp_path: Path
) -> None:
    here = world(ONE)
    create_id = made(here, tmp_path, ttl_s=600.0, queued=True).labels[LABEL_CREATE_ID]
    here.clock.sleep(600)
    assert "deletion requested" in look_once(here, create_id).stdout
    here.clock.sleep(120)
    assert here.api.list_nodes(ALL_ZONES).items == ()
    assert here.api.list_queued_resources(ALL_ZONES).items == ()


def test_the_guard_leaves_another_tpu_of_the_name_alone(world: Worlds, tmp_path: Path) -> None:
    here = world(ONE)
    made(here, tmp_path, ttl_s=600.0)
    here.clock.sleep(1000)
    looked = look_once(here, "an-earlier-one")
    assert "is not this TPU; next look in 3600 s" in looked.stdout
    assert here.api.get_node("t1", zone=A).state == "READY"


def test_the_guards_of_other_workers_give_the_first_one_time(world: Worlds, tmp_path: Path) -> None:
    here = world(ONE)
    create_id = made(here, tmp_path, "v5e-16", ttl_s=600.0).labels[LABEL_CREATE_ID]
    looks = [look_once(here, create_id, worker=worker).stdout for worker in (0, 1, 3)]
    seconds = [int(text.split(" has ")[1].split()[0]) for text in looks]
    assert [left - seconds[0] for left in seconds] == [0, 30, 90]


def test_a_budget_is_guarded_as_well(world: Worlds, tmp_path: Path) -> None:
    here = world(ONE)
    tpu = made(here, tmp_path, max_usd=9.6)
    here.clock.sleep(3600)
    assert "deletion requested" in look_once(here, tpu.labels[LABEL_CREATE_ID]).stdout


def test_what_goes_wrong_is_logged_and_tried_again(world: Worlds, tmp_path: Path) -> None:
    here = world(ONE)
    create_id = made(here, tmp_path, ttl_s=600.0).labels[LABEL_CREATE_ID]
    looked = look_once(here, create_id, api="http://127.0.0.1:1")
    assert looked.returncode == 1
    assert "could not look: URLError" in looked.stdout
    assert "next look in" in looked.stdout
    assert looked.stderr == ""


def test_the_guard_runs_on_the_oldest_python_of_a_tpu_and_without_anything_installed() -> None:
    source = GUARD.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    modules = {
        a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }
    modules |= {
        str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)
    }
    assert modules <= sys.stdlib_module_names
    assert "from __future__ import annotations" in source


def test_the_guard_reads_the_labels_that_tpuctl_writes() -> None:
    source = GUARD.read_text(encoding="utf-8")
    assert f'"{LABEL_TTL_S}", "{LABEL_CREATE_ID}"' in source


@pytest.fixture
def practice(tmp_path: Path) -> dict[str, str]:
    """An environment in which the guard looks once instead of for ever."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --once\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TPUCTL_GUARD_FOLDER": str(tmp_path / "a folder")}


def run_startup(script: str, env: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "startup"
    path.write_text(script)
    subprocess.run(["bash", str(path)], env=env, timeout=60, check=True)


def test_the_startup_script_on_the_tpu_starts_the_guard_that_deletes_it(
    world: Worlds, tmp_path: Path, practice: dict[str, str]
) -> None:
    here = world(ONE)
    made(here, tmp_path, ttl_s=600.0, startup_script=NASTY)
    here.clock.sleep(600)
    script = here.api.get_node("t1", zone=A).metadata["startup-script"]
    places = {
        "TPUCTL_GUARD_API": here.emulator.http,
        "TPUCTL_GUARD_METADATA": metadata_of(here),
    }
    run_startup(script, practice | places, tmp_path)
    folder = tmp_path / "a folder"
    assert (folder / "seen").read_bytes() == NASTY
    assert (folder / "guard.py").read_bytes() == GUARD.read_bytes()
    wait_until(lambda: "next look" in (folder / "guard.log").read_text())
    assert "deletion requested" in (folder / "guard.log").read_text()
    assert here.api.get_node("t1", zone=A).state == "DELETING"


def test_a_startup_script_without_a_limit_is_passed_on_as_it_is() -> None:
    assert startup_script(None, b"#!/bin/sh\necho '$x'") == "#!/bin/sh\necho '$x'"
    assert startup_script(None, None) is None


def test_one_that_is_no_text_still_arrives_byte_for_byte(
    tmp_path: Path, practice: dict[str, str]
) -> None:
    script = startup_script(None, NASTY)
    assert script
    run_startup(script, practice, tmp_path)
    assert (tmp_path / "a folder" / "seen").read_bytes() == NASTY
    assert not (tmp_path / "a folder" / "guard.py").exists()


def test_one_without_a_first_line_is_run_by_a_shell(
    tmp_path: Path, practice: dict[str, str]
) -> None:
    script = startup_script(None, b'\xff=1; echo ran > "$TPUCTL_GUARD_FOLDER/ran"')
    assert script
    path = tmp_path / "startup"
    path.write_text(script)
    subprocess.run(["bash", str(path)], env=practice, timeout=60, check=False, capture_output=True)
    assert (tmp_path / "a folder" / "ran").exists()


def test_a_script_that_is_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidInputError, match="too large"):
        startup_script(GuardTarget("p", "z", "n", "i"), b"x" * ttl.MAX_SCRIPT_BYTES)


def test_a_guard_that_saw_its_tpu_exchanged_leaves_the_copy_alone(
    world: Worlds, tmp_path: Path
) -> None:
    """The same name, zone and labels, but another id: only what the guard saw first is its own."""
    here = world(ONE)
    create_id = made(here, tmp_path, ttl_s=600.0).labels[LABEL_CREATE_ID]
    guard = runpy.run_path(str(GUARD))
    words = ["--project", here.api.project, "--zone", A, "--name", "t1", "--create-id", create_id]
    options = guard["parse"]([*words, "--api", here.emulator.http, "--metadata", metadata_of(here)])
    assert "s left" in guard["look"](options)[1]
    for node in here.emulator.advance().nodes.values():
        node.id += 1
    here.clock.sleep(1000)
    assert "another TPU with a copy of its labels" in guard["look"](options)[1]
    assert here.requests["delete_node"] == 0
    options.first_seen = None
    assert "deletion requested" in guard["look"](options)[1]


def test_the_guard_reads_the_queued_resource_before_it_deletes_it(
    world: Worlds, tmp_path: Path
) -> None:
    here = world(ONE)
    create_id = made(here, tmp_path, ttl_s=600.0, queued=True).labels[LABEL_CREATE_ID]
    here.clock.sleep(600)
    (queued,) = here.emulator.advance().queued.values()
    ours = queued.document
    (spec,) = ours["tpu"]["nodeSpec"]
    theirs = {**spec, "node": {**spec["node"], "labels": {LABEL_CREATE_ID: "another"}}}
    for specs in ([theirs], [spec, theirs]):
        queued.document = {**ours, "tpu": {"nodeSpec": specs}}
        assert "holds more than this TPU" in look_once(here, create_id).stdout
    assert here.requests["delete_queued_resource"] == 0
    queued.document = ours
    assert "deletion requested" in look_once(here, create_id).stdout
