"""Host keys that a TPU publishes, and OS Login."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.test_remote_tpu import ZONE, Practice, a_node, practising
from tests.workers import Heard, new_key, running_slice
from tpuctl.cloud.models import Endpoint
from tpuctl.errors import WorkerAuthError
from tpuctl.remote.access import HostKeys, learn_host_keys, published_key
from tpuctl.remote.keys import key_for_tpus, login_user, os_login_user, user_of_email
from tpuctl.remote.run import plan_command, run_command
from tpuctl.settings import state_dir

pytestmark = pytest.mark.slow

SHOW = ("show", "t1", "--zone", ZONE, "--json")
RUN = ("run", "t1", "--zone", ZONE, "--json", "--", "true")


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_TPU_ENDPOINT", "")
    monkeypatch.setenv("TPUCTL_PROJECT", "p")


@pytest.fixture(scope="module")
def ed25519(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A host key as it is published: its data alone."""
    path = tmp_path_factory.mktemp("key") / "key"
    new_key(path)
    return path.with_suffix(".pub").read_text().split()[1]


def known_hosts() -> list[list[str]]:
    path = state_dir() / "known_hosts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_the_keys_that_a_tpu_publishes_are_known_before_the_first_word(
    tpuctl, tmp_path: Path
) -> None:
    with practising(tmp_path / "m") as practice:
        node = practice.create()
        learn_host_keys(practice.api, node, HostKeys(state_dir() / "known_hosts"))
        lines = known_hosts()
        assert [words[0] for words in lines] == [f"tpu.{node.id}-{index}" for index in range(4)]
        assert {words[3] for words in lines} == {"guest-attributes"}
        assert tpuctl(*RUN).exit_code == 0
        assert known_hosts() == lines


def test_where_nothing_is_published_the_first_key_is_kept(tpuctl, tmp_path: Path) -> None:
    with practising(tmp_path / "m") as practice:
        practice.create(metadata={"enable-guest-attributes": "FALSE"})
        assert tpuctl(*RUN).exit_code == 0
        assert [len(words) for words in known_hosts()] == [3] * 4
        assert tpuctl(*RUN).exit_code == 0


def test_where_we_may_not_read_them_the_first_key_is_kept(tpuctl, tmp_path: Path) -> None:
    refused = {"on": "get_guest_attributes", "error": "permission", "every": True}
    with practising(tmp_path / "m", refused) as practice:
        practice.create()
        assert tpuctl(*RUN).exit_code == 0
        assert [len(words) for words in known_hosts()] == [3] * 4


def test_a_worker_that_shows_another_key_than_is_published_is_refused(
    tmp_path: Path, ed25519: str
) -> None:
    with running_slice(tmp_path, 1) as workers:
        workers.access.host_keys.remember_published([(workers.hosts[0], f"ssh-ed25519 {ed25519}")])
        command = plan_command(["touch", "was-here"])
        ended = run_command(workers.hosts, command, workers.access, sink=Heard())
        assert ended.failures[0].code == "host_key_changed"
        assert "shows a different host key than its TPU publishes" in str(ended.failures[0])
        assert not (workers.folder(0) / "was-here").exists()


def test_what_is_known_of_a_worker_is_not_replaced_by_what_is_published(
    tmp_path: Path, ed25519: str
) -> None:
    with running_slice(tmp_path, 1) as workers:
        command = plan_command(["true"])
        run_command(workers.hosts, command, workers.access, sink=Heard())
        workers.access.host_keys.remember_published([(workers.hosts[0], f"ssh-ed25519 {ed25519}")])
        ended = run_command(workers.hosts, command, workers.access, sink=Heard())
        assert ended.failures == ()


def test_only_a_key_is_taken_for_a_key(ed25519: str) -> None:
    assert published_key({"ssh-ed25519": ed25519}) == f"ssh-ed25519 {ed25519}"
    planted = f"{ed25519}\nother ssh-ed25519 {ed25519}"
    assert published_key({"ssh-ed25519": planted}) == f"ssh-ed25519 {ed25519}"
    rsa = base64.b64encode(b"\0\0\0\7ssh-rsa...").decode()
    assert published_key({"ssh-rsa": rsa, "ssh-ed25519": ed25519}) == f"ssh-ed25519 {ed25519}"
    assert published_key({"ssh-rsa": rsa}) == f"ssh-rsa {rsa}"
    for odd in ("", "x", "AAAA", rsa, "é", base64.b64encode(b"ssh-ed25519").decode()):
        assert published_key({"ssh-ed25519": odd}) is None
    assert published_key({"other": ed25519}) is None


@pytest.fixture
def os_login(tmp_path: Path) -> Iterator[Practice]:
    """A TPU with OS Login, at which ana's key is registered."""
    key = key_for_tpus(state_dir()).public
    with practising(tmp_path / "m", os_login={"ana_example_com": [key]}) as practice:
        practice.create(tell_key=False, metadata={"enable-oslogin": "TRUE"})
        yield practice


def gcloud_account(email: str) -> None:
    folder = Path.home() / ".config" / "gcloud"
    (folder / "configurations").mkdir(parents=True, exist_ok=True)
    (folder / "active_config").write_text("work\n")
    (folder / "configurations" / "config_work").write_text(f"[core]\naccount = {email}\n")


