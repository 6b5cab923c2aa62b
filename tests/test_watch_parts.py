"""The parts of a watch besides its decisions: silence, what is seen, what is written down."""

import asyncio
import json
import os
import stat
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers import running_slice
from tpuctl.clock import ManualClock
from tpuctl.cloud.clone import clone_options
from tpuctl.cloud.models import DataDisk, Endpoint, Node, QueuedResource
from tpuctl.cloud.plan import CreateOptions, plan_create, request_for
from tpuctl.codec import from_plain, to_plain
from tpuctl.errors import InvalidInputError, TryAgainError
from tpuctl.remote.access import Access, HostKeys
from tpuctl.remote.jobs import start_job
from tpuctl.remote.run import plan_command
from tpuctl.supervise.follow import AwakeTimer, ConditionTimer, JobFollower, SilenceDetector
from tpuctl.supervise.models import (
    JobAttempt,
    JobSpec,
    KnownTpu,
    PendingDeletion,
    RunningAttempt,
    Silence,
    WatchState,
)
from tpuctl.supervise.observe import observe_tpu, observe_workers
from tpuctl.supervise.state import SCHEMA, SavedWatch, StateFile, job_digest

NOW = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
ZONE = "us-central1-a"
RECIPE = CreateOptions("t1", "v5litepod-8", (ZONE,))
STATE = WatchState("ab" * 16, "t1", RECIPE)
NODE = Node(
    "t1", ZONE, "7", "v5litepod-8", "v2-alpha-tpuv5-lite", "READY", "HEALTHY", NOW,
    endpoints=(Endpoint("10.0.0.1", None),), labels={"tpuctl-watch": "ab" * 16},
)  # fmt: skip


def talk(*said: tuple[int, float], workers: int = 3) -> SilenceDetector:
    talking = SilenceDetector(tuple(range(workers)), 0.0)
    for worker, at_s in said:
        talking.received(worker, at_s)
    return talking


@pytest.mark.parametrize(
    ("said", "now_s", "silence"),
    [
        pytest.param([], 299, None, id="it has only begun"),
        pytest.param([], 300, Silence((0, 1, 2), 300), id="nobody has ever said a word"),
        pytest.param([(0, 10), (1, 20), (2, 30)], 300, None, id="a moment ago"),
        pytest.param(
            [(0, 10), (1, 20), (2, 15)], 320, Silence((0, 2, 1), 310), id="all, in this order"
        ),
        pytest.param([(0, 10), (1, 900)], 1000, None, id="only at its start, as most do"),
        pytest.param(
            [(0, 10), (1, 10), (0, 400), (1, 900)], 1000, Silence((0,), 600), id="it used to talk"
        ),
    ],
)
def test_who_is_taken_for_hung(
    said: list[tuple[int, float]], now_s: float, silence: Silence | None
) -> None:
    assert talk(*said).silent(now_s, after_s=300) == silence


def test_of_a_worker_that_is_away_nothing_is_known() -> None:
    talking = talk((0, 10), (1, 10), (0, 400), (1, 400))
    talking.lost(0)
    assert talking.silent(800, after_s=300) == Silence((1,), 400)
    talking.back(0, 800)
    talking.received(1, 800)
    assert talking.silent(1000, after_s=300) is None


def test_a_worker_whose_program_has_ended_has_nothing_more_to_say() -> None:
    talking = talk((0, 10), (1, 10), (0, 400), (1, 400))
    talking.ended(0)
    assert talking.silent(800, after_s=300) == Silence((1,), 400)


def test_while_a_laptop_sleeps_nobody_is_silent() -> None:
    elapsed_s = [100.0]
    awake = AwakeTimer(lambda: elapsed_s[0])
    for step_s in (0.1, 0.5, 3600.0, 0.4):
        elapsed_s[0] += step_s
        awake.seconds()
    assert awake.seconds() == pytest.approx(2.0)


