"""A watch from its beginning to its end, on emulated TPUs with real SSH; struck in every phase."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests import contract
from tests.waiting import at_the_same_time, wait_until
from tests.watch_world import LATER_S, OPTIONS, OTHER, ZONE, Killed, WatchWorld, preempt, watching
from tests.workers import Heard, alive
from tpuctl.api.watch import watch
from tpuctl.cloud.clone import clone_options
from tpuctl.cloud.connect import Cloud
from tpuctl.cloud.create import create
from tpuctl.cloud.delete import delete, plan_delete
from tpuctl.cloud.models import DataDisk
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.codec import to_plain
from tpuctl.errors import AlreadyExistsError, LimitPassedError, NotFoundError
from tpuctl.providers.port import Login
from tpuctl.remote.keys import key_for_tpus
from tpuctl.reporters.changes import render_watched
from tpuctl.settings import state_dir
from tpuctl.supervise.actions import CloudActions
from tpuctl.supervise.models import WatchState
from tpuctl.supervise.plan import WatchOptions
from tpuctl.supervise.state import StateFile

pytestmark = pytest.mark.slow

COUNT = """
echo attempt $TPUCTL_ATTEMPT resume ${TPUCTL_RESUME:-0} worker $TPU_WORKER_ID
"""
STAY = COUNT + "[ $TPUCTL_ATTEMPT -gt 1 ] || sleep 600\necho done\n"
POD = replace(OPTIONS, accelerator_type="v5e-16")
PAIR = replace(OPTIONS, accelerator_type="v4-16")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")


def said(world: WatchWorld) -> list[str]:
    return world.heard.out.decode().splitlines()


def test_preempted_at_every_step_on_the_way_to_the_job(tmp_path: Path) -> None:
    """Seven TPUs: each of the first six is taken away a step later than the one before."""
    moments = "after create", "before ask", "before copy", "before start", "after start"
    with watching(tmp_path, preempt(every=True)) as world:
        world.script(COUNT + "[ $TPUCTL_ATTEMPT -gt 4 ] || sleep 600; echo done")
        world.strikes = dict.fromkeys((*moments, "before follow"), LATER_S)
        ended = world.watch()
        assert world.acts["create"] == 7
    assert not world.strikes
    assert (ended.exit_code, world.causes(ended)) == (0, ["preempted"] * 4 + ["done"])
    assert "attempt 5 resume 1 worker 0" in said(world)


@pytest.mark.parametrize("queued", [False, True])
def test_preempted_while_it_is_made(tmp_path: Path, queued: bool) -> None:
    with watching(tmp_path, preempt(at_s=30)) as world:
        world.script(COUNT)
        ended = world.watch(options=replace(OPTIONS, queued=queued))
        assert (ended.exit_code, world.causes(ended)) == (0, ["done"])
        assert (len(world.emulator.advance().queued) == 1) == queued
    assert "attempt 1 resume 0 worker 0" in said(world)


def test_preempted_out_of_a_queue_it_waits_in_line_again(tmp_path: Path) -> None:
    with watching(tmp_path, preempt()) as world:
        world.script(STAY)
        world.strikes["before follow"] = LATER_S
        ended = world.watch(options=replace(OPTIONS, queued=True), delete_at_end=True)
        assert (ended.exit_code, world.causes(ended)) == (0, ["preempted", "done"])
        assert (world.emulator.advance().queued, world.emulator.advance().nodes) == ({}, {})


def test_a_deletion_whose_reply_is_lost_or_that_fails_is_carried_out_all_the_same(
    tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    faults: list[dict[str, Any]] = [
        preempt(every=True),
        {"on": "delete_node", "after_accept": True},
        {"on": "delete_node", "nth": 2, "error": "internal", "where": "operation"},
    ]
    with watching(tmp_path, *faults) as world:
        world.script(STAY.replace("-gt 1", "-ge 3"))
        world.strikes = {"before follow": LATER_S, "after start": LATER_S}
        ended = world.watch()
    assert world.causes(ended) == ["preempted", "preempted", "done"]
    screen = io.StringIO()
    Console(width=80, file=screen).print(render_watched(ended))
    shown = re.sub(f"({ZONE}  ).{{7}}", r"\1…      ", screen.getvalue())
    notes = re.sub(r"watch-\w+", "watch-ID", "\n".join(world.notes))
    golden("watch.txt", f"{notes}\n{shown}")


def test_where_there_is_none_left_other_zones_are_tried_for_as_long_as_it_takes(
    tmp_path: Path,
) -> None:
    full = {"on": "create_node", "zone": ZONE, "nth": 2, "error": "stockout", "after_s": 5}
    full_again, busy = {**full, "nth": 3}, {**full, "zone": OTHER, "nth": 1}
    with watching(tmp_path, preempt(), full, full_again, busy) as world:
        world.script(STAY)
        world.strikes["before follow"] = LATER_S
        ended = world.watch(options=replace(OPTIONS, look_in=None, zones=(ZONE, OTHER)))
        assert world.acts["create"] == 3
    assert [attempt.zone for attempt in ended.attempts] == [ZONE, OTHER]
    assert ended.zone == OTHER
    assert any("no more capacity" in note for note in world.notes)


def test_crashes_are_no_preemptions_and_end_with_the_logs_tail(tmp_path: Path) -> None:
    """One worker fails, then is killed; the others of the slice are not left waiting for it."""
    with watching(tmp_path) as world:
        world.script(
            COUNT + "echo the last words; [ $TPU_WORKER_ID = 2 ] || sleep 600\n"
            "[ $TPUCTL_ATTEMPT = 1 ] && exit 7; kill -KILL $$"
        )
        ended = world.watch(options=POD, max_crashes=2)
        wait_until(lambda: not alive("train.sh"))
    assert (ended.exit_code, world.causes(ended)) == (137, ["crash", "crash"])
    assert [(attempt.worker, attempt.exit_code) for attempt in ended.attempts] == [(2, 7), (2, 137)]
    assert "SIGKILL" in ended.attempts[1].reason
    assert ended.tail[-1] == "the last words"
    assert "2 times" in str(ended.error)
    assert "still there and costs" in ended.warnings[0]


def test_a_command_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        ended = world.watch("pyhton", "train.py")
        assert world.acts["start"] == 1
    assert (ended.exit_code, ended.crashes) == (127, 0)


def test_a_job_that_ends_by_the_preemption_itself_is_no_crash(tmp_path: Path) -> None:
    """The machine's shutdown ends the processes before the service says anything."""
    with watching(tmp_path, preempt()) as world:
        world.script(COUNT + "[ $TPUCTL_ATTEMPT = 1 ] && sleep 2 && exit 143; echo done")
        world.strikes["after follow"] = LATER_S
        ended = world.watch(max_crashes=1)
    assert (ended.exit_code, world.causes(ended)) == (0, ["preempted", "done"])


