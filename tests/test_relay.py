"""`watch --on`: one job on several providers, from checkpoint to checkpoint, with one ledger."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("asyncssh")

from tests.cloud_world import MORNING
from tests.colab_world import ColabWorld
from tests.colab_world import colab_world as colab_world
from tests.conftest import Tpuctl
from tests.kaggle_world import Kaggles
from tests.kaggle_world import kaggle as kaggle
from tests.waiting import wait_until
from tpuctl.clock import ManualClock
from tpuctl.errors import (
    NotLoggedInError,
    QuotaExceededError,
    TpuctlError,
    UnavailableError,
    WriteError,
)
from tpuctl.supervise.messages import WatchResult
from tpuctl.supervise.models import KnownTpu
from tpuctl.supervise.plan import WatchOptions, plan_job
from tpuctl.supervise.relay import (
    End,
    Go,
    JobPart,
    Ledger,
    LedgerFile,
    PartEnd,
    Pause,
    next_step,
    sum_up,
)
from tpuctl.supervise.run_parts import Checkpoints, Relay, RelayJob, _concluded

PLACES = ("kaggle:v5litepod-8", "colab:v5litepod-1", "cloud-tpu:v5litepod-8")
JOB = """\
import os, sys, time
from pathlib import Path

folder = Path(os.environ["TPUCTL_CHECKPOINTS"])
folder.mkdir(exist_ok=True)
steps = folder / "steps.txt"
attempt = int(os.environ["TPUCTL_ATTEMPT"])
done = int(steps.read_text()) if steps.exists() else 0
print(f"attempt {attempt} begins with step {done}", flush=True)
steps.write_text(str(done + 1))
if attempt < int(sys.argv[1]):
    time.sleep(600)
