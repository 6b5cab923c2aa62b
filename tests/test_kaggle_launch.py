"""`launch --on kaggle` against the emulated Kaggle: runs, faults, output, logins."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EMULATOR_TOKEN, Tpuctl
from tests.hostile import made
from tests.kaggle_world import Kaggles, fault
from tests.kaggle_world import kaggle as kaggle
from tpuctl.emulator.kaggle.api import KaggleApi
from tpuctl.errors import DamagedError, InvalidInputError, NotLoggedInError, UsageError
from tpuctl.providers.batch import RunStore
from tpuctl.providers.kaggle.client import KaggleClient
from tpuctl.providers.kaggle.follow import HostedRun, _place
from tpuctl.providers.kaggle.login import Endpoint, find_endpoint, find_login
from tpuctl.providers.pack import refuse_secrets
from tpuctl.reporters.training import render_launch

pytestmark = pytest.mark.slow

LAUNCH = ("launch", "train.py", "--on", "kaggle")
SCRIPT = """\
import os, sys
path = "training/steps.txt"
os.makedirs("training", exist_ok=True)
with open(path, "a") as file:
    file.write("step\\n")
steps = open(path).read().count("step")
print(f"{steps} steps, in the folder: {sorted(os.listdir())}")
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture(autouse=True)
def train(kaggle: Kaggles) -> Path:
    """A script in the current folder."""
    Path("train.py").write_text(SCRIPT)
    return Path("train.py")


def test_the_exit_code_is_the_jobs_and_its_output_comes_home(
    kaggle: Kaggles, tpuctl: Tpuctl
) -> None:
    world = kaggle()
    result = tpuctl(*LAUNCH, "--json", "--", "3")
    assert result.exit_code == 3
    data = result.data
    # Kaggle calls a kernel complete whose job failed.
    assert (data["state"], data["returncode"]) == ("COMPLETE", 3)
    out = Path(data["out"])
    assert (out / "training" / "steps.txt").read_text() == "step\n"
    # The project is sent, and does not come back as output.
    assert not (out / "train.py").exists()
    assert data["training"]["returncode"] == 3
    assert data["unchecked"] == []
    said = result.stderr
    assert said.count("1 steps, in the folder") == said.count("to stderr") == 1
    assert "20.0 of 20 TPU hours left this week" in said
    assert "doctor: kaggle" in said
    assert "exited with code 3" in said
    assert "input wait and MXU idle are unknown" in said
    (kernel,) = world.client.kernels("tpuctl-")
    assert kernel["isPrivate"]
    assert kernel["machineShape"] == "TpuV5E8"


def test_the_source_of_a_kernel_holds_no_secret_and_its_time_is_limited(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = kaggle()
    Path("project").mkdir()
    Path("project/train.py").write_text(SCRIPT)
    Path("project/.env").write_text("TOKEN=hf_abcdefghijklmnopqrst\n")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    words = ["project/train.py", "--on", "kaggle", "--code", "project", "--ttl", "8h"]
    result = tpuctl("launch", *words)
    assert result.exit_code == 0
    assert "may hold secrets: .env" in result.stderr
    assert "the session ends after 8h 00m" in result.stderr
    (kernel,) = world.client.kernels("tpuctl-")
    body = {"userName": "practice", "kernelSlug": kernel["slug"]}
    source = world.client._call("kernels.KernelsApiService", "GetKernel", body)["blob"]["source"]
    kept = source + result.stdout + result.stderr
    assert EMULATOR_TOKEN not in kept
    assert "hf_abcdefghij" not in kept
    assert "'limit_s': 28200.0" in source


@pytest.mark.parametrize(
    "word",
    ["token=hf_abcdefghijklmnopqrst", "key=sk-abcdefghijklmnop1234", "ghp_0123456789abcdefgh"],
)
def test_a_secret_among_the_arguments_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_secrets(["epochs=3", word])
    assert "kaggle_secrets" in str(caught.value.hint)
    assert word not in str(caught.value)
    refuse_secrets(["epochs=3", "data=gs://bucket/shards", "lr=0.001"])


def test_an_error_about_a_flag_shows_no_secret(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle()
    said = tpuctl("launch", "train.py", "--on", "kaggle", "--set", "nix=hf_abcdefghijklmnopqrst")
    assert said.exit_code == 2
    assert "looks like a secret" in said.stderr
    assert "hf_abcdefghij" not in said.stdout + said.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "A=b"], "--env has no effect on Kaggle"),
        (["--cpu-devices", "2"], "--cpu-devices"),
        (["--key", "k"], "--key"),
        (["--set", "nonsense=1"], "no flag --nonsense"),
        (["--resume", "last"], "No run on Kaggle to resume from"),
    ],
)
def test_what_kaggle_cannot_do_is_refused_before_anything_is_started(
    kaggle: Kaggles, tpuctl: Tpuctl, words: list[str], said: str
) -> None:
    world = kaggle()
    result = tpuctl(*LAUNCH, *words, "--json")
    assert result.exit_code in (1, 2)
    assert said in result.document["errors"][0]["message"]
    assert world.calls("kaggle_push") == 0


