"""`launch --on gke` against the emulated cluster: jobs, failures, what the cluster lacks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import count, islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Result, Tpuctl
from tests.gke_world import SCALE, STAGING, Clusters, launch
from tests.gke_world import cluster as cluster
from tests.sharing import free_port
from tests.waiting import wait_until
from tpuctl.emulator.kubernetes.pods import finds_names
from tpuctl.errors import TryAgainError
from tpuctl.providers.batch import Run
from tpuctl.providers.gke.client import JOB_SETS, Cluster, find_context
from tpuctl.providers.gke.follow import _stamped, _why_ended, exit_of, worker_of
from tpuctl.providers.gke.manifest import KEY, QUEUE, GkeOptions
from tpuctl.providers.gke.provider import Gke
from tpuctl.providers.gke.runs import (
    find,
    place_of,
    plan_run,
    run_store,
    submit,
    why_suspended,
)
from tpuctl.providers.pack import HostedJob
from tpuctl.start_python import python_command

pytestmark = pytest.mark.slow

V6E = {"accelerator_type": "v6e-16"}
ONE = {"node_pools": [{"accelerator_type": "v6e-1"}]}


def test_a_job_on_two_slices_runs_on_all_hosts_and_ends(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world = cluster({"node_pools": [{"accelerator_type": "tpu7x-16"}] * 2})
    port = free_port()
    # The hosts find each other by the names of the JobSet, where the system has namespaces.
    meet = ("--env", f"PORT={port}") if finds_names() else ()
    result = tpuctl(*launch("--num-slices", "2", "--json", *meet, type="tpu7x-16"))
    assert result.exit_code == 0, result.stderr
    data = result.data
    assert (data["state"], data["returncode"], data["provider"]) == ("Completed", 0, "gke")
    assert [each["cause"] for each in data["attempts"]] == ["done"]
    for worker in range(4):
        said = f"[{worker}] worker {worker % 2} slice {worker // 2}"
        assert said in result.stderr
    assert "2 slices of tpu7x-16, 2 nodes each" in result.stderr
    name = data["name"]
    shown = tpuctl("show", name, "--json").data
    assert (shown["state"], shown["chips"], shown["reachable"]) == ("TERMINATED", 16, "batch")
    assert shown["emulated"]
    assert "[3] worker 1 slice 1\n" in tpuctl("logs", name).stdout
    assert tpuctl("delete", name, "--yes").exit_code == 0
    assert tpuctl("show", name).exit_code != 0
    assert world.calls("gke_delete") == 1


def test_the_exit_code_is_the_jobs_and_crashes_are_counted(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE)
    result = tpuctl(*launch("--max-restarts", "1", "--json", "--", "7", type="v6e-1"))
    assert result.exit_code == 7
    data = result.data
    assert (data["state"], data["returncode"]) == ("Failed", 7)
    assert [each["cause"] for each in data["attempts"]] == ["crash", "crash"]
    assert (data["attempts"][-1]["exit_code"], data["attempts"][-1]["worker"]) == (7, 0)
    assert "worker 0" in result.document["errors"][0]["message"]


def pod(job: int, index: int, *codes: int | None, phase: str = "Failed") -> dict[str, Any]:
    """A pod of a slice of 4 as the API describes it; None is a container that has not ended."""
    labels = {"jobset.sigs.k8s.io/job-index": str(job), "tpuctl.dev/nodes-per-slice": "4",
              "batch.kubernetes.io/job-completion-index": str(index)}  # fmt: skip
    states = [
        {"state": {} if code is None else {"terminated": {"exitCode": code}}} for code in codes
    ]
    return {"metadata": {"labels": labels}, "spec": {"containers": []},
            "status": {"phase": phase, "containerStatuses": states}}  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod(1, 2, 5), pod(0, 3, 3)], (3, 3)),
        ([pod(0, 0, 143), pod(0, 1, 137), pod(1, 3, 17)], (17, 7)),
        ([pod(0, 0, 143), pod(0, 1, 143)], (143, 0)),
        ([pod(0, 0, 143), pod(0, 1, 137)], (137, 1)),
        ([pod(0, 0, 0, phase="Succeeded"), pod(0, 1, 0, phase="Succeeded")], (0, None)),
        ([pod(0, 0, 0, phase="Succeeded"), pod(0, 1, None, phase="Running")], (None, None)),
        ([], (None, None)),
    ],
)
def test_the_first_failure_of_its_own_is_the_exit_code(
    pods: list[dict[str, Any]], expected: tuple[int | None, int | None]
) -> None:
    assert exit_of(sorted(pods, key=worker_of)) == expected


def test_an_eviction_and_a_kill_for_memory_are_told() -> None:
    evicted, killed = pod(0, 1, 137), pod(0, 2, 137)
    evicted["status"] |= {"reason": "Evicted", "message": "low on ephemeral-storage"}
    killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    assert _why_ended([pod(0, 0, 143), evicted]) == "Evicted: low on ephemeral-storage"
    assert _why_ended([pod(0, 0, 143), killed]).startswith("OOMKilled: worker 2 used more")
    assert _why_ended([pod(0, 0, 143)]) == ""


def test_a_preempted_slice_costs_no_restart(cluster: Clusters, tpuctl: Tpuctl) -> None:
    cluster({**ONE, "preemptions": [{"slice": 0, "after_s": 0}]})
    words = launch("--max-restarts", "0", "--env", "NAP=0.4", "--json", type="v6e-1")
    result = tpuctl(*words)
    assert result.exit_code == 0
    assert [each["cause"] for each in result.data["attempts"]] == ["preempted", "done"]
    assert "attempt 2: it was disrupted" in result.stderr


def test_a_time_limit_ends_the_job_and_is_no_crash(cluster: Clusters, tpuctl: Tpuctl) -> None:
    cluster(ONE)
    result = tpuctl(*launch("--ttl", "10m", "--env", "NAP=60", "--json", type="v6e-1"))
    assert result.exit_code == 3
    assert [each["cause"] for each in result.data["attempts"]] == ["time_limit"]
    assert result.document["errors"][0]["code"] == "deadline"


def test_a_job_is_listed_stopped_and_deleted(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world = cluster(ONE)
    nap = ("--detach", "--job", "nap", "--json")
    started = tpuctl(*launch(*nap, "--env", "NAP=600", type="v6e-1"))
    assert (started.exit_code, started.data["name"], started.data["chips"]) == (0, "nap", 1)
    wait_until(lambda: tpuctl("show", "nap", "--json").data["state"] == "READY")
    (listed,) = tpuctl("list", "--provider", "gke", "--json").data["tpus"]
    assert (listed["name"], listed["chips"], len(listed["workers"])) == ("nap", 1, 1)
    assert listed["usd_per_hour"] is None
    # The same command finds it; another one with its name is refused.
    again = tpuctl(*launch(*nap, "--env", "NAP=600", type="v6e-1"))
    assert (again.exit_code, again.data["name"]) == (0, "nap")
    assert "has started nap before" in again.stderr
    other = tpuctl(*launch(*nap, type="v6e-1"))
    assert (other.exit_code, other.document["errors"][0]["code"]) == (1, "already_exists")
    assert world.calls("gke_create") == 3
    assert "Stopped job nap on" in tpuctl("stop", "nap").stdout
    assert tpuctl("show", "nap", "--json").data["state"] == "SUSPENDED"
    assert not world.emulator.scenario.gke.queues
    assert tpuctl("ssh", "nap").exit_code == 2
    done = tpuctl("delete", "nap", "--yes", "--json")
    assert (done.exit_code, done.data["tpus"][0]["outcome"]) == (0, "deleted")
    assert "gcloud storage rm gs://" in done.stderr
    again = tpuctl("delete", "nap", "--yes", "--json")
    assert (again.exit_code, again.data["already_deleted"]) == (0, [{"name": "nap", "zone": None}])
    assert tpuctl("delete", "map", "--yes").exit_code == 1


def test_a_queue_admits_a_job_and_does_not_start_a_stopped_one_again(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster({**ONE, "queues": ["team"]})
    assert tpuctl(*launch("--kueue", "team", "--json", type="v6e-1")).exit_code == 0
    nap = ("--detach", "--job", "nap", "--env", "NAP=600")
    words = launch("--kueue", "team", *nap, type="v6e-1")
    assert tpuctl(*words).exit_code == 0
    wait_until(lambda: tpuctl("show", "nap", "--json").data["state"] == "READY")
    assert tpuctl("stop", "nap").exit_code == 0
    api = Cluster(find_context())
    wait_until(lambda: (find(api, "nap") or {})["status"]["conditions"][-1]["type"] == "Suspended")
    for _ in range(20):
        assert (find(api, "nap") or {})["spec"]["suspend"] is True


FULL = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu"


def test_a_queue_that_does_not_admit_says_why_and_ctrl_c_what_stays(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster({**ONE, "queues": ["team"], "queue_waits": FULL})
    words = [
        sys.executable,
        "-m",
        "tpuctl",
        *launch("--kueue", "team", "--job", "nap", type="v6e-1"),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        told = next(line for line in child.stderr if FULL in line)
        assert told == f"nap waits: in queue team: {FULL}. To end it: tpuctl delete nap\n"
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert child.returncode == 130
    assert "nap keeps waiting in the cluster tpuctl-emulator" in rest
    assert "tpuctl stop nap" in rest
    assert tpuctl("show", "nap", "--json").data["health_description"] == f"in queue team: {FULL}"
    assert tpuctl("gc", "--provider", "gke").stderr == ""
    assert "Stopped job nap" in tpuctl("stop", "nap").stdout
    assert "not running" in tpuctl("stop", "nap").stdout
    assert tpuctl("show", "nap", "--json").data["health_description"] == "stopped"
    assert "nap on GKE is stopped, and stays until" in tpuctl("gc", "--provider", "gke").stderr


def test_to_wait_for_a_job_in_a_queue_says_why_and_ends_when_it_is_stopped(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster({**ONE, "queues": ["team"], "queue_waits": FULL})
    words = ("--kueue", "team", "--job", "nap", "--detach")
    assert tpuctl(*launch(*words, type="v6e-1")).exit_code == 0
    wait_until(lambda: FULL in str(tpuctl("show", "nap", "--json").data["health_description"]))
    waits = tpuctl("wait", "nap", "--timeout", "1s")
    assert (waits.exit_code, "is PENDING, not ready" in waits.stderr) == (3, True)
    assert f"PENDING (in queue team: {FULL})" in waits.stderr
    assert tpuctl("stop", "nap").exit_code == 0
    stopped = tpuctl("wait", "nap", "--json")
    (error,) = stopped.document["errors"]
    assert (stopped.exit_code, error["code"]) == (1, "wrong_state")
    assert "is stopped and will not become ready" in error["message"]
    assert "tpuctl delete nap" in error["hint"]


def test_what_a_job_does_not_have_is_refused_with_what_it_has(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE)
    assert tpuctl(*launch("--detach", "--job", "nap", type="v6e-1")).exit_code == 0
    again = tpuctl(*launch("--job", "nap", "--env", "A=b", "--json", type="v6e-1"))
    for words, said in [
        (("cp", "nap:out", "."), "go to a bucket"),
        (("cp", "train.py", "nap:"), "go to a bucket"),
        (("watch", "nap", "--", "true"), "tpuctl logs nap --follow"),
        (("migrate", "nap"), "tpuctl show nap"),
    ]:
        refused = tpuctl(words[0], "--json", *words[1:])
        (error,) = refused.document["errors"]
        assert (refused.exit_code, "GKE" in error["message"]) == (2, True), error
        assert said in error["hint"]
    assert "tpuctl delete nap" in again.document["errors"][0]["hint"]


def test_a_login_that_has_expired_hides_no_job_that_was_started_here(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE, faults=[{"on": "gke_list", "error": "unauthenticated", "nth": 4, "for_s": 1e6}])
    assert tpuctl(*launch("--detach", "--job", "nap", type="v6e-1")).exit_code == 0
    listed = tpuctl("list", "--json")
    while listed.exit_code == 0:
        listed = tpuctl("list", "--json")
    for verb in ("list", "gc"):
        failed = tpuctl(verb, "--json")
        (error,) = failed.document["errors"]
        assert (failed.exit_code, error["code"]) == (1, "not_logged_in")
        assert "does not accept the login of the kubeconfig" in error["message"]


def test_a_queue_that_was_deleted_and_a_check_that_waits_are_told(cluster: Clusters) -> None:
    world = cluster({"queues": ["team"]})
    objects, labels = world.emulator.cluster.objects, {QUEUE: "gone"}
    job_set = {"metadata": {"name": "nap", "labels": labels}, "spec": {"suspend": True}}
    made = objects.put("jobsets", {**job_set, "spec": {"suspend": True, "replicatedJobs": []}})
    wait_until(lambda: objects.all("workloads") and objects.all("workloads")[0]["status"])
    api = Cluster(find_context())
    assert why_suspended(api, made) == "in queue gone: LocalQueue gone doesn't exist"
    (workload,) = objects.all("workloads")
    checks = [{"name": "dws", "state": "Retry", "message": "Max nodepool size reached"}]

    def told() -> str:
        # The emulated Kueue writes a status of its own now and then.
        workload["status"] = {"admissionChecks": checks}
        return why_suspended(api, made)

    wait_until(lambda: told() == "in queue gone: Max nodepool size reached")


LACKS: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"job_sets": False}, (), "does not have the JobSet API"),
    ({"node_pools": []}, (), "no nodes of TPU v6e"),
    ({"node_pools": [{"accelerator_type": "v6e-64"}]}, (), "no slices of 4x4; its v6e are 8x8"),
    ({"node_pools": [V6E]}, ("--num-slices", "2"), "nodes for 1 slices"),
    ({"node_pools": [V6E]}, ("--spot",), "nodes for 0 slices (spot)"),
    ({}, ("--kueue", "team"), "does not have Kueue"),
    ({"queues": ["other"]}, ("--kueue", "team"), "has no queue team"),
]


@pytest.mark.parametrize(("gke", "words", "said"), LACKS, ids=[each[2] for each in LACKS])
def test_what_the_cluster_lacks_is_said_before_anything_is_created(
    cluster: Clusters, tpuctl: Tpuctl, gke: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    world = cluster(gke)
    result = tpuctl(*launch(*words, "--json"))
    assert (result.exit_code, result.document["errors"][0]["code"]) == (1, "not_found")
    assert said in result.document["errors"][0]["message"]
    assert result.document["errors"][0]["hint"]
    assert world.calls("gke_create") == world.calls("storage_insert") == 0
    assert run_store().runs("") == []


def test_nodes_that_are_made_on_demand_need_not_be_there(cluster: Clusters, tpuctl: Tpuctl) -> None:
    cluster({"node_pools": []})
    plan = tpuctl(*launch("--flex", "--dry-run", "--json"))
    assert (plan.exit_code, "flex-start makes them" in plan.data["because"][-1]) == (0, True)
    assert tpuctl(*launch("--no-check", "--detach", "--job", "waits")).exit_code == 0
    assert tpuctl("show", "waits", "--json").data["state"] == "CREATING"


def test_nodes_with_fewer_chips_than_usual_are_more_of_them(
    cluster: Clusters, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A v6e-8 is one host of 8 chips, or two hosts of 4, with the same topology.
    world = cluster({"node_pools": [{"accelerator_type": "v6e-8", "count": 2}]})
    for node in list(world.emulator.cluster.objects.all("nodes")):
        node["status"]["allocatable"]["google.com/tpu"] = "4"
    plan = tpuctl(*launch("--dry-run", "--json", type="v6e-8")).data
    (group,) = plan["manifest"]["spec"]["replicatedJobs"]
    assert (plan["nodes"], group["template"]["spec"]["parallelism"]) == (2, 2)
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}


def test_a_dry_run_is_a_manifest_and_creates_nothing(cluster: Clusters, tpuctl: Tpuctl) -> None:
    yaml = pytest.importorskip("yaml")
    world = cluster()
    result = tpuctl(*launch("--num-slices", "2", "--dry-run"))
    assert result.exit_code == 0
    document = yaml.safe_load(result.stdout)
    assert (document["kind"], document["spec"]["replicatedJobs"][0]["replicas"]) == ("JobSet", 2)
    assert "# the command without --dry-run uploads the code to gs://staging/jobs" in result.stdout
    assert world.calls("storage_insert") == 0
    assert list(world.emulator.cluster.objects.all("jobsets")) == []


def test_a_dry_run_needs_no_cluster(
    cluster: Clusters, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster()
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    result = tpuctl(*launch("--dry-run"))
    assert (result.exit_code, "not checked against a cluster" in result.stdout) == (0, True)
    assert tpuctl(*launch("--json")).document["errors"][0]["code"] == "not_logged_in"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "last"), "--resume has no effect"),
        (("--cpu-devices", "2"), "--cpu-devices"),
        (("--include-secrets",), "--include-secrets"),
        (("--zone", "z"), "--zone"),
        (("--max-usd", "3"), "--max-usd"),
        (("--env", "TOKEN=hf_abcdefghijklmnopqrst"), "looks like a secret"),
        (("--job", "Not_A_Name"), "not a valid name"),
        (("--staging", "somewhere"), "fetches its code from a bucket"),
        (("--type", "v6e-3"), "v6e-3"),
    ],
)
def test_what_cannot_be_is_refused(
    cluster: Clusters, tpuctl: Tpuctl, words: tuple[str, ...], said: str
) -> None:
    world = cluster()
    result = tpuctl(*launch(*words, "--json"))
    assert result.exit_code == 2
    assert said in result.document["errors"][0]["message"]
    assert world.calls("gke_create") == 0


def test_options_of_gke_are_refused_elsewhere(cluster: Clusters, tpuctl: Tpuctl) -> None:
    cluster()
    for words in (("--num-slices", "2"), ("--flex",), ("--kueue", "q"), ("--max-restarts", "9"),
                  ("--accelerator-type", "v6e-16"), ("--staging", "gs://x")):  # fmt: skip
        result = tpuctl("launch", "train.py", *words, "--json")
        assert (result.exit_code, words[0] in result.document["errors"][0]["message"]) == (2, True)


LOST = {"on": "gke_create", "nth": 2, "after_accept": True}
BUSY = [
    {"on": "gke_get", "error": "unavailable", "nth": 3},
    {"on": "gke_list", "nth": 3, "error": "rate_limit"},
    {"on": "gke_logs", "error": "cut", "after_bytes": 200},
    {"on": "gke_logs", "error": "unavailable", "nth": 2},
    {"on": "gke_logs", "error": "cut", "after_bytes": 300, "nth": 3},
]


@pytest.mark.parametrize(
    "faults", [[LOST], [{**LOST, "error": "cut"}], BUSY], ids=["lost reply", "cut reply", "busy"]
)
def test_a_fault_neither_repeats_the_job_nor_loses_a_line(
    cluster: Clusters, tpuctl: Tpuctl, faults: list[dict[str, Any]]
) -> None:
    # Slowly, because a busy machine may take longer than the minutes for which we ask again.
    world = cluster(ONE, faults=faults, time_scale=20)
    result = tpuctl(*launch("--json", type="v6e-1"))
    assert result.exit_code == 0
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1
    lines = [line for line in result.stderr.splitlines() if "doctor:" in line or "worker 0" in line]
    assert len(lines) == len(set(lines)) == 3


COUNT = """\
import time
for n in range(50):
    print("line", n, flush=True)
    time.sleep(0.04)
