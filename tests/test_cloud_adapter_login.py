"""Who we are and where we ask: found without a network, refused with the next command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud_world import Worlds
from tpuctl.cloud._google_channel import log_in
from tpuctl.cloud.connect import connect
from tpuctl.cloud.endpoint import Endpoint, parse_endpoint
from tpuctl.errors import InvalidInputError, NotFoundError, NotLoggedInError, UnavailableError

ANSWER_NOWHERE = "127.0.0.1:9"
SECRET = "1//0secret-refresh-token"


@pytest.fixture(autouse=True)
def no_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Google Cloud machine, and no login of the developer's."""
    monkeypatch.setenv("GCE_METADATA_IP", ANSWER_NOWHERE)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def write_login(path: Path, **fields: str) -> Path:
    login = {
        "type": "authorized_user",
        "client_id": "id",
        "client_secret": "hush",
        "refresh_token": SECRET,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(login | fields))
    return path


def well_known() -> Path:
    return Path.home() / ".config/gcloud/application_default_credentials.json"


def test_without_a_login_the_next_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotLoggedInError) as caught:
        connect("my-project")
    assert str(caught.value) == "Not logged in: no Google Cloud credentials found."
    assert (caught.value.hint or "").startswith("gcloud auth application-default login")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "\x00\xff",
        '{"type": "authorized_user"}',
        f'{{"type": "authorized_user", "refresh_token": "{SECRET}"}}',
        f'{{"type": "service_account", "private_key": "{SECRET}", "client_email": 1}}',
        f'{{"type": "service_account", "private_key": "{SECRET}"',
    ],
)
def test_a_broken_login_is_named_without_its_content(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "login.json"
    path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(NotLoggedInError, match="the credentials are not usable: ") as caught:
        log_in("my-project")
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_a_login_that_was_named_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/login.json")
    with pytest.raises(NotLoggedInError, match=r"/nowhere/login\.json"):
        log_in("my-project")


def test_the_login_of_gcloud_is_used_without_starting_gcloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    gcloud = tmp_path / "bin/gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(f"#!/bin/sh\ntouch {started}\necho from-gcloud\n")
    gcloud.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gcloud.parent}:/usr/bin:/bin")
    write_login(well_known())
    assert log_in("my-project").project == "my-project"
    assert not started.exists()
    assert log_in(None).project == "from-gcloud"
    assert started.exists()


def test_the_project_of_the_login_is_used_where_none_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    write_login(well_known(), quota_project_id="its-project")
    assert log_in(None).project == "its-project"


def test_a_project_that_cannot_be_told_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    write_login(well_known())
    with pytest.raises(InvalidInputError) as caught:
        connect()
    assert "export TPUCTL_PROJECT=" in (caught.value.hint or "")


def test_google_is_reached_encrypted_and_with_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    write_login(well_known())
    api = connect("my-project")
    assert (api.project, api.endpoint, api.emulated) == (
        "my-project",
        "tpu.googleapis.com:443",
        False,
    )