def test_following_a_job_ends_only_after_the_question_about_its_tpu(tmp_path: Path) -> None:
    asked, has_returned, late = threading.Event(), threading.Event(), list[bool]()

    class Ended(JobFollower):
        async def _read(self) -> None:
            await asyncio.to_thread(asked.wait, 60)

    def is_usable() -> bool:
        asked.set()
        # A thread left behind would see the return at once.
        late.append(has_returned.wait(0.5))
        return True

    follower = Ended(
        hosts=(),
        access=Access((), HostKeys(tmp_path / "hosts")),
        job="job",
        spec=JobSpec(("true",)),
        offsets=None,
        clock=ManualClock(NOW),
        poll_s=30,
        is_usable=is_usable,
        give_up_lost=lambda is_lost: False,
        sink=lambda stream, data: None,
        note=lambda text: None,
    )
    follower.follow()
    has_returned.set()
    assert late == [False]


def test_an_hour_in_which_nobody_looked_is_not_an_hour_of_trouble() -> None:
    clock = ManualClock(NOW)
    since = ConditionTimer(clock.now)
    assert since.seconds(True) == 0.0
    for passes_s, expected_s in ((30, 30), (30, 60), (3600, 180)):
        clock.sleep(passes_s)
        assert since.seconds(True) == expected_s
    assert since.seconds(False) == 0.0
    clock.sleep(30)
    assert since.seconds(True) == 0.0


def kind(node: Node, queued: QueuedResource | None = None, **memory: Any) -> str:
    return observe_tpu(node, queued, replace(STATE, **memory), now=NOW).kind


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CREATING", "coming"), ("READY", "usable"), ("RESTARTING", "coming"),
        ("REPAIRING", "coming"), ("UNKNOWN", "coming"), ("PREEMPTED", "dead"),
        ("TERMINATED", "dead"), ("STOPPED", "stopped"), ("STOPPING", "stopped"),
        ("DELETING", "leaving"),
    ],
)  # fmt: skip
def test_what_a_state_of_a_node_means(state: str, expected: str) -> None:
    assert kind(replace(NODE, state=state)) == expected


def test_a_ready_tpu_without_an_address_is_only_coming() -> None:
    assert kind(replace(NODE, endpoints=())) == "coming"


def queued(state: str, by: str | None = None) -> QueuedResource:
    return QueuedResource("q", ZONE, state, NOW, "v5litepod-8", ("t1",), stopped_by=by)


def test_a_node_whose_queued_resource_the_service_suspends_is_taken_away() -> None:
    leaving = replace(NODE, state="DELETING", queued_resource="q")
    assert kind(leaving, queued("SUSPENDING", "service")) == "dead"
    assert kind(leaving, queued("SUSPENDING", "user")) == "leaving"
    assert kind(leaving, queued("ACTIVE")) == "leaving"


def test_a_place_in_line_is_waited_for_until_it_is_dead() -> None:
    seen = [
        observe_tpu(queued(state), None, STATE, now=NOW)
        for state in ("WAITING_FOR_RESOURCES", "FAILED", "DELETING")
    ]
    assert [sight.kind for sight in seen] == ["coming", "dead", "leaving"]
    assert all(sight.in_line for sight in seen)


def test_a_tpu_that_is_gone_was_taken_deleted_or_out_of_time() -> None:
    known = KnownTpu("7", ZONE, NOW, NOW, expires=NOW + timedelta(hours=1))
    alive = replace(STATE, tpu=known)
    vanished = observe_tpu(None, None, alive, now=NOW)
    assert (vanished.on_purpose, vanished.expired) == (False, False)
    assert observe_tpu(None, None, alive, now=NOW, was_deleted=True).on_purpose
    leaving = replace(alive, seen_leaving=True)
    assert observe_tpu(None, None, leaving, now=NOW).on_purpose
    assert not observe_tpu(None, None, leaving, now=NOW, was_deleted=False).on_purpose
    assert observe_tpu(None, None, alive, now=NOW + timedelta(hours=1)).expired
    assert not observe_tpu(None, None, STATE, now=NOW, was_deleted=True).on_purpose