"""
LINES = [f"line {n}" for n in range(50)]


def lines_of(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("line ")]


@pytest.mark.parametrize(
    "error",
    [pytest.param("unavailable", marks=pytest.mark.soak), "cut", "unauthenticated"],
)
def test_a_job_is_followed_through_an_outage_of_the_cluster(
    cluster: Clusters, tpuctl: Tpuctl, error: str
) -> None:
    away = {"on": "gke", "nth": 14, "error": error, "for_s": 1200}
    world = cluster(ONE, faults=[away])
    Path("train.py").write_text(COUNT)
    result = tpuctl(*launch("--json", type="v6e-1"))
    assert (result.exit_code, lines_of(result)) == (0, LINES)
    assert "is not affected" in result.stderr
    assert "The cluster tpuctl-emulator answers again." in result.stderr
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1


def test_an_outage_of_hours_ends_the_following_and_not_the_job(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    faults = [{"on": "gke_get", "nth": 2, "error": "internal", "for_s": 1e6}]
    world = cluster(ONE, faults=faults, time_scale=20_000)
    result = tpuctl(*launch("--job", "nap", "--env", "NAP=600", "--json", type="v6e-1"))
    error = result.document["errors"][0]
    assert (result.exit_code, error["code"]) == (3, "unavailable")
    assert "tpuctl-emulator" in error["message"]
    assert error["hint"].endswith("tpuctl logs nap --follow")
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1


def test_a_log_stream_that_ends_before_its_container_is_read_on(
    cluster: Clusters, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the kubelet restarts, or rotates the file."""
    kubelet = cluster(ONE).emulator.cluster._kubelet
    whole, lines = kubelet.follow, count(20, 20)
    monkeypatch.setattr(kubelet, "follow", lambda *a, **k: islice(whole(*a, **k), next(lines)))
    Path("train.py").write_text(COUNT)
    result = tpuctl(*launch("--json", type="v6e-1"))
    assert (result.exit_code, lines_of(result)) == (0, LINES)