@pytest.mark.parametrize("project", ["a/b", "a b", "..", "p\n"])
def test_a_project_that_cannot_be_one_is_refused(
    project: str, world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world()
    with pytest.raises(InvalidInputError, match="project"):
        connect(project)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Endpoint("tpu.googleapis.com:443", is_local=False)),
        ("tpu.googleapis.com", Endpoint("tpu.googleapis.com:443", is_local=False)),
        ("us-tpu.googleapis.com:8443", Endpoint("us-tpu.googleapis.com:8443", is_local=False)),
        ("https://tpu.googleapis.com/", Endpoint("tpu.googleapis.com:443", is_local=False)),
        ("127.0.0.1:8471", Endpoint("127.0.0.1:8471", is_local=True)),
        ("http://127.0.0.1:8471", Endpoint("127.0.0.1:8471", is_local=True)),
        ("localhost:1", Endpoint("localhost:1", is_local=True)),
        ("[::1]:8471", Endpoint("[::1]:8471", is_local=True)),
    ],
)
def test_an_endpoint_is_googles_or_on_this_machine(text: str | None, expected: Endpoint) -> None:
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "evil.example:443",
        "127.0.0.1.evil.example:80",
        "evil.example#.googleapis.com",
        "evil.example/.googleapis.com:443",
        "evilgoogleapis.com:443",
        "tpu.googleapis.com.evil.example:443",
        "tpu.googleapis.com@evil.example:443",
        "192.168.0.7:8471",
        "0.0.0.0:8471",
        "unix:/tmp/s",
        "dns:///127.0.0.1:80",
        "127.0.0.1",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:x",
        "127.0.0.1:٣",
        ":8471",
        "localhost:",
    ],
)
def test_a_login_is_sent_nowhere_else(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_login(well_known())
    with pytest.raises(InvalidInputError, match="Cannot use the endpoint"):
        connect("my-project", endpoint=text)


def test_an_emulator_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(UnavailableError, match=f"No emulator answers at {ANSWER_NOWHERE}") as error:
        connect(endpoint=ANSWER_NOWHERE)
    assert "tpuctl emulator start" in (error.value.hint or "")


def run(code: str, *, warnings: str = "ignore") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", f"{warnings}::FutureWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_googles_library_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['google.cloud.tpu_v2'] = None\n"
        "from tpuctl.cloud.connect import connect\n"
        "try: connect('p')\n"
        "except Exception as error: print(error.code, '|', error.hint)"
    )
    assert run(code).stdout.strip() == "missing_extra | pip install 'tpuctl[gcp]'"


@pytest.mark.slow
def test_the_port_loads_nothing_of_googles_before_it_is_opened() -> None:
    code = (
        "import sys, tpuctl.cloud.api, tpuctl.cloud.connect, tpuctl.cloud.retry\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('google', 'grpc')])"
    )
    assert run(code).stdout.strip() == "[]"
    twin = run(code.replace("tpuctl.cloud.retry", "tpuctl.cloud._google_api"))
    assert "'grpc'" in twin.stdout


@pytest.mark.slow
def test_googles_warnings_about_old_pythons_are_not_for_our_users() -> None:
    write_login(well_known())
    code = "from tpuctl.cloud.connect import connect; print(connect('p').endpoint)"
    done = run(code, warnings="error")
    assert (done.stdout.strip(), done.stderr) == ("tpu.googleapis.com:443", "")


@pytest.mark.slow
def test_a_server_that_goes_away_leaves_nothing_on_the_terminal() -> None:
    code = (
        "from tpuctl.cloud.connect import connect\n"
        "from tpuctl.clock import ManualClock\n"
        "from tpuctl.emulator.server import serve\n"
        "from datetime import datetime, timezone\n"
        "import os\n"
        "clock = ManualClock(datetime.now(timezone.utc))\n"
        "with serve({}, clock=clock) as emulator:\n"
        "    api = connect(None, endpoint=emulator.endpoint, clock=clock)\n"
        "    api.list_zones()\n"
        "try: api.list_zones()\n"
        "except Exception as error: print(error.code, 'GRPC_VERBOSITY' in os.environ)"
    )
    first = "from tpuctl.cloud.connect import quietly\n"
    first += "with quietly(): import tpuctl.cloud._google_api\n"
    done = run(first + code)
    assert (done.stdout.strip(), done.stderr) == ("unavailable False", "")


def test_a_bucket_is_found_where_the_emulator_has_it(world: Worlds) -> None:
    cloud = world({"buckets": {"photos": {"location": "EUROPE-WEST4"}}})
    assert cloud.api.bucket_location("photos") == "europe-west4"
    with pytest.raises(NotFoundError, match="Could not read the location of bucket other"):
        cloud.api.bucket_location("other")


def test_practice_does_not_ask_the_real_storage(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world().api
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with pytest.raises(InvalidInputError, match="STORAGE_EMULATOR_HOST is not set"):
        api.bucket_location("photos")


def test_a_storage_emulator_that_is_not_there_is_unavailable(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = world().api
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{ANSWER_NOWHERE}")
    with pytest.raises(UnavailableError, match="Could not read the location of bucket photos"):
        api.bucket_location("photos")