sys.exit(int(sys.argv[2]))
"""


def ledger(*ends: PartEnd, **more: Any) -> Ledger:
    parts = []
    for number, end in enumerate(ends):
        provider, _, kind = PLACES[number % 3].partition(":")
        part = JobPart(number, provider, kind, "n", MORNING, end, crashes=int(end == "crash"))
        parts.append(replace(part, **more))
    return Ledger("x", tuple(parts))


def test_when_one_ends_the_next_is_asked_and_after_the_last_the_first() -> None:
    def after(*ends: PartEnd, **more: Any) -> object:
        return next_step(ledger(*ends, **more), PLACES, max_crashes=2)

    assert after() == Go(0)
    assert after("") == Go(0)
    assert after("ended") == Go(1)
    assert after("refused", "ended") == Go(2)
    assert after("ended", "refused", "ended") == Go(0)
    assert after("crash") == Go(0)
    assert after("done") == End()
    assert after("refused", "refused", "refused", may_come=True) == Pause()
    for ends in (("refused",) * 3, ("stopped",)):
        ended = after(*ends)
        assert isinstance(ended, End)
        assert ended.error
    crashed = next_step(ledger("crash", exit_code=7), PLACES, max_crashes=1)
    assert isinstance(crashed, End)
    assert crashed.error
    assert crashed.error.exit_code == 7


def test_a_part_is_done_only_with_its_last_checkpoints_here() -> None:
    class Left:
        left, may_come, is_home = "", False, True

    ended = WatchResult("n", None, "j", (), 0, None, 0.0)
    part = JobPart(1, "kaggle", "v5litepod-8", "n", MORNING)
    actions: Any = Left()
    assert _concluded(part, ended, actions).end == "done"
    actions.is_home = False
    gone = _concluded(part, ended, actions)
    assert (gone.end, "last checkpoints" in gone.reason) == ("ended", True)
    assert next_step(Ledger("x", (gone,)), PLACES, max_crashes=2) == Go(1)


class Troubled(Relay):
    """A relay whose first part meets these errors, and then ends."""

    errors: ClassVar[list[TpuctlError]]

    def _run_batch(self, part: JobPart) -> JobPart:
        if self.errors:
            raise self.errors.pop(0)
        return replace(part, end="done")


@pytest.mark.parametrize(
    ("error", "end", "is_raised"),
    [
        (UnavailableError("No answer."), "done", False),
        (QuotaExceededError("No hours."), "refused", False),
        (NotLoggedInError("No login."), "", True),
    ],
)
def test_a_part_that_may_still_run_is_not_started_elsewhere(
    error: TpuctlError,
    end: str,
    is_raised: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    job = RelayJob(plan_job(["true"]), (), Checkpoints(tmp_path / "kept"), WatchOptions())
    begun = Ledger("x", (JobPart(1, "kaggle", "v5litepod-8", "n", MORNING),))
    store = LedgerFile(["x"])
    places = ("kaggle:v5litepod-8",)
    relay = Troubled(begun, places, job, store=store, sink=lambda *_: None, note=lambda _: None)
    vars(relay).update(_clock=ManualClock(MORNING), errors=[error])
    if is_raised:
        with pytest.raises(type(error)):
            relay.run()
    else:
        relay.run()
    assert [(part.name, part.end) for part in vars(relay)["_ledger"].legs] == [("n", end)]


def test_a_full_disk_does_not_stop_a_job_whose_cost_is_counted(tmp_path: Path) -> None:
    class Full(LedgerFile):
        def save(self, ledger: Ledger) -> None:
            raise WriteError("No space left.")

    job = RelayJob(plan_job(["true"]), (), Checkpoints(tmp_path), WatchOptions())
    begun = Ledger("x", (JobPart(1, "colab", "v5litepod-1", "n", MORNING),))
    talk: dict[str, Any] = {"sink": lambda *_: None, "note": lambda _: None}
    relay = Relay(begun, ("colab:v5litepod-1",), job, store=Full(["x"]), **talk)
    known = KnownTpu("1", "", MORNING, MORNING + timedelta(hours=2), units_per_hour=3.0)
    relay._count(known)
    assert sum_up(relay._ledger, "", None).units == 6.0


@pytest.fixture
def worlds(kaggle: Kaggles, colab_world: ColabWorld) -> Any:
    """A Kaggle whose sessions end early, and a Colab."""
    Path("train.py").write_text(JOB)

    def start(**scenario: Any) -> Any:
        return kaggle(scenario), colab_world(scale=60)

    return start


def words(on: str, *job: str) -> tuple[str, ...]:
    options = ("--checkpoints", "kept", "--ttl", "4h", "--yes", "--json")
    return ("watch", "--on", on, *options, "--", "python3", "train.py", *job)


@pytest.mark.slow
def test_the_next_provider_goes_on_from_the_checkpoint_and_one_ledger_counts(
    worlds: Any, tpuctl: Tpuctl
) -> None:
    _, colab = worlds()
    done = tpuctl(*words("kaggle,colab:v5e-1", "2", "0"))
    assert done.exit_code == 0, done.stderr
    assert Path("kept/steps.txt").read_text() == "2"
    assert "attempt 2 begins with step 1" in done.stderr
    first, second = done.data["attempts"]
    assert [first["end"], second["end"]] == ["ended", "done"]
    assert "time limit" in first["reason"]
    assert first["hours"] > 0.1
    assert done.data["hours"] == pytest.approx(first["hours"] + second["hours"])
    assert done.data["units"] == second["units"] > 0
    assert colab.account.runtimes == {}
    again = tpuctl(*words("kaggle,colab:v5e-1", "0", "0"))
    assert "begins with step 2" in again.stderr


@pytest.mark.slow
def test_who_has_no_tpu_is_passed_over_and_a_failing_job_keeps_its_exit_code(
    worlds: Any, tpuctl: Tpuctl
) -> None:
    _, colab = worlds(kaggle={"used_hours": 20})
    done = tpuctl(*words("kaggle,colab", "0", "5")[:-5], "--max-crashes", "2",
                  *words("kaggle,colab", "0", "5")[-5:])  # fmt: skip
    assert done.exit_code == 5
    first, second = done.data["attempts"]
    assert (first["end"], second["end"], second["crashes"]) == ("refused", "crash", 2)
    assert "None of the 20 TPU hours" in first["reason"]
    assert colab.account.runtimes == {}


@pytest.mark.slow
@pytest.mark.parametrize("on", ["kaggle_status", pytest.param("ssh", marks=pytest.mark.hosted)])
def test_after_kill_9_the_same_command_resumes_with_its_ledger(
    worlds: Any, tpuctl: Tpuctl, on: str, tmp_path: Path
) -> None:
    world, colab = worlds()
    command = words("kaggle,colab:v5e-1", "2", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "tpuctl", *command], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seen = world.calls if on.startswith("kaggle") else colab.account.requests.count
    wait_until(lambda: seen(on) > 0)
    process.kill()
    process.wait()
    (saved,) = (tmp_path / "state" / "relays").glob("*.json")
    before = json.loads(saved.read_text())["ledger"]["legs"]
    done = tpuctl(*command)
    assert done.exit_code == 0, done.stderr
    parts = done.data["attempts"]
    assert [part["end"] for part in parts] == ["ended", "done"]
    assert [part["name"] for part in parts[: len(before)]] == [part["name"] for part in before]
    assert parts[0]["hours"] >= before[0]["hours"]
    assert len(list(world.client.kernels("tpuctl-"))) == 1
    assert colab.account.runtimes == {}
    assert Path("kept/steps.txt").read_text() == "2", done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--on", "kaggle"], "Where are the checkpoints"),
        (["--on", "nowhere", "--checkpoints", "c"], "Unknown provider"),
        (["--on", "cloud-tpu", "--checkpoints", "c"], "needs a type"),
        (["--on", "kaggle:v4-8", "--checkpoints", "c"], "does not have"),
        (["--on", "kaggle,kaggle", "--checkpoints", "c"], "named twice"),
        (["--on", "hosts:v4-8", "--checkpoints", "c"], "does not offer watch"),
        (["--on", "gke:v5e-8", "--checkpoints", "c"], "does not offer watch"),
        (["--on", "kaggle", "--checkpoints", "."], "a folder of checkpoints only"),
        (["--on", "kaggle", "--checkpoints", "c", "--queued"], "--queued"),
        (["--on", "kaggle", "--checkpoints", "c", "--spot"], "--spot has no effect"),
        (["--on", "kaggle,colab", "--checkpoints", "c", "--zone", "z"], "--zone has no effect"),
        (["--on", "kaggle", "--checkpoints", "c", "--hang-after", "9m"], "--hang-after"),
        (["--on", "kaggle", "--checkpoints", "c", "--max-units", "9"], "--max-units"),
        (["--on", "colab:v5e-8", "--checkpoints", "c"], "Colab has no v5litepod-8"),
        (["--on", ",", "--checkpoints", "c"], "No providers are named"),
        (["--on", "", "--checkpoints", "c"], "No providers are named"),
        (["t1", "--on", "kaggle", "--checkpoints", "c"], "t1 has no effect"),
        (["t1", "--checkpoints", "c"], "--checkpoints"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_started(
    kaggle: Kaggles, tpuctl: Tpuctl, given: list[str], said: str
) -> None:
    world = kaggle()
    result = tpuctl("watch", *given, "--json", "--", "true")
    assert result.exit_code in (1, 2)
    assert said in result.document["errors"][0]["message"]
    assert world.calls("kaggle_push") == 0


def test_the_plan_names_every_place_and_starts_nothing(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    world = kaggle()
    Path("train.py").write_text(JOB)
    line = ("watch", "--on", "kaggle,colab", "--checkpoints", "c", "--dry-run")
    plan = tpuctl(*line, "--", "python3", "train.py", "1", "0")
    assert "1. kaggle" in plan.stdout
    assert "2. colab" in plan.stdout
    assert "train.py" in plan.stdout
    assert world.calls("kaggle_push") == 0
    token = "hf_" + "abcdefghijklmnopqrst"
    secret = tpuctl(*line, "--env", f"TOKEN={token}", "--json", "--", "true")
    assert secret.exit_code == 2
    assert token not in secret.stdout + secret.stderr


@pytest.mark.slow
def test_a_tpu_of_compute_engine_goes_on_and_is_deleted(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zones = {"us-east5-a": {"capacity_chips": 64, "quota_chips": 64}}
    account = {"used_hours": 20}
    world = kaggle(
        {"zones": zones, "provision_s": 60, "kaggle": account}, machines=tmp_path / "machines"
    )
    monkeypatch.setenv("TPUCTL_GCE_ENDPOINT", world.emulator.http)
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    Path("train.py").write_text(JOB)
    Path("kept").mkdir()
    Path("kept/steps.txt").write_text("1")
    line = ("--on", "kaggle,gce:v6e-1", "--checkpoints", "kept", "--ttl", "12h", "--zone", "auto")
    done = tpuctl("watch", *line, "--max-usd", "90", "--yes", "--json",
                  "--", "python3", "train.py", "0", "0")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "begins with step 1" in done.stderr
    assert [(part["provider"], part["end"]) for part in done.data["attempts"]] == [
        ("kaggle", "refused"), ("gce", "done"),
    ]  # fmt: skip
    assert Path("kept/steps.txt").read_text() == "2"
    assert done.data["usd"] > 0
    assert tpuctl("list", "--provider", "gce", "--json").data["tpus"] == []


@pytest.mark.slow
def test_a_cloud_tpu_goes_on_from_a_bucket_and_is_deleted(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("google.cloud.storage")
    zone = {"us-central1-a": {"types": ["v5litepod-1"]}}
    world = kaggle(
        {"zones": zone, "buckets": {"kept": {}}, "provision_s": 60},
        machines=tmp_path / "machines",
    )
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", world.emulator.endpoint)
    monkeypatch.setenv("TPUCTL_PROJECT", "p")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", world.emulator.http)
    Path("train.py").write_text(JOB)
    line = ("--on", "kaggle,cloud-tpu:v5litepod-1", "--ttl", "4h", "--zone", "auto", "--yes")
    place = ("--checkpoints", "gs://kept/run", "--max-usd", "90", "--json")
    done = tpuctl("watch", *line, *place, "--", "python3", "train.py", "2", "0")
    assert done.exit_code == 0, done.stderr
    assert "attempt 2 begins with step 1" in done.stderr
    assert [part["end"] for part in done.data["attempts"]] == ["ended", "done"]
    assert done.data["usd"] > 0
    assert world.emulator.advance().nodes == {}
    from tpuctl.storage import open_storage

    assert open_storage("gs://kept/run").read("steps.txt") == b"2"