def test_a_worker_that_never_comes_back_has_the_tpu_replaced(tmp_path: Path) -> None:
    down = {"on": "node", "name": "t1", "event": "worker_down", "at_s": LATER_S, "worker": 1}
    with watching(tmp_path, down) as world:
        world.script(STAY)
        world.strikes["before follow"] = LATER_S
        ended = world.watch(options=PAIR, bad_host_after_s=300.0)
    assert world.causes(ended) == ["bad_host", "done"]
    assert ended.attempts[0].worker == 1
    assert "worker 1" in ended.attempts[0].reason


def test_a_host_that_is_bad_from_the_start_is_replaced_too(tmp_path: Path) -> None:
    busy = {"on": "node", "name": "t1", "event": "worker_busy", "at_s": 60}
    with watching(tmp_path, busy) as world:
        world.script(COUNT)
        ended = world.watch(bad_host_after_s=200.0)
        assert (ended.exit_code, world.causes(ended)) == (0, ["done"])
        assert world.acts["create"] == 2
    assert any("held by process" in note for note in world.notes)


def test_a_worker_that_falls_silent_is_named_and_the_job_begins_again(tmp_path: Path) -> None:
    """The other waits for it, as those of a slice do: who fell silent first is to blame."""
    with watching(tmp_path) as world:
        world.script(
            COUNT + "[ $TPUCTL_ATTEMPT = 1 ] || exit 0; [ $TPU_WORKER_ID = 1 ] && sleep 600\n"
            "while [ ! -e ../go ]; do sleep 0.1; done\n"
            "for n in 1 2 3; do sleep 0.5; echo $n; done; sleep 600"
        )
        with at_the_same_time(lambda: go_on(world)):
            ended = world.watch(options=PAIR, hang_after_s=4.0)
    assert world.causes(ended) == ["crash", "done"]
    assert ended.attempts[0].worker == 1
    assert "hung" in ended.attempts[0].reason