def test_with_os_login_we_are_who_google_says_and_no_metadata_is_touched(
    tpuctl, os_login: Practice
) -> None:
    gcloud_account("Ana@Example.com")
    assert tpuctl(*RUN).exit_code == 0
    assert "ssh-keys" not in os_login.api.get_node("t1", zone=ZONE).metadata


def test_the_user_that_was_named_is_named_in_the_next_command_too(
    tpuctl, os_login: Practice
) -> None:
    user = "ana_example_com@t1"
    started = tpuctl("run", user, "--zone", ZONE, "--job", "j", "--", "true")
    assert f"tpuctl logs {user} --zone {ZONE} --job j -f" in started.stdout


def test_with_os_login_a_user_may_still_be_named(tpuctl, os_login: Practice) -> None:
    assert tpuctl("run", "ana_example_com@t1", *RUN[2:]).exit_code == 0


def test_who_cannot_be_told_is_asked_for(tpuctl, os_login: Practice) -> None:
    result = tpuctl(*RUN)
    assert result.exit_code == 1
    (error,) = result.document["errors"]
    assert error["code"] == "worker_auth"
    assert "uses OS Login" in error["message"]
    assert "describe-profile" in error["hint"]


def test_with_os_login_the_jobs_are_shown_under_the_plain_name(tpuctl, os_login: Practice) -> None:
    gcloud_account("Ana@Example.com")
    assert tpuctl("run", "t1", "--zone", ZONE, "--job", "j", "--", "true").exit_code == 0
    assert [job["job"] for job in tpuctl(*SHOW).data["jobs"]] == ["j"]


def test_where_nothing_tells_our_name_a_tpu_is_shown_all_the_same(
    tpuctl, os_login: Practice
) -> None:
    result = tpuctl(*SHOW)
    assert (result.exit_code, result.data["state"], result.data["jobs"]) == (0, "READY", None)
    assert "uses OS Login" in result.data["jobs_why_null"]


def test_with_os_login_a_watch_runs_under_the_plain_name(tpuctl, os_login: Practice) -> None:
    gcloud_account("Ana@Example.com")
    watched = tpuctl("watch", "t1", "--zone", ZONE, "--json", "--", "sh", "-c", "echo $USER here")
    assert (watched.exit_code, watched.document["status"]) == (0, "ok")
    assert "ssh-keys" not in os_login.api.get_node("t1", zone=ZONE).metadata


def test_a_watch_that_cannot_tell_who_we_are_ends_at_once(tpuctl, os_login: Practice) -> None:
    watched = tpuctl("watch", "t1", "--zone", ZONE, "--json", "--", "true")
    (error,) = watched.document["errors"]
    assert (watched.exit_code, error["code"]) == (1, "worker_auth")


def test_a_key_that_os_login_does_not_know_says_how_to_add_it(tpuctl, os_login: Practice) -> None:
    result = tpuctl("run", "bob@t1", *RUN[2:])
    assert result.exit_code == 1
    (error,) = result.document["errors"]
    assert error["code"] == "worker_auth"
    assert "gcloud compute os-login ssh-keys add --key-file=" in error["hint"]
    assert "check that bob is your user name" in error["hint"]


@pytest.mark.parametrize(
    ("email", "user"),
    [
        ("cloudysanfrancisco@gmail.com", "cloudysanfrancisco_gmail_com"),
        ("A.B-c+d@x.org", "a_b_c_d_x_org"),
        ("robot@p.iam.gserviceaccount.com", None),
        ("nobody", None),
        (f"{'a' * 40}@x.org", "a" * 32),
    ],
)
def test_the_user_name_is_made_of_the_address(email: str, user: str | None) -> None:
    assert user_of_email(email) == user


def test_a_service_account_is_known_by_its_number(tmp_path: Path) -> None:
    key: dict[str, Any] = {"type": "service_account", "client_id": "1234567890"}
    path = tmp_path / "key.json"
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    assert os_login_user(env) is None
    for document, user in ((key, "sa_1234567890"), ({**key, "client_id": "x"}, None), ([], None)):
        path.write_text(json.dumps(document))
        assert os_login_user(env) == user
    path.write_text("{")
    assert os_login_user(env) is None


def test_a_configuration_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    assert os_login_user({"CLOUDSDK_CONFIG": str(tmp_path)}) is None
    (tmp_path / "configurations").mkdir()
    broken = tmp_path / "configurations" / "config_default"
    broken.write_text("account = x")
    assert os_login_user({"CLOUDSDK_CONFIG": str(tmp_path)}) is None
    broken.write_text("[core]\naccount = a@b.c\n")
    assert os_login_user({"CLOUDSDK_CONFIG": str(tmp_path)}) == "a_b_c"
    assert os_login_user({"CLOUDSDK_CORE_ACCOUNT": "d@e.f"}) == "d_e_f"


def test_without_os_login_the_user_is_our_own() -> None:
    node = a_node(Endpoint("10.0.0.1", None))
    assert login_user(node, "me") == "me"
    with pytest.raises(WorkerAuthError):
        login_user(a_node(Endpoint("10.0.0.1", None), **{"enable-oslogin": "true"}), "me")