def test_ours_is_what_carries_our_id() -> None:
    assert observe_tpu(NODE, None, STATE, now=NOW).is_ours
    assert not observe_tpu(NODE, None, replace(STATE, watch="cd" * 16), now=NOW).is_ours


DISK = f"projects/p/zones/{ZONE}/disks/photos"
SCRIPT = b"#!/bin/sh\necho 'END' \xff\x00"


@pytest.mark.parametrize(
    "options",
    [
        RECIPE,
        replace(RECIPE, spot=True, ttl_s=3600.0, startup_script=SCRIPT, tags=("a", "b")),
        replace(RECIPE, max_usd=9.6, labels={"team": "vision"}, startup_script=b"#!/bin/sh\n"),
        replace(RECIPE, max_usd=9.6, ttl_s=60.0, startup_script=SCRIPT),
        replace(RECIPE, reserved=True, network="n", subnetwork="s", internal_ip=True),
        replace(RECIPE, service_account="a@b", metadata={"ssh-keys": "me:ssh-rsa A"}, ttl_s=9.0),
        replace(RECIPE, data_disks=(DataDisk(DISK), DataDisk(f"{DISK}-2", read_only=True))),
    ],
)
def test_another_like_it_is_asked_for_with_the_same_options(options: CreateOptions) -> None:
    plan = plan_create(options)
    request = request_for(plan, plan.offers[0], project="p", create_id="c")
    node = replace(
        NODE,
        runtime_version=request.runtime_version,
        spot=request.spot,
        reserved=request.reserved,
        labels=request.labels,
        metadata=request.metadata,
        network=request.network,
        subnetwork=request.subnetwork,
        external_ips=request.external_ips,
        service_account=request.service_account,
        tags=request.tags,
        data_disks=request.data_disks,
    )
    again = replace(clone_options(node), runtime_version=None)
    assert again == options


def test_what_is_no_limit_of_ours_is_none() -> None:
    odd = replace(NODE, labels={"tpuctl-ttl-s": "-5", "tpuctl-max-usd-cents": "x" * 40})
    assert (clone_options(odd).ttl_s, clone_options(odd).max_usd) == (None, None)


TIMES = st.datetimes(timezones=st.just(timezone.utc))
TEXTS = st.text(max_size=8)
NUMBERS = st.integers(-(2**63), 2**63)
STATES = st.builds(
    WatchState,
    watch=st.just("ab" * 16),
    name=TEXTS,
    recipe=st.builds(
        CreateOptions,
        TEXTS,
        TEXTS,
        st.tuples(TEXTS),
        labels=st.dictionaries(TEXTS, TEXTS, max_size=2),
        metadata=st.dictionaries(TEXTS, TEXTS, max_size=2),
        tags=st.tuples(TEXTS),
        data_disks=st.tuples(st.builds(DataDisk, TEXTS, st.booleans())),
        startup_script=st.none() | st.binary(max_size=9),
        watch=st.none(),
    ),
    tpu=st.none() | st.builds(KnownTpu, TEXTS, TEXTS, TIMES, TIMES, expires=st.none() | TIMES),
    open=st.none() | st.builds(RunningAttempt, NUMBERS, TEXTS, TEXTS, TEXTS, TIMES),
    removing=st.none() | st.builds(PendingDeletion, TEXTS, TEXTS),
    attempts=st.lists(
        st.builds(JobAttempt, NUMBERS, st.just("crash"), *[TEXTS] * 4, TIMES, TIMES),
        max_size=2,
    ).map(tuple),
    serial=st.integers(0, 99),
    spent_usd=st.floats(0, 1e6),
)
API: Any = SimpleNamespace(project="p", endpoint="e")
SPEC = JobSpec(("python", "t.py"), {"TOKEN": "secret"})