def test_a_log_line_without_a_time_hides_no_other() -> None:
    early, late = b"2026-11-22T00:00:00.000000001Z", b"2026-11-22T00:00:01.000000000Z"
    said = [early + b" a\n", b"unable to read the log\n", late + b" b\n", late + b" c\n"]
    assert [text for _, text in _stamped(iter(said), b"")] == [
        b"a\n", b"unable to read the log\n", b"b\n", b"c\n"
    ]  # fmt: skip
    assert [text for _, text in _stamped(iter(said), early)][1:] == [b"b\n", b"c\n"]


def test_who_may_not_read_logs_still_gets_the_jobs_exit_code(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE, faults=[{"on": "gke_logs", "error": "permission", "every": True}])
    result = tpuctl(*launch("--max-restarts", "0", "--job", "nap", "--", "7", type="v6e-1"))
    assert (result.exit_code, result.stderr.count("Warning: the output is not shown")) == (7, 1)
    assert tpuctl("logs", "nap").exit_code == 1


def test_a_create_that_the_cluster_cannot_take_is_repeated(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    faults = [{"on": "gke_create", "nth": 2, "error": "internal"}]
    world = cluster(ONE, faults=faults, time_scale=20)
    assert tpuctl(*launch("--detach", type="v6e-1")).exit_code == 0
    assert world.calls("gke_create") == 3
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1


def test_a_job_whose_create_was_accepted_before_the_login_expired_is_found(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    expired = {"error": "unauthenticated"}
    faults = [LOST, {"on": "gke_create", "nth": 3, **expired}, {"on": "gke_get", **expired}]
    world = cluster(ONE, faults=faults, time_scale=20)
    assert tpuctl(*launch("--detach", type="v6e-1")).exit_code == 1
    again = tpuctl(*launch("--detach", "--json", type="v6e-1"))
    (made,) = world.emulator.cluster.objects.all("jobsets")
    assert (again.exit_code, again.data["name"]) == (0, made["metadata"]["name"])


def test_a_refused_job_leaves_no_record(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world = cluster(faults=[{"on": "gke_create", "nth": 2, "error": "permission"}])
    result = tpuctl(*launch("--json"))
    assert (result.exit_code, result.document["errors"][0]["code"]) == (1, "permission_denied")
    assert world.emulator.cluster.objects.all("jobsets") == []
    assert list(run_store().folder.glob("*.json")) == []


def test_a_job_that_was_killed_between_requests_is_found_by_the_same_command(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    """Killed while the create waits: its record is there, and perhaps the JobSet."""
    world = cluster(ONE, faults=[{"on": "gke_create", "nth": 2, "error": "stall", "for_s": 600,
                             "after_accept": True}])  # fmt: skip
    words = [sys.executable, "-m", "tpuctl", *launch("--env", "NAP=0.2", "--json", type="v6e-1")]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: world.calls("gke_create") == 2)
    wait_until(lambda: bool(world.emulator.cluster.objects.all("jobsets")))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (before,) = world.emulator.cluster.objects.all("jobsets")
    result = tpuctl(*launch("--env", "NAP=0.2", "--json", type="v6e-1"))
    assert (result.exit_code, result.data["name"]) == (0, before["metadata"]["name"])
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1


def test_of_two_identical_launches_the_second_goes_on_with_the_job_of_a_killed_one(
    cluster: Clusters, tmp_path: Path
) -> None:
    """Both were planned before either had a record, and the first was killed after it wrote one."""
    world, api = cluster(ONE), Cluster(find_context())
    job = HostedJob(tmp_path / "nap.py", {}, ())
    options = GkeOptions("v6e-1", staging=STAGING)
    first, second = (plan_run(job, options, api) for _ in range(2))
    key = first.manifest["metadata"]["annotations"][KEY]
    run = Run(first.name, key, first.script, place_of(api), "", "", api.clock.now(), 0.0)
    run_store().write(run)
    with pytest.raises(TryAgainError, match=f"began {first.name}"):
        submit(api, second, job, print)
    assert world.emulator.cluster.objects.all("jobsets") == []
    again = plan_run(job, options, api)
    assert (again.adopts, again.name) == (first.name, first.name)


STOPPABLE = """\
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(5)))
print("up", flush=True)
while True:
    signal.pause()
"""


def test_a_job_whose_node_is_taken_away_is_told(tmp_path: Path) -> None:
    """In a container tpuctl is the first process, which the kernel protects from signals."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.call([*inside, "true"]):
        pytest.skip("this system makes no namespaces for us")
    (tmp_path / "job.py").write_text(STOPPABLE)
    (tmp_path / "job.json").write_text(json.dumps({"plan": {"target": "./job.py"}}))
    command = python_command("tpuctl.training.hosted_job", "job.json")
    child = subprocess.Popen([*inside, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    while child.stdout.readline() != "up\n":
        assert child.poll() is None
    (first,) = psutil.Process(child.pid).children()
    first.send_signal(signal.SIGTERM)
    rest, _ = child.communicate(timeout=240)
    assert (rest.startswith("saved\n"), child.returncode) == (True, 5)


def test_the_output_of_a_hosted_script_is_not_held_back(tmp_path: Path) -> None:
    """Its stdout is a pipe, which is followed, and which a killed session does not flush."""
    (tmp_path / "job.py").write_text("import sys\nprint('through', sys.stdout.write_through)\n")
    (tmp_path / "job.json").write_text(json.dumps({"plan": {"target": "./job.py"}}))
    command = python_command("tpuctl.training.hosted_job", "job.json")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "through True\n" in done.stdout


def test_ctrl_c_leaves_the_job_to_the_cluster(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world = cluster(ONE)
    words = [sys.executable, "-m", "tpuctl"]
    words += launch("--env", "NAP=600", "--job", "nap", type="v6e-1")
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout
    said = ""
    while "worker 0" not in said:
        said += child.stdout.readline()
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=240)
    assert child.returncode == 130
    assert "nap keeps running in the cluster tpuctl-emulator" in rest
    assert tpuctl("show", "nap", "--json").data["state"] == "READY"
    assert tpuctl("delete", "nap", "--yes").exit_code == 0
    assert world.emulator.scenario.time_scale == SCALE


@pytest.mark.parametrize("by", ["kubectl", "another of its name"])
def test_a_job_that_is_deleted_while_it_is_followed_says_so(
    cluster: Clusters, tpuctl: Tpuctl, by: str
) -> None:
    world = cluster(ONE)
    nap = launch("--detach", "--job", "nap", "--env", "NAP=600", type="v6e-1")
    assert tpuctl(*nap).exit_code == 0
    words = [sys.executable, "-m", "tpuctl", "logs", "nap", "--follow", "--json"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr
    # Only what the job itself says comes after its identity was read.
    assert any("worker 0" in line for line in iter(child.stderr.readline, ""))
    api = Cluster(find_context())
    found = find(api, "nap")
    assert found
    if by == "kubectl":
        api.delete(f"{JOB_SETS}/{api.namespace}/jobsets/nap", found["metadata"]["uid"])
    else:
        world.emulator.cluster.objects.all("jobsets")[0]["metadata"]["uid"] = "another"
    out, _ = child.communicate(timeout=240)
    assert json.loads(out)["errors"][0]["code"] == "not_found"
    assert child.returncode == 1


def test_an_image_that_cannot_be_pulled_is_told_with_the_way_out(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster({**ONE, "missing_images": ["nowhere/jax:1"]})
    job = ("--image", "nowhere/jax:1", "--job", "nap", "--env", "NAP=600")
    assert tpuctl(*launch("--detach", *job, type="v6e-1")).exit_code == 0
    words = [sys.executable, "-m", "tpuctl", "logs", "nap", "--follow"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        told = next(line for line in child.stderr if "nap waits" in line)
        assert "ImagePullBackOff" in told
        assert "nowhere/jax:1" in told
        assert "tpuctl delete nap" in told
        assert tpuctl("delete", "nap", "--yes").exit_code == 0
    assert child.returncode == 1


def test_another_job_of_the_same_name_is_not_deleted(cluster: Clusters, tpuctl: Tpuctl) -> None:
    world = cluster(ONE)
    nap = launch("--detach", "--job", "nap", "--env", "NAP=600", type="v6e-1")
    assert tpuctl(*nap).exit_code == 0
    from tpuctl.providers.gke.provider import Gke

    provider = Gke(None, lambda text: None)
    plan = provider.plan_delete(["nap"], None)
    (job,) = world.emulator.cluster.objects.all("jobsets")
    job["metadata"]["uid"] = "another"
    done = provider.delete(plan, timeout_s=60, on_progress=lambda progress: None)
    assert done.tpus[0].outcome == "replaced"
    assert len(world.emulator.cluster.objects.all("jobsets")) == 1


def test_without_a_job_of_ours_no_other_list_asks_the_cluster(
    cluster: Clusters, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its kubeconfig may be of something else, and its login plugin take long."""
    from tpuctl.providers.registry import in_use

    cluster()
    assert "gke" not in [each.abilities.name for each in in_use()]
    assert tpuctl(*launch("--detach", "--job", "nap")).exit_code == 0
    assert "gke" in [each.abilities.name for each in in_use()]


def test_a_job_in_another_cluster_is_neither_gone_nor_taken_for_one_of_its_name(
    cluster: Clusters, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    cluster(ONE)
    nap = launch("--detach", "--job", "nap", "--env", "NAP=600", type="v6e-1")
    assert tpuctl(*nap).exit_code == 0
    config = tmp_path / "kubeconfig"
    config.write_text(config.read_text().replace('"namespace": "default"', '"namespace": "other"'))
    for verb in (("delete", "nap", "--yes"), ("stop", "nap"), ("show", "nap"), ("logs", "nap")):
        result = tpuctl(*verb, "--json")
        assert result.exit_code == 1
        assert "another cluster or namespace" in result.document["errors"][0]["message"]
    again = tpuctl(*nap, "--json")
    assert again.document["errors"][0]["code"] in ("already_exists", "not_found")
    config.write_text(config.read_text().replace('"namespace": "other"', '"namespace": "default"'))
    assert tpuctl("delete", "nap", "--yes").exit_code == 0


def test_gc_beside_a_launch_does_not_call_the_new_job_deleted(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE)

    class Beside(Gke):
        def _job_sets(self) -> Any:
            found = super()._job_sets()
            assert tpuctl(*launch("--detach", "--job", "nap", type="v6e-1")).exit_code == 0
            return found

    Beside(None, lambda text: None).find_orphans(None)
    run = run_store().find("nap")
    assert run
    assert run.phase == "pushed"


def test_another_job_of_the_same_name_is_neither_followed_nor_stopped_nor_deleted(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    world = cluster(ONE)
    nap = launch("--detach", "--job", "nap", "--env", "NAP=600", type="v6e-1")
    assert tpuctl(*nap).exit_code == 0
    (job,) = world.emulator.cluster.objects.all("jobsets")
    job["metadata"]["annotations"][KEY] = "of a colleague"
    for verb in ("show", "stop", "logs"):
        assert tpuctl(verb, "nap", "--json").document["errors"][0]["code"] == "not_found"
    assert tpuctl(*nap, "--json").document["errors"][0]["code"] == "already_exists"
    tpuctl("delete", "nap", "--yes")
    assert world.emulator.cluster.objects.all("jobsets") == [job]
    assert "suspend" not in job["spec"]


def test_a_job_in_a_context_that_is_not_the_current_one_is_not_forgotten(
    cluster: Clusters, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    cluster(ONE)
    assert tpuctl(*launch("--detach", "--job", "nap", type="v6e-1")).exit_code == 0
    config = tmp_path / "kubeconfig"
    document = json.loads(config.read_text())
    (one,) = document["contexts"]
    document["contexts"].append({"name": "two", "context": {**one["context"], "namespace": "b"}})
    config.write_text(json.dumps({**document, "current-context": "two"}))
    listed = tpuctl("list", "--provider", "gke")
    assert "nap was started in another cluster or namespace, as tpuctl-emulator" in listed.stderr
    assert tpuctl("show", "nap").exit_code == 0
    lost = tpuctl(*launch("--job", "map", "--json", type="v6e-1")).document["errors"][0]
    assert 'namespaces "b" not found' in lost["message"]
    assert "kubectl config set-context" in lost["hint"]


def test_a_cluster_that_does_not_answer_is_not_hidden_by_a_missing_google_login(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    cluster(ONE, faults=[{"on": "gke_list", "nth": 4, "error": "internal", "for_s": 1e6}])
    assert tpuctl(*launch("--detach", type="v6e-1")).exit_code == 0
    listed = tpuctl("list", "--json")
    while listed.exit_code == 0:
        listed = tpuctl("list", "--json")
    assert (listed.exit_code, listed.document["errors"][0]["code"]) == (3, "unavailable")


def test_a_deletion_whose_reply_is_lost_is_done_and_recorded(
    cluster: Clusters, tpuctl: Tpuctl
) -> None:
    from tpuctl.providers.registry import in_use

    def is_asked() -> bool:
        return "gke" in [each.abilities.name for each in in_use()]

    cluster(ONE, faults=[{"on": "gke_delete", "after_accept": True}], time_scale=20)
    assert tpuctl(*launch("--detach", "--job", "nap", type="v6e-1")).exit_code == 0
    assert is_asked()
    assert tpuctl("delete", "nap", "--yes").exit_code == 0
    assert not is_asked()
    assert tpuctl(*launch("--detach", "--job", "map", type="v6e-1")).exit_code == 0
    api = Cluster(find_context())
    found = find(api, "map") or {}
    api.delete(f"{JOB_SETS}/{api.namespace}/jobsets/map", found["metadata"]["uid"])
    assert is_asked()
    assert tpuctl("gc", "--provider", "gke").exit_code == 0
    assert not is_asked()


def test_gke_has_no_prices_and_says_what_to_do_instead(tpuctl: Tpuctl) -> None:
    refused = tpuctl("offers", "--provider", "gke")
    assert refused.exit_code != 0
    assert "had now" not in refused.stderr
    assert "--on gke" in refused.stderr