def go_on(world: WatchWorld) -> None:
    wait_until(lambda: b"worker 1" in world.heard.out)
    (world.home() / "go").touch()


def test_maintenance_that_spares_the_job_is_waited_for(tmp_path: Path) -> None:
    repair = {"on": "node", "name": "t1", "event": "maintenance", "at_s": LATER_S, "for_s": 1e5}
    with watching(tmp_path, repair) as world:
        world.script("while [ ! -e ../go ]; do sleep 0.05; done; echo done")
        world.strikes["before follow"] = LATER_S
        with at_the_same_time(lambda: repair_it(world)):
            ended = world.watch()
    assert (ended.exit_code, world.causes(ended)) == (0, ["done"])


def repair_it(world: WatchWorld) -> None:
    wait_until(lambda: any("REPAIRING" in note for note in world.notes))
    (world.home() / "go").touch()
    world.clock.jump(1e5)


def test_what_somebody_deletes_is_not_made_again(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        world.script(STAY)
        with at_the_same_time(lambda: delete_it(world)):
            ended = world.watch()
        assert world.emulator.advance().nodes == {}
        assert world.acts["create"] == 1
    assert (ended.exit_code, world.causes(ended)) == (1, ["stopped"])


def delete_it(world: WatchWorld) -> None:
    wait_until(lambda: world.acts["follow"] == 1)
    api, journal = world.api(), world.journal
    delete(api, plan_delete(api, ["t1"], zone=ZONE, journal=journal), journal=journal)


def test_a_tpu_that_is_there_is_used_and_made_again_like_it_was(tmp_path: Path) -> None:
    with watching(tmp_path, preempt(), preempt(2)) as world:
        world.script(COUNT)
        with pytest.raises(NotFoundError, match="needs its type"):
            world.watch(options=WatchOptions(ZONE, (ZONE,)))
        assert world.watch(options=replace(OPTIONS, ttl_s=2 * LATER_S)).exit_code == 0
        world.script(STAY)
        world.strikes["before follow"] = LATER_S
        again = world.watch(options=WatchOptions(ZONE, (ZONE,)))
        (node,) = world.api().list_nodes(ZONE).items
        assert world.causes(again) == ["preempted", "done"]
        assert (node.spot, node.labels["tpuctl-ttl-s"]) == (True, str(int(2 * LATER_S)))
        world.script(STAY)
        world.strikes["before follow"] = 3 * LATER_S
        over = world.watch(options=WatchOptions(ZONE, (ZONE,)))
    assert "its time to live is over" in str(over.error)
    assert "tpuctl delete t1 --zone" in str(over.error and over.error.hint)
    assert over.warnings == (f"t1 in {ZONE} is still listed: tpuctl gc --yes",)


ASKED = CreateOptions(
    "t1",
    "v5litepod-8",
    (ZONE,),
    spot=True,
    network="projects/p/global/networks/n",
    subnetwork="s",
    service_account="a@b.iam.gserviceaccount.com",
    labels={"team": "vision"},
    tags=("a", "b"),
    startup_script=b"echo hello",
    metadata={"enable-oslogin": "TRUE"},
    data_disks=(
        DataDisk(f"projects/p/zones/{ZONE}/disks/photos", read_only=True),
        DataDisk("projects/p/regions/us-central1/disks/scratch"),
    ),
)


@pytest.mark.parametrize("queued", [False, True])
def test_everything_it_was_asked_for_with_it_is_asked_for_again(
    tmp_path: Path, queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is there, or one that still waits in line as the watch begins; with OS Login."""
    options = replace(ASKED, queued=queued)
    monkeypatch.setenv("CLOUDSDK_CORE_ACCOUNT", "ana@example.com")
    keys = {"ana_example_com": [key_for_tpus(state_dir()).public]}
    with watching(tmp_path, preempt(), os_login=keys) as world:
        world.login = Login()
        plan = plan_create(options)
        create(world.api(), plan, journal=world.journal, wait=not queued)
        world.script(STAY)
        world.strikes["before follow"] = LATER_S
        ended = world.watch(options=WatchOptions(ZONE, (OTHER, ZONE)))
        assert world.causes(ended) == ["preempted", "done"]
        assert len({attempt.tpu_id for attempt in ended.attempts}) == 2
        (node,) = world.api().list_nodes(ZONE).items
        assert world.api().list_nodes(OTHER).items == ()
    again = clone_options(node)
    assert "ssh-keys" not in again.metadata
    known = {key: again.metadata[key] for key in ASKED.metadata}
    wanted = replace(options, zones=(ZONE,), runtime_version=plan.runtime_version)
    assert replace(again, metadata=known) == wanted


def test_killed_before_and_after_every_act_it_goes_on(tmp_path: Path) -> None:
    acts = ("create", "ask", "copy", "start", "follow", "delete")
    with watching(tmp_path, preempt()) as world:
        world.script(COUNT + "[ $TPUCTL_ATTEMPT -gt 1 ] || sleep 600; sleep 3; echo done")
        world.kills = [f"{when} {act}" for act in acts for when in ("before", "after")]
        world.strikes["before follow"] = LATER_S
        ended = world.watch_on()
        assert world.kills == []
        assert (ended.exit_code, world.causes(ended)) == (0, ["preempted", "done"])
        made = [name for method, _, name in world.emulator.requests if method == "create_node"]
        assert made == ["t1"] * 2
        (job,) = world.home().glob(".tpuctl/jobs/*/log")
        assert job.read_text().splitlines()[1:] == ["done"]


@pytest.mark.parametrize(("last_word", "queued"), [("exit 0", False), ("exit 7", True)])
def test_killed_at_every_moment_of_its_end_it_repeats_only_the_deletion(
    tmp_path: Path, last_word: str, queued: bool
) -> None:
    """The job runs once, and what is reported equals what an undisturbed watch reports."""
    how: dict[str, Any] = {"delete_at_end": True, "max_crashes": 1}
    how["options"] = replace(OPTIONS, queued=queued)
    ended = []
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        with watching(tmp_path / name) as world:
            world.script(COUNT + last_word)
            if name == "killed":
                world.kills_saves = True
                world.kills = ["before delete", "before delete", "after delete"]
            ended.append(world.watch_on(**how))
            assert world.kills == []
            requests = [method for method, _, _ in world.emulator.requests]
            made = requests.count("create_node") + requests.count("create_queued_resource")
            assert (made, world.acts["start"]) == (1, 1)
            left = world.emulator.advance()
            assert (left.nodes, left.queued) == ({}, {})
    assert world.acts["run"] >= 8
    assert min(each.usd_so_far for each in ended) > 0
    same: dict[str, Any] = {"attempts": (), "job": "", "usd_so_far": 0.0}
    undisturbed, killed = (to_plain(replace(each, **same)) for each in ended)
    assert killed == undisturbed
    assert [(e.exit_code, str(e.error)[:50], world.causes(e)) for e in ended[:1]] == [
        (e.exit_code, str(e.error)[:50], world.causes(e)) for e in ended[1:]
    ]


def test_a_disk_that_is_full_at_the_end_does_not_hide_the_result(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        world.script(COUNT)
        world.is_disk_full = True
        assert (world.watch().exit_code, world.acts["start"]) == (0, 1)
        assert "no space left on device. The same command again shows" in world.notes[-1]
        world.is_disk_full = False
        assert (world.watch().exit_code, world.acts["start"]) == (0, 1)


def test_after_a_kill_a_namesake_made_since_is_not_deleted(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        world.script(COUNT)
        world.kills = ["after delete"]
        with pytest.raises(Killed):
            world.watch(delete_at_end=True)
        create(
            world.api(), plan_create(CreateOptions("t1", "v5e-8", (ZONE,))), journal=world.journal
        )
        ended = world.watch(delete_at_end=True)
        assert (ended.exit_code, world.causes(ended), ended.zone) == (0, ["done"], None)
        assert [key.name for key in world.emulator.advance().nodes] == ["t1"]
        assert world.acts["start"] == 1


def test_another_job_does_not_take_the_place_of_one_that_was_interrupted(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        world.script(STAY)
        world.kills = ["before create"]
        with pytest.raises(Killed):
            world.watch()
        with pytest.raises(AlreadyExistsError, match=r"sh train\.sh"):
            world.watch("sh", "other.sh")


# ---- The command line ----------------------------------------------------------------------------


def test_the_command_line_says_first_what_it_would_do_and_what_it_costs(
    tpuctl, tmp_path: Path
) -> None:
    with watching(tmp_path, time_scale=300) as world:
        world.script(COUNT)
        words = ("watch", "t1", "--type", "v5e-8", "--zone", ZONE, "--spot", "--code")
        code = (str(world.folder / "code"), "--max-crashes", "2")
        job = ("--", "sh", "train.sh")
        asked = tpuctl(*words, *code, *job)
        assert asked.exit_code == 2
        assert "--yes" in asked.stderr
        plan = tpuctl(*words, *code, "--dry-run", *job)
        assert "Would supervise t1, which does not exist yet" in plan.words
        assert "another v5e-8 (spot) is created in us-central1-a, for $1.96 per hour" in plan.words
        assert not world.emulator.advance().nodes
        done = tpuctl(*words, *code, "--yes", "--json", *job)
        assert contract.problems(done.document, "watch", contract.WATCHED) == []
        assert [attempt["cause"] for attempt in done.data["attempts"]] == ["done"]
        assert "attempt 1 resume 0" in done.stderr
        again = tpuctl("watch", "t1", "--zone", ZONE, "--dry-run", *job)
        assert "which is READY in us-central1-a" in again.words


def test_the_same_from_python(tmp_path: Path) -> None:
    with watching(tmp_path, time_scale=300) as world:
        notes: list[str] = []
        job, heard = ["sh", "-c", "echo $HELLO; exit 4"], Heard()
        wanted: dict[str, Any] = {"accelerator_type": "v5e-8", "zone": ZONE, "spot": True}
        how: dict[str, Any] = {"env": ["HELLO=you"], "max_crashes": 1, "delete_at_end": True}
        ended = watch("t1", job, **wanted, sink=heard, note=notes.append, **how)
        assert (ended.exit_code, world.causes(ended)) == (4, ["crash"])
        assert heard.out == b"you\n"
        assert ended.error
        assert "deleted with the TPU" in (ended.error.hint or "")
        assert not world.emulator.advance().nodes
        with pytest.raises(NotFoundError, match="needs its type"):
            watch("t1", ["true"], zone=ZONE)
    assert "Deleting t1 in us-central1-a." in notes


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchWorld]:
    with watching(tmp_path_factory.mktemp("empty"), time_scale=300) as world:
        yield world


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "No TPU is named"),
        (["t1"], "No command was given"),
        (["t1", "--zone", ZONE, "--", "true"], "tpuctl needs its type"),
        (["t1", "--zone", ZONE, "--zones", "b", "--", "true"], "exclude each other"),
        (["t1", "--code", "/nowhere", "--", "true"], "/nowhere is not a folder"),
        (["t1", "--env", "1", "--", "true"], "is not a valid variable"),
        (["t1", "--type", "v9", "--zone", ZONE, "--", "true"], "v9"),
        (["t1", "--type", "v5e-8", "--zone", ZONE, "--ttl", "0s", "--", "true"], "--ttl"),
        (["A_b", "--type", "v5e-8", "--zone", ZONE, "--", "true"], "is not a valid TPU name"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_made(
    tpuctl, empty: WatchWorld, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", empty.emulator.endpoint)
    refused = tpuctl("watch", *words)
    assert refused.exit_code in (1, 2)
    assert said in " ".join(refused.stderr.split())
    assert not empty.emulator.advance().nodes


@pytest.mark.parametrize("module", ["asyncssh", "pathspec"])
def test_without_its_libraries_nothing_is_made(
    empty: WatchWorld, tmp_path: Path, module: str
) -> None:
    """A TPU that nothing can be done with would cost money all the same."""
    code = f"import sys; sys.modules[{module!r}] = None\nfrom tpuctl.cli.app import main; main()"
    words = ["watch", "t1", "--type", "v5e-8", "--zone", ZONE, "--yes", "--code", str(tmp_path)]
    refused = subprocess.run(
        [sys.executable, "-c", code, *words, "--", "true"],
        env={**os.environ, "TPUCTL_TPU_ENDPOINT": empty.emulator.endpoint},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1, refused.stderr
    assert "pip install 'tpuctl[ssh]'" in refused.stderr
    assert not empty.emulator.advance().nodes


# ---- The program itself --------------------------------------------------------------------------


@contextmanager
def program(world: WatchWorld, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """The command line in a process of its own, which does not outlive the block."""
    words = ["watch", "t1", "--type", "v5e-8", "--zone", ZONE, "--spot", "--yes"]
    code = ["--code", str(world.folder / "code"), "--", "sh", "train.sh"]
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, "-m", "tpuctl", *words, *code], stdout=out, stderr=out
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_the_program_killed_and_begun_again_goes_on_with_the_job_that_runs(
    tmp_path: Path,
) -> None:
    first_log, log = tmp_path / "first", tmp_path / "second"
    with watching(tmp_path, preempt(), time_scale=300) as world:
        world.script(STAY)
        with program(world, first_log) as first:
            wait_until(lambda: b"attempt 1 resume 0" in first_log.read_bytes())
            with program(world, log) as second:
                assert second.wait(120) == 3
            refused = f"t1 is already being watched (process {first.pid})"
            assert refused in log.read_text()
            os.kill(first.pid, signal.SIGKILL)
        with program(world, log) as third:
            wait_until(lambda: b"attempt 1 resume 0" in log.read_bytes())
            world.clock.jump(LATER_S)
            assert third.wait(120) == 0
    text = log.read_text()
    assert "Attempt 1 starts" not in text
    assert "Attempt 1 ended: preempted" in text
    assert "attempt 2 resume 1 worker 0" in text


def test_ctrl_c_while_it_is_made_cancels_that_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with watching(tmp_path, time_scale=300, provision_s=1e6) as world:
        world.script(STAY)
        with program(world, log) as making:
            wait_until(lambda: bool(world.emulator.advance().nodes))
            os.kill(making.pid, signal.SIGINT)
            assert making.wait(120) == 130
        assert not [n for n in world.emulator.advance().nodes.values() if n.state != "DELETING"]
    assert "was cancelled" in log.read_text()


def test_a_laptop_that_sleeps_for_an_hour_misses_neither_the_end_nor_a_line(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with watching(tmp_path, time_scale=300) as world:
        world.script(
            "echo here I am; while [ ! -e ../go ]; do sleep 0.05; done; seq 1 2000; exit 9"
        )
        with program(world, log) as watching_it:
            wait_until(lambda: b"here I am" in log.read_bytes())
            os.kill(watching_it.pid, signal.SIGSTOP)
            (world.home() / "go").touch()
            wait_until(lambda: any(world.home().glob(".tpuctl/jobs/*/exit.json")))
            world.clock.jump(3600)
            os.kill(watching_it.pid, signal.SIGCONT)
            wait_until(lambda: b"Attempt 1 ended: crash" in log.read_bytes())
            os.kill(watching_it.pid, signal.SIGINT)
            assert watching_it.wait(120) == 130
    numbers = [line for line in log.read_text().splitlines() if line.isdecimal()]
    assert numbers == [str(number) for number in range(1, 2001)]


def test_the_rest_of_a_budget_that_pays_for_no_start_creates_nothing(tmp_path: Path) -> None:
    """Each TPU would be deleted before it is ready, and its cost would not even be counted."""
    with watching(tmp_path) as world:
        cloud = Cloud(world.api(), world.journal)
        recipe = CreateOptions("t1", "v5e-8", (ZONE,), max_usd=5.0)
        actions = CloudActions(cloud, world.login, sink=world.heard, note=world.notes.append)
        with pytest.raises(LimitPassedError, match="rest of its budget of 5 dollars pays for"):
            actions.create(WatchState("w", "t1", recipe, spent_usd=4.9))
        assert world.emulator.advance().nodes == {}
        actions.create(WatchState("w", "t1", recipe, spent_usd=1.0))
        assert len(world.emulator.advance().nodes) == 1


def test_a_kill_in_a_long_job_does_not_forget_what_the_tpu_has_cost(tmp_path: Path) -> None:
    with watching(tmp_path) as world:
        world.script("sleep 3")
        world.strikes["before follow"] = 3 * 3600.0
        world.kills = ["after follow"]
        with pytest.raises(Killed):
            world.watch(options=replace(OPTIONS, max_usd=1000.0))
        saved = StateFile(world.api(), "t1", tmp_path / "watches").load()
    assert saved
    assert saved.memory.tpu
    assert saved.memory.tpu.seen - saved.memory.tpu.created >= timedelta(hours=3)
