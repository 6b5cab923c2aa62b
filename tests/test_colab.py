"""Colab runtimes: created once, reached over SSH, found after a crash, gone at their deadline."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_world import MORNING
from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import Tpuctl
from tests.waiting import wait_until
from tpuctl.cloud.create import Choice
from tpuctl.cloud.plan import CreateOptions
from tpuctl.emulator.colab._server import Colab
from tpuctl.errors import StoppedError
from tpuctl.progress import silent
from tpuctl.providers.colab.create import Creation, open_api
from tpuctl.providers.colab.guard import has_guard, next_check_s, start_guard, why_delete
from tpuctl.providers.colab.provider import Colab as Provider
from tpuctl.providers.colab.records import TAKEN_AWAY, Record, new_record
from tpuctl.providers.registry import open_provider

pytestmark = pytest.mark.slow

CREATE = ("create", "t1", "--provider", "colab", "--accelerator-type", "v5e-1", "--yes")
NO_WAIT = (*CREATE, "--no-wait", "--json")
TUNNEL = {"has_public_api": False}
PLANES = pytest.mark.parametrize("plane", [{}, TUNNEL], ids=["public", "tunnel"])


def ours(colab: Colab) -> list[str]:
    return [each.endpoint for each in colab.account.runtimes.values() if not each.is_foreign]


@PLANES
def test_what_works_on_a_cloud_tpu_works_on_a_runtime(
    colab_world: ColabWorld, tpuctl: Tpuctl, plane: dict[str, Any], tmp_path: Path
) -> None:
    colab = colab_world({**plane, "foreign": ["V28"]})
    made = tpuctl(*CREATE, "--ttl", "1h", "--json").data
    assert (made["provider"], made["zone"], made["reachable"]) == ("colab", None, "ssh")
    assert (made["accelerator_type"], made["units_per_hour"]) == ("v5litepod-1", 3.0)
    assert made["expires"]
    (tmp_path / "text").write_text("x" * 300_000)
    assert tpuctl("cp", str(tmp_path / "text"), "t1:content/text").exit_code == 0
    assert tpuctl("run", "t1", "--", "sh", "-c", "exit 3").exit_code == 3
    counted = tpuctl("run", "t1", "--", "wc", "-c", "content/text")
    assert counted.stdout.split()[0] == "300000"
    tpuctl("run", "t1", "--job", "j1", "--no-check", "--", "sh", "-c", "echo job; exit 4")
    followed = tpuctl("logs", "t1", "--follow")
    assert (followed.exit_code, followed.stdout) == (4, "job\n")
    assert tpuctl("show", "t1", "--json").data["jobs"][0]["job"] == "j1"
    listed = tpuctl("list", "--provider", "colab", "--json").data
    assert {tpu["accelerator_type"] for tpu in listed["tpus"]} == {"v28", "v5litepod-1"}
    assert listed["balances"][0]["rate_per_hour"] == 4.8
    # One connection for all of it: a runtime accepts one at a time.
    assert colab.account.requests.count("ssh") == 1
    shell = tpuctl("ssh", "t1", "--json").data["argv"]
    assert any("ControlPath" in word for word in shell)
    tokens = [token for each in colab.account.runtimes.values() for token in each.tokens]
    assert not any(token in word for token in tokens for word in shell)
    assert tpuctl("delete", "t1", "--yes").exit_code == 0
    assert ours(colab) == []
    wait_until(lambda: not colab_world.guards())


@pytest.mark.parametrize(
    ("plane", "fault", "exit_code", "code", "words"),
    [
        (TUNNEL, {"on": "post_assign", "status": 400}, 1, "quota_exceeded", "paid tier"),
        (TUNNEL, {"on": "post_assign", "status": 412}, 3, "no_capacity", "temporary limit"),
        (TUNNEL, {"on": "post_assign", "status": 503}, 3, "no_capacity", "right now"),
        (TUNNEL, {"on": "post_assign", "status": 429}, 3, "rate_limited", "too many requests"),
        (TUNNEL, {"on": "post_assign", "status": 401}, 1, "not_logged_in", "login"),
        (TUNNEL, {"on": "post_assign", "outcome": 2}, 1, "quota_exceeded", "usage limit"),
        (TUNNEL, {"on": "post_assign", "outcome": 5}, 1, "error", "deny list"),
        ({}, {"on": "post_runtimes", "status": 412, "reason": "DENYLISTED"}, 1, "error", "deny"),
        ({}, {"on": "post_runtimes", "status": 412, "reason": "STOCKOUT"}, 3, "no_capacity", ""),
        ({}, {"on": "post_runtimes", "status": 429}, 3, "rate_limited", "too many requests"),
        ({"capacity": 0}, None, 1, "quota_exceeded", "too many runtimes"),
        ({"balance": 0.0}, None, 1, "quota_exceeded", "usage limit"),
        ({"eligible": ["V6E1"]}, None, 1, "quota_exceeded", "paid tier"),
        ({"gives": "T4"}, None, 1, "invalid", "gave a t4 instead"),
    ],
)
def test_a_refused_create_leaves_nothing(
    colab_world: ColabWorld,
    tpuctl: Tpuctl,
    plane: dict[str, Any],
    fault: dict[str, Any] | None,
    exit_code: int,
    code: str,
    words: str,
) -> None:
    colab = colab_world({**plane, "faults": [fault] if fault else []})
    result = tpuctl(*NO_WAIT)
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (exit_code, code)
    assert words in error["message"]
    assert error["hint"]
    assert ours(colab) == []
    assert not colab_world.records.all()


@pytest.mark.parametrize(
    ("plane", "on"),
    [(TUNNEL, "post_assign"), ({}, "post_runtimes"), ({}, "operation"), ({}, "get_runtime")],
)
@pytest.mark.parametrize("lost", [{"cut": True}, {"status": 503}], ids=["cut", "503"])
def test_a_lost_answer_is_found_by_gc_and_by_the_same_command(
    colab_world: ColabWorld, tpuctl: Tpuctl, plane: dict[str, Any], on: str, lost: dict[str, Any]
) -> None:
    fault = {"on": on, "after_accept": True, **lost}
    colab = colab_world({**plane, "faults": [fault]})
    first = tpuctl(*NO_WAIT)
    if first.exit_code == 0:
        assert lost == {"status": 503}, "asked again at once, and found"
        assert len(ours(colab)) == 1
        return
    assert first.exit_code == 3
    assert len(ours(colab)) == 1
    assert [each["name"] for each in tpuctl("gc", "--json").data["found"]] == ["t1"]
    again = tpuctl(*NO_WAIT)
    assert again.exit_code == 0
    assert len(ours(colab)) == 1, "the same key leads to the same runtime"
    assert tpuctl("gc", "--json").data["found"] == []


def start(*words: str, **options: Any) -> "subprocess.Popen[bytes]":
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-m", "tpuctl", *words]
    return subprocess.Popen(command, **{**nothing, **options})


def at_request(colab: Colab, kind: str, do: Callable[[], object]) -> None:
    """Do something when a request of this kind arrives."""
    before = colab.account.take_fault
    done: list[str] = []

    def take_fault(seen: str) -> Any:
        if seen == kind and not done:
            done.append(seen)
            do()
        return before(seen)

    vars(colab.account)["take_fault"] = take_fault


@pytest.mark.parametrize("kind", ["get_ccu_info", "post_runtimes", "operation", "get_runtimes"])
def test_after_kill_9_at_any_request_gc_or_the_same_command_finds_the_runtime(
    colab_world: ColabWorld, tpuctl: Tpuctl, kind: str
) -> None:
    colab = colab_world()
    create = start(*CREATE)
    at_request(colab, kind, create.kill)
    create.wait(60)
    wait_until(lambda: not colab_world.records.is_being_created("t1"))
    made = ours(colab)
    known = {each["name"] for each in tpuctl("gc", "--json").data["found"]}
    known |= {tpu["name"] for tpu in tpuctl("list", "--provider", "colab", "--json").data["tpus"]}
    assert known == ({"t1"} if made else set())
    assert tpuctl(*NO_WAIT).exit_code == 0
    assert len(ours(colab)) == 1
    assert not made or ours(colab) == made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_a_create_deletes_what_was_created(
    colab_world: ColabWorld, number: int
) -> None:
    colab = colab_world()
    create = start(*CREATE)
    at_request(colab, "ssh", lambda: create.send_signal(number))
    assert len(ours(colab)) == 0
    code = create.wait(60)
    assert code in (128 + number, -number, 130)
    wait_until(lambda: not ours(colab) or colab_world.records.all())
    assert not ours(colab)


def test_nobody_reads_stderr_and_nothing_is_lost(colab_world: ColabWorld, tpuctl: Tpuctl) -> None:
    colab = colab_world()
    read, write = os.pipe()
    os.close(read)
    create = start(*CREATE, "--no-wait", "--ttl", "1h", stderr=write, stdout=write)
    os.close(write)
    create.wait(60)
    left = ours(colab)
    listed = tpuctl("list", "--provider", "colab", "--json").data["tpus"]
    assert [tpu["name"] for tpu in listed] == ["t1"] * len(left)
    assert all(tpu["expires"] for tpu in listed)


def test_the_guard_deletes_at_the_deadline_whatever_became_of_the_command(
    colab_world: ColabWorld,
) -> None:
    colab = colab_world(scale=60)
    create = start(*CREATE, "--ttl", "5m", start_new_session=True)
    at_request(colab, "operation", create.kill)
    create.wait(60)
    wait_until(colab_world.guards)
    for pid in colab_world.guards():
        os.kill(pid, signal.SIGHUP)
    assert len(ours(colab)) == 1
    wait_until(lambda: not ours(colab))
    took = colab.account.now() - MORNING
    # Colab itself would end it after 90 idle minutes.
    assert timedelta(minutes=5) <= took < timedelta(minutes=60)
    wait_until(lambda: not colab_world.guards())


def test_the_guard_deletes_when_the_budget_is_spent(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world(scale=180)
    assert tpuctl(*NO_WAIT, "--max-units", "1").exit_code == 0
    wait_until(lambda: not ours(colab))
    spent = 100 - colab.account.balance
    assert 1 <= spent < 3


def test_a_budget_is_kept_though_the_rate_could_not_be_read(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    # The first is for the plan, and the second that of the create.
    fault = {"on": "get_ccu_info", "nth": 2, "status": 403}
    colab = colab_world({"faults": [fault]}, scale=180)
    made = tpuctl(*NO_WAIT, "--max-units", "1", "--ttl", "80m")
    assert colab.account.requests.count("get_ccu_info") >= 2
    assert made.data["units_per_hour"] is None
    wait_until(lambda: not ours(colab))
    assert colab_world.records.why_gone("t1") != "its time to live is over"


def test_a_list_beside_a_create_does_not_forget_the_new_runtime(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world()
    # The answer to this request does not have the runtime yet.
    new = new_record("t1", "v5litepod-1", created=MORNING, phase="running", runtime_id="new")
    at_request(colab, "get_runtimes", lambda: colab_world.records.save(new))
    assert tpuctl("list", "--provider", "colab").exit_code == 0
    assert colab_world.records.find("t1")


def test_a_runtime_that_the_other_control_plane_made_is_neither_forgotten_nor_called_deleted(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world()
    assert tpuctl(*NO_WAIT).exit_code == 0
    account = colab.account
    # Another login may have only the other API, which has another name for the runtime.
    vars(account)["plan"] = replace(account.plan, has_public_api=False)
    assert tpuctl("list", "--provider", "colab").exit_code == 0
    assert colab_world.records.find("t1")
    assert tpuctl("delete", "t1", "--yes").exit_code != 0
    assert colab_world.records.find("t1")
    vars(account)["plan"] = replace(account.plan, has_public_api=True)
    assert tpuctl("delete", "t1", "--yes").exit_code == 0
    assert ours(colab) == []


def test_a_runtime_that_is_being_created_is_not_called_deleted(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab_world()
    records = colab_world.records
    records.save(new_record("t1", "v5litepod-1", created=MORNING))
    with records.creating("t1"):
        result = tpuctl("delete", "t1", "--yes", "--json")
    assert result.exit_code == 3
    assert "is being created" in result.document["errors"][0]["message"]
    assert records.find("t1"), "its guard ends without it"


def test_an_old_create_that_made_nothing_gives_a_new_one_no_limits(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world()
    day = timedelta(days=1)
    limits = {"expires": MORNING - day + timedelta(hours=1), "max_units": 1.0}
    colab_world.records.save(new_record("t1", "v5litepod-1", created=MORNING - day, **limits))
    assert tpuctl(*NO_WAIT, "--ttl", "2h").exit_code == 0
    record = colab_world.records.find("t1")
    assert record
    assert record.expires
    assert record.expires > MORNING + timedelta(hours=1)
    assert len(ours(colab)) == 1


def test_a_deletion_that_was_confirmed_late_leaves_a_later_runtime_of_that_name(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab_world()
    assert tpuctl(*NO_WAIT).exit_code == 0
    provider = open_provider("colab")
    plan = provider.plan_delete(["t1"], None)
    assert tpuctl("delete", "t1", "--yes").exit_code == 0
    assert tpuctl(*NO_WAIT).exit_code == 0
    provider.delete(plan, timeout_s=60, on_progress=silent)
    assert colab_world.records.find("t1")
    assert tpuctl("list", "--provider", "colab", "--json").data["tpus"][0]["name"] == "t1"


@pytest.mark.parametrize("was_running", [True, False])
def test_an_interrupted_create_leaves_what_ran_before_and_a_second_ctrl_c_says_so(
    colab_world: ColabWorld, tpuctl: Tpuctl, was_running: bool
) -> None:
    colab = colab_world()
    if was_running:
        assert tpuctl(*NO_WAIT).exit_code == 0
    asked: list[str] = []

    def ask() -> Choice:
        asked.append("")
        if was_running:
            return "cancel"
        raise KeyboardInterrupt

    def interrupt(record: Record) -> None:
        raise KeyboardInterrupt

    provider = Provider(None, lambda text: None)
    plan = provider.plan(CreateOptions("t1", "v5e-1"))
    creation = Creation(open_api(None), colab_world.records, plan, lambda text: None)
    with pytest.raises(StoppedError, match="may exist, and uses units"):
        creation.run(ask, interrupt)
    assert len(ours(colab)) == 1
    assert len(asked) == (0 if was_running else 1)


def test_a_runtime_that_colab_takes_away_is_said_to_be_gone_there(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world(scale=60)
    assert tpuctl(*NO_WAIT).exit_code == 0
    promise = tpuctl("watch", "t1", "--dry-run", "--", "true").words
    assert "if Colab takes it away, v5litepod-1 is created there again, for 3 units" in promise
    colab.account.runtimes.clear()
    for _ in range(2):
        gone = tpuctl("show", "t1", "--json")
        assert gone.exit_code == 1
        assert "on Colab; it is gone: Colab took it away" in gone.document["errors"][0]["message"]
    assert tpuctl(*NO_WAIT).exit_code == 0


def test_a_guard_that_was_killed_is_started_again_by_the_next_command(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab_world()
    assert tpuctl(*NO_WAIT, "--ttl", "1h").exit_code == 0
    wait_until(colab_world.guards)
    colab_world.kill_guards()
    tpuctl("list", "--provider", "colab")
    wait_until(colab_world.guards)


def test_a_guard_ends_with_its_record_though_nobody_answers(
    colab_world: ColabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab_world()
    # Nothing listens there.
    monkeypatch.setenv("TPUCTL_COLAB_ENDPOINT", "127.0.0.1:1")
    records = colab_world.records
    record = records.save(new_record("t1", "v5litepod-1", created=MORNING))
    start_guard(records, "t1")
    wait_until(lambda: has_guard(records, "t1"))
    records.forget(record)
    wait_until(lambda: not colab_world.guards())


def test_the_guard_says_in_use_only_while_a_job_runs(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world(TUNNEL, scale=100)
    assert tpuctl(*CREATE).exit_code == 0
    (runtime,) = colab.account.runtimes.values()
    seen = colab.account.requests.count
    looked = seen("get_assignments")
    wait_until(lambda: seen("get_assignments") > looked + 3)
    assert runtime.keep_alives == 0
    tpuctl("run", "t1", "--job", "j1", "--no-check", "--", "sleep", "600")
    wait_until(lambda: runtime.keep_alives)


def test_runtimes_of_a_browser_are_shown_and_never_touched(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world({"foreign": ["V28", "T4"], "capacity": 3})
    foreign = set(colab.account.runtimes)
    tpuctl(*NO_WAIT)
    assert len(tpuctl("list", "--provider", "colab", "--json").data["tpus"]) == 3
    assert tpuctl("gc", "--yes", "--json").data["found"] == []
    assert tpuctl("delete", "--all", "--provider", "colab", "--yes").exit_code == 0
    assert set(colab.account.runtimes) == foreign
    assert tpuctl("run", min(foreign), "--", "true").exit_code != 0


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ({"has_ssh": False}, "has no SSH"),
        ({"faults": [{"on": "ssh", "status": 429, "every": True}]}, "one at a time"),
        ({"faults": [{"on": "ssh", "status": 401, "every": True}]}, "refuses the token"),
    ],
)
def test_a_refused_ssh_connection_says_why(
    colab_world: ColabWorld, tpuctl: Tpuctl, scenario: dict[str, Any], words: str
) -> None:
    colab_world(scenario)
    assert tpuctl(*NO_WAIT).exit_code == 0
    result = tpuctl("run", "t1", "--", "true")
    assert result.exit_code in (1, 3)
    assert words in result.stderr


def test_tokens_that_expire_are_renewed(colab_world: ColabWorld, tpuctl: Tpuctl) -> None:
    colab_world({"token_s": 1.0})
    assert tpuctl(*CREATE).exit_code == 0
    assert tpuctl("run", "t1", "--", "true").exit_code == 0


def test_what_colab_does_not_have_is_refused_by_name(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world()
    for words in (["--spot"], ["--zone", "us-central1-a"], ["--max-usd", "3"], ["--label", "a=b"]):
        result = tpuctl(*NO_WAIT, *words)
        (error,) = result.document["errors"]
        assert (result.exit_code, error["code"]) == (2, "unsupported")
        assert "Colab does not offer " + words[0] in error["message"]
    wrong = tpuctl("create", "t1", "--provider", "colab", "--type", "v5e-8", "--yes", "--json")
    assert "one chip each" in wrong.document["errors"][0]["message"]
    assert colab.account.requests == []


OUTPUT = "launch-job-output"
JOB = "from pathlib import Path\nPath('made.txt').write_text('made')\nprint('trained')\n"


def test_launch_creates_runs_fetches_and_deletes(
    colab_world: ColabWorld, tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB + "raise SystemExit(7)\n")
    words = ("launch", "job.py", "--on", "colab:v6e-1", "--no-check", "--ttl", "1h", "--yes")
    done = tpuctl(*words)
    said = "trained\ntpuctl: input wait and MXU idle are unknown"
    assert (done.exit_code, done.stdout[: len(said)]) == (7, said), done.stderr
    assert (tmp_path / "launch-job-output" / "made.txt").read_text() == "made"
    assert ours(colab) == []
    assert colab_world.records.all() == ()


def test_a_launch_that_cannot_start_leaves_no_runtime(
    colab_world: ColabWorld, tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    for words in (["missing.py"], ["job.py", "--strategy", "cpu"]):
        assert tpuctl("launch", *words, "--on", "colab", "--yes").exit_code != 0
        assert ours(colab) == []


def test_the_plan_of_a_launch_is_shown_and_without_a_yes_nothing_is_created(
    colab_world: ColabWorld, tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    launch = ("launch", "job.py", "--on", "colab:v6e-1")
    shown = tpuctl(*launch, "--ttl", "2h", "--dry-run")
    assert shown.exit_code == 0, shown.stderr
    assert "v6e-1: units at an unknown rate, for 2h 00m" in shown.stdout
    assert "100 units left" in shown.stdout
    assert "launch-job-output" in shown.stdout
    plan = tpuctl(*launch, "--dry-run", "--json").data
    assert (plan["name"], plan["accelerator_type"]) == ("launch-job", "v6e-1")
    # There is no terminal to ask here.
    refused = tpuctl(*launch, "--json")
    (error,) = refused.document["errors"]
    assert (refused.exit_code, error["code"]) == (2, "usage")
    assert "--yes" in error["hint"]
    assert (colab.account.requests.count("post_runtimes"), ours(colab)) == (0, [])
    assert not (tmp_path / OUTPUT).exists()


def test_after_a_detached_launch_the_guard_fetches_and_deletes(
    colab_world: ColabWorld, tpuctl: Tpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colab = colab_world(scale=60)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    words = ("launch", "job.py", "--on", "colab", "--no-check", "--detach", "--yes")  # fmt: skip
    done = tpuctl(*words)
    assert done.exit_code == 0, done.stderr
    wait_until(lambda: not ours(colab))
    assert (tmp_path / "launch-job-output" / "made.txt").read_text() == "made"


COUNT = "echo attempt $TPUCTL_ATTEMPT; [ $TPUCTL_ATTEMPT -gt 1 ] || sleep 600; exit 3"


def test_watch_creates_a_runtime_again_that_was_taken_away(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world(scale=60)
    assert tpuctl(*CREATE, "--ttl", "5h").exit_code == 0
    (first,) = ours(colab)
    at_request(colab, "keep_alive", lambda: colab.account.runtimes.pop(first))
    watch = ("watch", "t1", "--max-crashes", "1", "--json", "--", "sh", "-c", COUNT)
    ended = tpuctl(*watch)
    assert ended.exit_code == 3, ended.stderr
    assert [each["cause"] for each in ended.data["attempts"]] == ["preempted", "crash"]
    (second,) = ours(colab)
    assert second != first
    (record,) = colab_world.records.all()
    assert record.expires
    assert tpuctl("watch", "t1", "--spot", "--json", "--", "true").exit_code == 2


@pytest.mark.parametrize("who", ["its time to live is over", "a user deleted it"])
def test_a_watch_that_looks_while_a_runtime_is_deleted_learns_why(
    colab_world: ColabWorld, tpuctl: Tpuctl, who: str
) -> None:
    colab = colab_world(scale=180)
    seen: list[str | None] = []

    def looks() -> None:
        # What list and watch do about a runtime that Colab no longer has.
        (record,) = colab_world.records.all()
        colab_world.records.forget(record, TAKEN_AWAY)
        seen.append(colab_world.records.why_gone("t1"))

    at_request(colab, "delete_runtime", looks)
    is_by_guard = who.startswith("its")
    assert tpuctl(*NO_WAIT, "--ttl", "40m" if is_by_guard else "9h").exit_code == 0
    if not is_by_guard:
        assert tpuctl("delete", "t1", "--yes").exit_code == 0
    wait_until(lambda: not ours(colab))
    assert seen == [who]


def test_watch_does_not_create_again_what_was_deleted_on_purpose(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab = colab_world(scale=180)
    assert tpuctl(*CREATE, "--ttl", "40m").exit_code == 0
    ended = tpuctl("watch", "t1", "--json", "--", "sleep", "600")
    assert (ended.exit_code, ours(colab)) == (1, [])
    assert "its time to live is over" in ended.data["attempts"][0]["reason"]


@PLANES
def test_doctor_checks_login_eligibility_and_balance_and_creates_nothing(
    colab_world: ColabWorld, tpuctl: Tpuctl, plane: dict[str, Any]
) -> None:
    colab = colab_world({**plane, "eligible": ["V6E1"]})
    checked = tpuctl("doctor", "--provider", "colab", "--json")
    found = {each["name"]: each["ok"] for each in checked.data["checks"]}
    v5e = None if plane else False
    assert found == {
        "login": True, "in use": True, "balance": found["balance"], "v5litepod-1": v5e,
        "v6e-1": None,
    }  # fmt: skip
    assert not colab.account.runtimes
    colab_world({**plane, "faults": [{"on": "get_ccu_info", "status": 401, "every": True}]})
    expired = tpuctl("doctor", "--provider", "colab", "--json")
    assert expired.exit_code == 1
    assert "gcloud auth application-default login" in expired.document["errors"][0]["hint"]


def test_a_name_belongs_to_one_provider(colab_world: ColabWorld, tpuctl: Tpuctl) -> None:
    colab_world()
    assert tpuctl(*NO_WAIT).exit_code == 0
    other = tpuctl("create", "t1", "--type", "v5e-8", "--zone", "us-central1-a", "--json")
    assert other.exit_code == 2
    assert "Colab has a TPU t1" in other.document["errors"][0]["message"]


def test_when_a_runtime_is_due() -> None:
    record = Record("t1", "k", "v5litepod-1", MORNING, units_per_hour=3.0)
    later = MORNING + timedelta(hours=2)
    assert why_delete(record, later) is None
    limited = Record("t1", "k", "v5e-1", MORNING, expires=later, max_units=3.0, units_per_hour=3.0)
    assert "units" in str(why_delete(limited, MORNING + timedelta(hours=1)))
    assert "time to live" in str(why_delete(limited, later))
    assert why_delete(limited, MORNING) is None
    assert next_check_s(limited, later - timedelta(seconds=5)) == 5
    done = Record("t1", "k", "v5e-1", MORNING, until_done="j1", is_home=True)
    assert why_delete(done, later) is None
    assert "fetched" in str(why_delete(done, later, has_ended=True))


def test_a_type_costs_what_was_measured_and_a_deleted_runtime_is_told_from_an_unknown_name(
    colab_world: ColabWorld, tpuctl: Tpuctl
) -> None:
    colab_world(scale=60)
    assert tpuctl(*CREATE, "--ttl", "5m").exit_code == 0
    wait_until(lambda: not colab_world.records.all())
    (offer,) = tpuctl("offers", "v5e-1", "--json").data["offers"]
    assert (offer["provider"], offer["units_per_hour"]) == ("colab", 3.0)
    gone = tpuctl("top", "t1", "--once", "--json").document["errors"][0]
    assert gone["message"] == (
        "Runtime t1 not found on Colab; it is gone: its time to live is over."
    )
    assert "No TPUs on Colab." in tpuctl("list", "--provider", "colab").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("gc",), ("doctor", "--provider", "colab"),
        ("watch", "--on", "colab", "--checkpoints", "c", "--dry-run", "--", "python3", "x" * 40),
    ],
)  # fmt: skip
def test_tables_are_not_wider_than_the_terminal(
    colab_world: ColabWorld,
    tpuctl: Tpuctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    colab_world({"faults": [{"on": "post_runtimes", "cut": True, "after_accept": True}]})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    tpuctl(*CREATE)
    shown = tpuctl(*words)
    assert shown.exit_code == 0, shown.stderr
    assert len(shown.stdout.splitlines()) > 3
    assert max(map(len, shown.stdout.splitlines())) <= 80


TRAIN = """\
import time
import grain
for epoch in range(10):
    for batch in iter(grain.MapDataset.range(64).map(lambda i: i).batch(4).to_iter_dataset()):
        time.sleep(0.005)
"""


@pytest.mark.parametrize("on", ["colab", pytest.param("t1", marks=pytest.mark.hosted)])
def test_a_launch_says_what_it_waited_for_and_its_profile_comes_home(
    colab_world: ColabWorld,
    tpuctl: Tpuctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on: str,
) -> None:
    pytest.importorskip("grain")
    colab = colab_world()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    if on == "t1":
        assert tpuctl(*CREATE, "--ttl", "1h").exit_code == 0
    words = ("profile", "run", "--on", on, "--out", "it.tpuprof", "--json", "--yes")
    found = tpuctl(*words, "--", "python", "train.py")
    assert found.exit_code == 0, found.stderr + found.stdout
    assert "input wait" in found.stderr
    assert "MXU would be idle" in found.stderr
    assert found.data["kind"] == "grain"
    assert tpuctl("profile", "show", "it.tpuprof").exit_code == 0
    assert len(ours(colab)) == (on == "t1")
    assert tpuctl(*words, "--steps", "3", "--", "python", "train.py").exit_code == 2