@settings(max_examples=25)
@given(STATES)
def test_what_is_written_down_is_read_again(memory: WatchState) -> None:
    assert from_plain(WatchState, json.loads(json.dumps(to_plain(memory)))) == memory


FIRST_FORMAT = """{"schema": "tpuctl-watch/1", "order": "317d", "command": "python t.py",
"is_over": false, "memory": {"watch": "abababababababababababababababab", "name": "t1", "recipe":
{"name": "t1", "accelerator_type": "v5litepod-8", "zones": ["us-central1-a", "us-east5-a"], "spot":
true, "reserved": false, "queued": false, "ttl_s": 3600.0, "max_usd": null, "runtime_version": null,
"network": null, "subnetwork": null, "internal_ip": false, "service_account": null, "labels":
{"team": "vision"}, "tags": ["a"], "startup_script": "IyEvYmluL3NoCv8=", "metadata": {"ssh-keys":
"me:k"}, "data_disks": [["projects/p/zones/us-central1-a/disks/d", true]], "watch": null}, "tpu":
{"id": "7", "zone": "us-central1-a", "created": "2026-11-21T09:00:00+00:00", "seen":
"2026-11-21T09:00:00+00:00", "create_id": "c", "made": true, "proven": true, "usd_per_hour": 9.6,
"expires": "2026-11-21T09:00:00+00:00"}, "open": {"number": 2, "job": "watch-abababab-2", "tpu_id":
"7", "zone": "us-central1-a", "began": "2026-11-21T09:00:00+00:00", "launched": true}, "removing":
{"id": "7", "reason": "it was PREEMPTED", "is_bad_host": true}, "creating": true, "seen_leaving":
true, "attempts": [{"number": 1, "cause": "crash", "reason": "worker 0 failed", "job":
"watch-abababab-1", "tpu_id": "6", "zone": "us-central1-a", "began": "2026-11-21T09:00:00+00:00",
"ended": "2026-11-21T09:00:00+00:00", "exit_code": 7, "worker": 0}], "serial": 2, "replaced": 1,
"spent_usd": 3.5}}"""


def test_the_file_of_an_earlier_version_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    state = WatchState(
        "ab" * 16,
        "t1",
        CreateOptions(
            *("t1", "v5litepod-8", (ZONE, "us-east5-a")),
            spot=True,
            ttl_s=3600.0,
            labels={"team": "vision"},
            tags=("a",),
            startup_script=b"#!/bin/sh\n\xff",
            metadata={"ssh-keys": "me:k"},
            data_disks=(DataDisk(f"projects/p/zones/{ZONE}/disks/d", read_only=True),),
        ),
        KnownTpu("7", ZONE, NOW, NOW, "c", True, True, 9.6, NOW),
        RunningAttempt(2, "watch-abababab-2", "7", ZONE, NOW, launched=True),
        PendingDeletion("7", "it was PREEMPTED", is_bad_host=True),
        *(True, True),
        (JobAttempt(1, "crash", "worker 0 failed", "watch-abababab-1", "6", ZONE, NOW, NOW, 7, 0),),
        serial=2,
        replaced=1,
        spent_usd=3.5,
    )
    store = StateFile(API, "t1", tmp_path)
    store.path.write_text(FIRST_FORMAT)
    saved = store.load()
    assert saved == SavedWatch(SCHEMA, "317d", "python t.py", False, state)
    document = json.loads(FIRST_FORMAT)
    document["memory"]["end"] = None
    document["memory"]["recipe"] |= {"bucket": None, "max_units": None, "provider": "cloud-tpu"}
    document["memory"]["recipe"] |= {"flex": False, "reservation": None, "setup": None}
    document["memory"]["tpu"]["units_per_hour"] = None
    assert to_plain(saved) == document