def test_options_of_kaggle_are_refused_elsewhere(tpuctl: Tpuctl) -> None:
    for words in (["--resume", "last"], ["--ttl", "1h"]):
        assert tpuctl("launch", "train.py", *words).exit_code == 2
    wrong = tpuctl("launch", "train.py", "--on", "kaggle:v4-8", "--json")
    assert (wrong.exit_code, "v5litepod-8" in wrong.document["errors"][0]["hint"]) == (2, True)


def test_the_plan_is_shown_and_nothing_is_started(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    world = kaggle({"kaggle": {"used_hours": 19}})
    plan = tpuctl(*LAUNCH, "--dry-run", "--json").data
    assert (plan["hours_left"], plan["limit_hours"], plan["chips"]) == (1.0, 1.0, 8)
    assert plan["accelerator_type"] == "v5litepod-8"
    assert "1.0 of 20 TPU hours left" in tpuctl(*LAUNCH, "--dry-run").stdout
    assert (world.calls("kaggle_push"), RunStore().runs(world.client.endpoint.shown)) == (0, [])


@pytest.mark.parametrize(
    ("scenario", "code", "said"),
    [
        ({"kaggle": {"used_hours": 20}}, "quota_exceeded", "None of the 20 TPU hours"),
        ({"kaggle": {"phone_verified": False}}, "permission_denied", "Phone verification"),
        (fault("kaggle_push", "refused"), "invalid", "Notebook not found"),
        (fault("kaggle_push", "permission"), "permission_denied", "denied"),
        (fault("kaggle_quota", "unauthenticated"), "not_logged_in", "does not accept the login"),
    ],
)
def test_a_refused_launch_leaves_nothing_behind(
    kaggle: Kaggles, tpuctl: Tpuctl, scenario: dict[str, Any], code: str, said: str
) -> None:
    world = kaggle(scenario)
    result = tpuctl(*LAUNCH, "--json")
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (1, code)
    assert said in error["message"]
    assert error["hint"]
    assert RunStore().runs(world.client.endpoint.shown) == []


def test_a_session_without_a_tpu_ends_at_once(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle(fault("kaggle_session", "no_tpu"))
    result = tpuctl(*LAUNCH, "--json")
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (3, "no_capacity")
    assert result.data["returncode"] == 86
    assert "steps" not in result.stderr


def test_a_run_goes_on_from_the_last_one_or_from_a_folder(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle()
    first = tpuctl(*LAUNCH, "--json").data
    second = tpuctl(*LAUNCH, "--resume", "last", "--json")
    assert "2 steps" in second.stderr
    assert "train.py" in second.stderr
    assert (Path(second.data["out"]) / "training/steps.txt").read_text() == "step\nstep\n"
    third = tpuctl(*LAUNCH, "--resume", first["out"], "--json")
    assert "2 steps" in third.stderr
    named = tpuctl(*LAUNCH, "--resume", second.data["name"])
    assert "3 steps" in named.stdout


def test_a_large_project_goes_as_a_private_data_set_for_as_long_as_its_run(
    kaggle: Kaggles, tpuctl: Tpuctl, tmp_path: Path
) -> None:
    world = kaggle()
    Path("project").mkdir()
    Path("project/train.py").write_text(SCRIPT)
    Path("project/noise.bin").write_bytes(os.urandom(900_000))
    words = ["launch", "project/train.py", "--on", "kaggle", "--code", "project"]
    result = tpuctl(*words)
    assert result.exit_code == 0
    assert "as a private data set" in result.stderr
    assert "noise.bin" in result.stdout
    # It is deleted with the end of its run, and never one that we did not make.
    assert (world.calls("kaggle_create_data"), world.calls("kaggle_delete_data")) == (1, 1)
    assert all(run.data_set is None for run in RunStore().runs(world.client.endpoint.shown))


def test_gc_does_not_forget_a_run_that_kaggle_does_not_list_yet(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    kaggle()
    started = tpuctl(*LAUNCH, "--detach", "--json").data
    with monkeypatch.context() as stale:
        stale.setattr(KaggleClient, "kernels", lambda client, search: [])
        tpuctl("gc", "--provider", "kaggle")
    assert RunStore().find(started["name"])
    again = tpuctl(*LAUNCH, "--json")
    assert again.data["name"] == started["name"]


def test_a_data_set_that_is_left_goes_with_gc_and_a_part_of_the_output_with_cp(
    kaggle: Kaggles, tpuctl: Tpuctl
) -> None:
    world = kaggle(fault("kaggle_delete_data", "unauthenticated", nth=1))
    Path("noise.bin").write_bytes(os.urandom(900_000))
    words = (*LAUNCH, "--set", "data=noise.bin", "--json")
    flags = "import argparse\nargparse.ArgumentParser().add_argument('--data')\n"
    Path("train.py").write_text(flags + SCRIPT.replace("sys.argv[1]", "0"))
    made = tpuctl(*words).data
    (run,) = RunStore().runs(world.client.endpoint.shown)
    assert run.data_set
    assert world.client.data_status(run.data_set) == "READY"
    home = Path("home")
    assert tpuctl("cp", f"{made['name']}:training", str(home)).exit_code == 0
    assert (home / "steps.txt").read_text() == "step\n"
    assert tpuctl("cp", f"{made['name']}:training/steps.txt", "one.txt").exit_code == 0
    assert Path("one.txt").read_text() == "step\n"
    missing = tpuctl("cp", f"{made['name']}:nothing", "x", "--json")
    assert (missing.exit_code, "no output" in missing.document["errors"][0]["message"]) == (1, True)
    assert tpuctl("cp", "train.py", f"{made['name']}:x").exit_code == 2
    found = tpuctl("gc", "--provider", "kaggle", "--yes", "--json").data["found"]
    assert [each["action"] for each in found] == ["deleted"]
    assert world.client.data_status(run.data_set) is None


def test_a_data_set_that_is_not_mounted_ends_the_session_at_once(
    kaggle: Kaggles, tpuctl: Tpuctl
) -> None:
    kaggle(fault("kaggle_session", "late_mounts", nth=2))
    assert tpuctl(*LAUNCH).exit_code == 0
    result = tpuctl(*LAUNCH, "--resume", "last", "--json")
    assert (result.exit_code, result.data["returncode"]) == (3, 85)
    # The same command starts another session, which has it.
    again = tpuctl(*LAUNCH, "--resume", "last")
    assert (again.exit_code, "2 steps" in again.stdout) == (0, True)


def test_internet_that_is_off_and_a_false_success_are_told(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle(
        {
            "faults": [
                {"on": "kaggle_session", "error": "no_internet"},
                {"on": "kaggle_session", "error": "complete_anyway", "nth": 2},
            ]
        }
    )
    offline = tpuctl(*LAUNCH, "--json", "--", "4")
    assert "internet is off in this session" in offline.stderr
    assert "verified phone" in offline.document["errors"][0]["hint"]
    result = tpuctl(*LAUNCH, "--json", "--", "5")
    assert (result.exit_code, result.data["state"]) == (5, "COMPLETE")


def test_a_run_at_its_time_limit_brings_its_output_home(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle()
    Path("train.py").write_text("import time\nopen('ckpt', 'w').write('x')\ntime.sleep(300)\n")
    result = tpuctl(*LAUNCH, "--ttl", "4h", "--json")
    (error,) = result.document["errors"]
    assert (result.exit_code, error["code"]) == (3, "deadline")
    assert "--resume last" in error["hint"]
    assert (Path(result.data["out"]) / "ckpt").read_text() == "x"


def test_a_session_asked_to_end_after_its_job_still_saves_the_output(tmp_path: Path) -> None:
    start = tmp_path / ".tpuctl" / "tpuctl" / "start_python.py"
    start.parent.mkdir(parents=True)
    start.write_text("")
    program = f"""
        import os, signal
        from tpuctl.providers.kaggle import bootstrap

        print(bootstrap._run({str(tmp_path)!r}, 60))
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved")
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.check_output(words, text=True) == "(0, '')\nsaved\n"


def test_a_detached_run_is_listed_followed_and_deleted(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    world = kaggle()
    seen = Path("seen").absolute()
    wait = f"while not os.path.exists({str(seen)!r}): time.sleep(0.05)"
    Path("train.py").write_text(f"import os, time\nprint('begun', flush=True)\n{wait}")
    started = tpuctl(*LAUNCH, "--detach", "--json").data
    name = started["name"]
    (tpu,) = tpuctl("list", "--provider", "kaggle", "--json").data["tpus"]
    assert (tpu["name"], tpu["provider"], tpu["reachable"]) == (name, "kaggle", "batch")
    assert tpuctl("show", name, "--json").data["provisioning"] == "free"
    (orphan,) = tpuctl("gc", "--provider", "kaggle", "--json").data["found"]
    assert (orphan["action"], "it is not followed" in orphan["reason"]) == ("left_alone", True)
    for words, said in [
        (("stop", name), "does not offer stop"),
        (("run", name, "--", "ls"), "does not offer SSH"),
        (("delete", name, "--yes"), "deleting it would not stop it"),
    ]:
        refused = tpuctl(words[0], "--json", *words[1:])
        assert refused.exit_code in (1, 2)
        error = refused.document["errors"][0]
        assert said in error["message"]
        assert error["hint"]
    seen.touch()
    followed = tpuctl("logs", name, "--follow")
    assert (followed.exit_code, followed.stdout.count("begun\n")) == (0, 1)
    assert tpuctl("wait", name, "--for", "gone").exit_code == 0
    assert "has ended" in tpuctl("wait", name, "--for", "ready").stderr
    shown = tpuctl("show", name).stdout
    assert "quota" not in shown
    assert f"page=https://www.kaggle.com/code/practice/{name}" in shown
    assert "begun" in tpuctl("logs", name).stdout
    assert tpuctl("gc", "--provider", "kaggle", "--yes", "--json").data["found"][0]["action"] == (
        "deleted"
    )
    assert list(world.client.kernels("tpuctl-")) == []


def test_a_kernel_of_somebody_else_is_not_ours(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, usual = kaggle(), KaggleApi._list
    assert tpuctl(*LAUNCH, "--json").exit_code == 0
    shared = {"ref": "somebody/tpuctl-train-0a1b2c3d", "currentVersionNumber": 1}
    monkeypatch.setattr(
        KaggleApi, "_list", lambda api, body: {"kernels": [*usual(api, body)["kernels"], shared]}
    )
    assert tpuctl("list", "--provider", "kaggle", "--json").data["tpus"] == []
    done = tpuctl("delete", "--all", "--provider", "kaggle", "--yes", "--json").data
    assert [each["outcome"] for each in done["tpus"]] == ["deleted"]
    assert world.calls("kaggle_delete") == 1


TRAIN = """\
import time
import grain
for epoch in range(10):
    for batch in iter(grain.MapDataset.range(64).map(lambda i: i).batch(4).to_iter_dataset()):
        time.sleep(0.005)
"""


def test_the_profile_of_a_run_comes_home(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    pytest.importorskip("grain")
    world = kaggle()
    Path("train.py").write_text(TRAIN)
    words = ("profile", "run", "--on", "kaggle", "--out", "it.tpuprof", "--json")
    found = tpuctl(*words, "--", "python", "train.py")
    assert found.exit_code == 0, found.stderr + found.stdout
    assert "input wait" in found.stderr
    assert found.data["kind"] == "grain"
    assert tpuctl("profile", "show", "it.tpuprof").exit_code == 0
    assert world.calls("kaggle_push") == 1
    assert tpuctl(*words, "--steps", "3", "--", "python", "train.py").exit_code == 2


def test_output_that_changed_on_its_way_is_not_accepted(kaggle: Kaggles, tpuctl: Tpuctl) -> None:
    kaggle(fault("kaggle_download", "corrupt", nth=2, after_bytes=1))
    result = tpuctl(*LAUNCH, "--json")
    assert (result.exit_code, result.document["errors"][0]["code"]) == (1, DamagedError.code)
    again = tpuctl(*LAUNCH, "--json")
    assert again.exit_code == 0
    assert "1 steps" in again.stderr


def test_a_full_disk_is_not_taken_for_a_lost_connection(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = kaggle()
    Path("train.py").write_text("open('big.bin', 'wb').write(bytes(3 << 20))")
    started = tpuctl(*LAUNCH, "--detach", "--json").data["name"]
    follow = [sys.executable, "-m", "tpuctl", "logs", started, "--follow"]
    # No file may be larger here: to write more fails as on a full disk.
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *follow], capture_output=True, text=True
    )
    assert limited.returncode == 1, limited.stderr
    assert "big.bin" in limited.stderr
    assert "Kaggle (" not in limited.stderr
    assert world.calls("kaggle_download") < 5
    again = tpuctl("logs", started, "--follow")
    assert again.exit_code == 0, again.stderr
    assert (Path(started) / "big.bin").stat().st_size == 3 << 20


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a//b", "", ".", "link/x", "final", "a\0b"]
)
def test_no_file_is_written_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path)
    (out / "final").symlink_to(tmp_path / "victim")
    with pytest.raises(InvalidInputError):
        _place(out, name)
    assert _place(out, "a/b..c") == out / "a" / "b..c"


# Login


def write(home: Path, name: str, content: Any) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_logins_are_found_where_the_official_command_line_looks_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = Path(os.environ["HOME"])
    real = Endpoint("https://api.kaggle.com/v1")
    with pytest.raises(NotLoggedInError) as caught:
        find_login(real, {})
    assert "kaggle auth login" in str(caught.value.hint)
    token = {"access_token": "o", "access_token_expiration": "2999-01-01T00:00:00+00:00"}
    write(home, ".kaggle/credentials.json", {**token, "username": "u"})
    assert find_login(real, {}).secret == "o"
    write(home, ".kaggle/kaggle.json", {"username": "u", "key": "k"})
    assert (find_login(real, {}).secret, find_login(real, {}).is_key) == ("k", True)
    elsewhere = {"KAGGLE_CONFIG_DIR": str(tmp_path)}
    write(tmp_path, "kaggle.json", {"username": "v", "key": "l"})
    assert find_login(real, elsewhere).username == "v"
    pair = {"KAGGLE_USERNAME": "w", "KAGGLE_KEY": "m"}
    assert find_login(real, pair).secret == "m"
    write(home, ".kaggle/access_token", "t\n")
    assert find_login(real, pair).secret == "t"
    write(tmp_path, "token", "f")
    assert find_login(real, {"KAGGLE_API_TOKEN": str(tmp_path / "token")}).secret == "f"
    login = find_login(real, {"KAGGLE_API_TOKEN": "e"})
    assert (login.secret, "'e'" in repr(login)) == ("e", False)


def test_an_expired_login_names_the_command_to_run() -> None:
    over = {"access_token": "o", "access_token_expiration": "2020-01-01T00:00:00+00:00"}
    write(Path(os.environ["HOME"]), ".kaggle/credentials.json", over)
    with pytest.raises(NotLoggedInError, match="expired") as caught:
        find_login(Endpoint("https://api.kaggle.com/v1"), {})
    assert "kaggle auth" in str(caught.value.hint)


def test_a_damaged_login_is_named_and_not_shown() -> None:
    write(Path(os.environ["HOME"]), ".kaggle/kaggle.json", '{"key": "very-secret"')
    with pytest.raises(InvalidInputError) as caught:
        find_login(Endpoint("https://api.kaggle.com/v1"), {})
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["http://10.0.0.1:80/x", "https://127.0.0.1/x", "http://127.0.0.1.evil.io/x", "x"]
)
def test_only_an_emulator_on_this_machine_is_an_endpoint(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TPUCTL_KAGGLE_ENDPOINT", address)
    with pytest.raises(InvalidInputError):
        find_endpoint()


def test_a_login_that_kaggle_refuses_names_where_it_is_from(kaggle: Kaggles) -> None:
    world = kaggle()
    base = world.client.endpoint.base.replace(EMULATOR_TOKEN, "wrong-secret")
    client = KaggleClient(Endpoint(base, is_local=True))
    with pytest.raises(NotLoggedInError, match="from the emulator") as caught:
        client.quota()
    assert "wrong-secret" not in f"{caught.value}{caught.value.hint}"


def test_the_account_is_checked_without_starting_anything(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = kaggle({"kaggle": {"used_hours": 5}})
    result = tpuctl("doctor", "--provider", "kaggle", "--json")
    assert result.exit_code == 0
    found = {each["name"]: (each["ok"], each["detail"]) for each in result.data["checks"]}
    assert found["login"] == (True, "Kaggle answers")
    assert found["balance"] == (True, "15 hours left")
    assert found["v5litepod-8"][0] is True
    assert "15 hours left" in tpuctl("doctor", "--provider", "kaggle").stdout
    assert {name for name, _, _ in world.emulator.requests} <= {
        "kaggle_token", "kaggle_quota", "kaggle_list",
    }  # fmt: skip
    monkeypatch.delenv("TPUCTL_KAGGLE_ENDPOINT")
    result = tpuctl("doctor", "--provider", "kaggle", "--json")
    assert result.exit_code == 1
    assert "kaggle auth login" in str(result.document["errors"])
    assert tpuctl("doctor", "--provider", "kaggle", "--deep").exit_code == 2


def test_auto_takes_the_free_hours_first_and_dollars_only_with_a_budget(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = kaggle({"zones": {"us-central1-a": {"types": ["v5litepod-8"]}}})
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", world.emulator.endpoint)
    auto = ("launch", "train.py", "--on", "auto")
    free = tpuctl(*auto, "--dry-run", "--json").data
    assert [each["provider"] for each in free["offers"]] == ["kaggle"]
    assert any("--max-usd" in reason for reason in free["because"])
    paid = tpuctl(*auto, "--max-usd", "5", "--dry-run", "--json").data["offers"]
    assert [each["provider"] for each in paid][:2] == ["kaggle", "cloud-tpu"]
    assert world.calls("kaggle_push") == 0
    done = tpuctl(*auto, "--json", "--", "7")
    assert (done.exit_code, done.data["provider"]) == (7, "kaggle")
    assert "1. kaggle v5litepod-8, free" in done.stderr
    assert done.stderr.count("the session ends after") == 1
    assert "started before" not in done.stderr


def test_auto_without_free_hours_and_without_a_budget_is_told(
    kaggle: Kaggles, tpuctl: Tpuctl
) -> None:
    kaggle({"kaggle": {"used_hours": 20}})
    result = tpuctl("launch", "train.py", "--on", "auto", "--json")
    assert (result.exit_code, result.document["errors"][0]["code"]) == (3, "no_capacity")
    first, *rows = result.document["errors"][0]["message"].splitlines()
    assert first == "No TPU is available now."
    assert {row.split()[0] for row in rows} >= {"kaggle", "colab", "for"}
    assert all(len(row) < 120 for row in rows)
    assert "--max-usd" in rows[-1]
    assert tpuctl("launch", "train.py", "--max-usd", "5").exit_code == 2


def test_auto_goes_on_to_a_cloud_tpu_and_deletes_it(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zone = {"types": ["v5litepod-1"]}
    busy = fault("kaggle_push", "unavailable", every=True)
    world = kaggle({"zones": {"us-central1-a": zone}, **busy}, machines=tmp_path / "machines")
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", world.emulator.endpoint)
    auto = ("launch", "train.py", "--on", "auto", "--max-usd", "50", "--yes")
    result = tpuctl(*auto, "--", "5")
    assert result.exit_code == 5
    assert "Trying the next offer" in result.stderr
    assert "1 steps" in result.stdout
    assert world.emulator.advance().nodes == {}


@pytest.mark.parametrize("on", ["delete_node", "create_node"])
def test_auto_says_what_may_be_left_and_creates_no_second_tpu(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: str
) -> None:
    faults = [{"on": "delete_node", "error": "permission", "every": True}]
    if on == "create_node":
        lost = {"error": "unavailable", "every": True}
        faults = [{"on": on, "after_accept": True, **lost}, {"on": "get_node", **lost}]
    zones = {zone: {"types": ["v5litepod-1"]} for zone in ("us-central1-a", "us-west4-a")}
    plan = {"zones": zones, "faults": faults, "kaggle": {"used_hours": 20}}
    world = kaggle(plan, machines=tmp_path / "machines")
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", world.emulator.endpoint)
    result = tpuctl("launch", "train.py", "--on", "auto", "--max-usd", "50", "--yes")
    assert len(world.emulator.advance().nodes) == 1
    assert result.exit_code != 0
    said = result.stderr.splitlines()[-1]
    assert ("tpuctl delete auto-" if on == "delete_node" else "tpuctl list") in said


def test_auto_uses_and_deletes_its_tpu_in_whatever_zone_is_set(
    kaggle: Kaggles, tpuctl: Tpuctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zones = {"us-central1-a": {"types": ["v5litepod-1"]}}
    plan = {"zones": zones, "kaggle": {"used_hours": 20}}
    world = kaggle(plan, machines=tmp_path / "machines")
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", world.emulator.endpoint)
    monkeypatch.setenv("TPUCTL_ZONE", "us-west4-a")
    result = tpuctl("launch", "train.py", "--on", "auto", "--max-usd", "50", "--yes", "--", "5")
    assert result.exit_code == 5, result.stderr
    assert world.emulator.advance().nodes == {}


def test_an_exit_code_that_is_not_known_is_called_unknown() -> None:
    run = replace(made(HostedRun), name="r", state="ERROR", returncode=None, training=None)
    assert "r is ERROR on Kaggle; the job's exit code: unknown." in str(render_launch(run))