def test_it_is_on_the_disk_with_its_order(tmp_path: Path) -> None:
    store = StateFile(API, "t1", tmp_path)
    assert store.load() is None
    store.save(STATE, SPEC, is_over=True)
    assert store.load() == SavedWatch(SCHEMA, job_digest(SPEC), "python t.py", True, STATE)
    others = [replace(SPEC, command=("x",)), replace(SPEC, env={}), replace(SPEC, folder="f")]
    assert job_digest(SPEC) not in {job_digest(other) for other in others}
    assert job_digest(replace(SPEC, max_crashes=9)) == job_digest(SPEC)


def test_variables_are_not_written_down_and_nobody_else_may_read_the_rest(tmp_path: Path) -> None:
    store = StateFile(API, "t1", tmp_path)
    store.save(STATE, SPEC)
    assert "secret" not in store.path.read_text()
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "tpuctl-watch/9"}', "\x00"])
def test_a_damaged_memory_is_named_and_what_helps(tmp_path: Path, text: str) -> None:
    store = StateFile(API, "t1", tmp_path)
    store.path.write_text(text)
    with pytest.raises(InvalidInputError, match="Could not read") as caught:
        store.load()
    assert "--fresh" in (caught.value.hint or "")


def test_what_a_newer_tpuctl_has_added_is_no_obstacle(tmp_path: Path) -> None:
    store = StateFile(API, "t1", tmp_path)
    store.save(STATE, SPEC)
    document = json.loads(store.path.read_text())
    document["memory"]["mood"] = "good"
    store.path.write_text(json.dumps(document))
    kept = store.load()
    assert kept
    assert kept.memory == STATE


def test_two_watches_of_one_name_are_one_too_many(tmp_path: Path) -> None:
    first, second = StateFile(API, "t1", tmp_path), StateFile(API, "t1", tmp_path)
    with first.lock():
        said = f"already being watched \\(process {os.getpid()}\\)"
        with pytest.raises(TryAgainError, match=said), second.lock():
            pass
        with StateFile(API, "t2", tmp_path).lock():
            pass
    with second.lock():
        pass


def test_an_odd_name_makes_no_odd_path(tmp_path: Path) -> None:
    assert StateFile(API, "../../etc/x", tmp_path).path.parent == tmp_path
    assert StateFile(API, "a_b", tmp_path).path != StateFile(API, "a.b", tmp_path).path


@pytest.mark.slow
def test_jobs_of_another_watch_are_told_from_ours_and_from_everybodys(tmp_path: Path) -> None:
    with running_slice(tmp_path, 1) as workers:
        sleep = plan_command(["sleep", "600"])
        for job in ("watch-abababab-1", "watch-cdcdcdcd-4", "watch-dog", "train"):
            start_job(workers.hosts, sleep, workers.access, job=job, check=False)
        begun = RunningAttempt(2, "watch-abababab-2", "7", ZONE, NOW)
        seen = observe_workers(
            workers.hosts, workers.access, replace(STATE, open=begun), chips_per_worker=None
        )
    assert (seen.remains, seen.strangers) == (("watch-abababab-1",), ("watch-cdcdcdcd-4",))
    assert (seen.job, seen.errors, seen.unfit) == ({}, {}, {})


@pytest.mark.slow
def test_a_worker_that_lets_us_in_and_never_answers_is_as_good_as_gone(tmp_path: Path) -> None:
    with running_slice(tmp_path, 2) as workers:
        jobs = workers.folder(1) / ".tpuctl" / "jobs" / "j"
        jobs.mkdir(parents=True)
        # To open a pipe that nobody writes to takes for ever, as a file on a dead disk does.
        os.mkfifo(jobs / "job.json")
        seen = observe_workers(
            workers.hosts, workers.access, STATE, chips_per_worker=None, answer_s=5.0
        )
        assert seen.errors.keys() == {1}
        assert "did not answer within 5 s" in str(seen.errors[1])
        os.close(os.open(jobs / "job.json", os.O_RDWR))
