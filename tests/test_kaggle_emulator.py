"""The emulated Kaggle, as our client sees it: sessions, quota, log stream, data sets."""

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.kaggle_world import SCALE, Kaggles, World, fault
from tests.kaggle_world import kaggle as kaggle
from tpuctl.clock import ManualClock
from tpuctl.errors import (
    InvalidInputError,
    NoCapacityError,
    PermissionDeniedError,
    QuotaExceededError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)

NAME = "tpuctl-by-hand"


def events(world: World, version: int = 1) -> list[dict[str, Any]]:
    return list(world.client.log(NAME, version))


def lines(world: World, version: int = 1) -> str:
    return "".join(event["data"] for event in events(world, version))


def test_a_session_runs_the_script_and_its_output_comes_in_pages(kaggle: Kaggles) -> None:
    world = kaggle()
    text = (
        "import os, sys\nprint('out')\nprint('err', file=sys.stderr)\n"
        "os.mkdir('deep')\n"
        "for i in range(450): open(f'deep/{i}', 'w').write(str(i))\n"
    )
    assert world.client.push(world.push(text)) == (1, ())
    found = {(e["stream_name"], e["data"]) for e in events(world)}
    assert found == {("stdout", "out\n"), ("stderr", "err\n")}
    assert world.client.status(NAME, 1) == ("COMPLETE", "")
    listed = dict(world.client.outputs(NAME, 1))
    assert sorted(listed) == sorted(f"deep/{i}" for i in range(450))
    assert world.calls("kaggle_output") == 3
    with world.client.opened(listed["deep/417"], 1) as (first, total, source):
        assert (first, total, source.read()) == (1, 3, b"17")
    # The finished log is an array of the same events.
    assert len(events(world)) == 2
    assert world.client.version_of(NAME) == 1
    assert world.client.version_of("tpuctl-nothing") is None


def test_a_session_has_a_tpu_unless_something_takes_it_away(kaggle: Kaggles) -> None:
    world = kaggle()
    probe = "import os; print(len(os.listdir(os.environ['TPUCTL_EMULATED_DEVICES'] + '/vfio')))"
    none = "import os; print('TPUCTL_EMULATED_DEVICES' in os.environ)"
    versions: list[tuple[str, dict[str, Any], str]] = [
        (probe, {"machineShape": "TpuV38"}, "8\n"),  # retired, and replaced by the v5e-8
        (probe, {"machineShape": None, "enableTpu": True}, "8\n"),
        (none, {"machineShape": "TpuV232"}, "False\n"),  # retired, and replaced by nothing
        (none, {"dockerImage": "gcr.io/kaggle-images/python@sha256:1"}, "False\n"),
        (none, {"machineShape": None}, "False\n"),
    ]
    for number, (text, fields, said) in enumerate(versions, 1):
        world.client.push(world.push(text, **fields))
        assert lines(world, number) == said


def test_hours_run_down_and_none_are_left(kaggle: Kaggles) -> None:
    world = kaggle({"kaggle": {"tpu_hours": 2, "used_hours": 1.9}})
    world.client.push(world.push("import time; time.sleep(60)", sessionTimeoutSeconds=36000))
    reserved = world.client.quota()
    assert reserved.reserved_hours > 0
    assert reserved.left_hours < 0.1
    with pytest.raises(NoCapacityError, match="session count"):
        world.client.push(world.push("", slug="practice/tpuctl-second"))
    # The session gets no more than what is left of the week: it is stopped there.
    events(world)
    state, why = world.client.status(NAME, 1)
    assert (state, "timed out" in why) == ("ERROR", True)
    assert world.client.quota().left_hours == 0
    with pytest.raises(QuotaExceededError, match="quota of 2 hours"):
        world.client.push(world.push("", slug="practice/tpuctl-third"))


def test_an_account_without_a_phone_number_gets_neither_tpu_nor_internet(kaggle: Kaggles) -> None:
    world = kaggle({"kaggle": {"phone_verified": False}})
    with pytest.raises(PermissionDeniedError) as caught:
        world.client.push(world.push(""))
    assert "kaggle.com/settings" in str(caught.value.hint)
    world.client.push(world.push("", machineShape=None, enableInternet=False))


def test_internet_is_off_where_it_is_not_enabled(kaggle: Kaggles) -> None:
    world = kaggle()
    text = "import os; print('https_proxy' in os.environ)"
    world.client.push(world.push(text, enableInternet=False))
    world.client.push(world.push(text, slug="practice/tpuctl-online", machineShape=None))
    assert lines(world) == "True\n"
    assert [e["data"] for e in world.client.log("tpuctl-online", 1)] == ["False\n"]


def test_a_stream_that_is_cut_starts_over_at_the_beginning(kaggle: Kaggles) -> None:
    world = kaggle(fault("kaggle_logs", "cut", after_bytes=70))
    text = "import time\nfor i in range(3): print(i, flush=True); time.sleep(.05)"
    world.client.push(world.push(text))
    seen = []
    with pytest.raises(UnavailableError):
        seen += [event["data"] for event in world.client.log(NAME, 1)]
    assert lines(world) == "0\n1\n2\n"


def test_a_session_ends_with_its_emulator_and_its_output_is_kept(
    kaggle: Kaggles, tmp_path: Path
) -> None:
    world = kaggle(folder=tmp_path / "kept")
    world.client.push(world.push("open('a', 'w').write('x')", slug="practice/tpuctl-first"))
    list(world.client.log("tpuctl-first", 1))
    # Asked without a TPU, because only one session may have one.
    text = "import time; print(1, flush=True); time.sleep(60)"
    world.client.push(world.push(text, machineShape=None))
    next(world.client.log(NAME, 1))
    again = kaggle(folder=tmp_path / "kept")
    state, why = again.client.status(NAME, 1)
    assert (state, "stopped" in why) == ("ERROR", True)
    assert [name for name, _ in again.client.outputs("tpuctl-first", 1)] == ["a"]


def test_data_sets_are_uploaded_mounted_and_only_when_ready(
    kaggle: Kaggles, tmp_path: Path
) -> None:
    world = kaggle(fault("kaggle_upload", "cut", after_bytes=100_000))
    (tmp_path / "f").write_bytes(b"0123456789" * 50_000)
    client = world.client
    assert client.data_status("tpuctl-data") is None
    client.create_data("tpuctl-data", tmp_path / "f", "f.bin")
    # Cut once, and sent again.
    assert world.calls("kaggle_upload") == 2
    source = {"datasetDataSources": ["practice/tpuctl-data", "practice/nothing"]}
    text = (
        "import glob, os, hashlib\n"
        "for p in glob.glob(os.environ['TPUCTL_KAGGLE_ROOT'] + '/input/**/*.bin', recursive=True):"
        " print(hashlib.sha256(open(p, 'rb').read()).hexdigest())"
    )
    while client.data_status("tpuctl-data") != "READY":
        client.clock.sleep(1)
    assert client.push(world.push(text, **source)) == (1, ("practice/nothing",))
    digest = hashlib.sha256(b"0123456789" * 50_000).hexdigest()
    assert lines(world) == f"{digest}\n"
    with pytest.raises(InvalidInputError, match="in use"):
        client.create_data("tpuctl-data", tmp_path / "f", "f.bin")


@pytest.mark.parametrize(
    ("error", "raised", "sent"),
    [
        ("rate_limit", RateLimitedError, 9),
        ("permission", PermissionDeniedError, 1),
        ("internal", UnavailableError, 2),
        ("unavailable", UnavailableError, 2),
        ("cut", UnavailableError, 2),
    ],
)
def test_failed_calls_become_our_errors_and_reading_is_repeated(
    kaggle: Kaggles, error: str, raised: type[TpuctlError], sent: int
) -> None:
    # On a busy machine, the half minute of an outage would end before the second call.
    scale = SCALE if error == "rate_limit" else SCALE / 30
    world = kaggle(fault("kaggle_quota", error, nth=1, every=True), scale=scale)
    client = world.client
    client.version_of("tpuctl-nothing")  # from now on it knows the time of the service
    with pytest.raises(raised):
        client.quota()
    assert world.calls("kaggle_quota") >= sent


def test_one_failure_is_not_noticed(kaggle: Kaggles) -> None:
    world = kaggle(fault("kaggle_quota", "unavailable"))
    assert world.client.quota().left_hours == 20


def test_a_push_is_never_repeated_blindly(kaggle: Kaggles) -> None:
    world = kaggle(fault("kaggle_push", "cut", after_accept=True))
    with pytest.raises(UnavailableError):
        world.client.push(world.push("print(1)"))
    assert world.calls("kaggle_push") == 1
    assert world.client.version_of(NAME) == 1


def test_a_refusal_in_a_good_reply_is_an_error(kaggle: Kaggles) -> None:
    world = kaggle(fault("kaggle_push", "refused"))
    with pytest.raises(InvalidInputError, match="Notebook not found"):
        world.client.push(world.push(""))


def test_the_secret_of_the_emulator_is_no_part_of_what_a_session_sees(kaggle: Kaggles) -> None:
    world = kaggle()
    world.client.push(world.push("import os; print(dict(os.environ))"))
    text = json.dumps(events(world))
    assert str(world.emulator.secret) not in text
    assert "TPU_ACCELERATOR_TYPE" in text


def test_the_hours_come_back_with_a_new_week(kaggle: Kaggles) -> None:
    world = kaggle({"kaggle": {"used_hours": 20}})
    client = world.client
    before = client.quota()
    assert (before.left_hours, str(before.refreshes)[:10]) == (0, "2026-11-29")
    world.emulator.clock = ManualClock(datetime(2026, 11, 29, 1, tzinfo=timezone.utc))
    after = client.quota()
    assert (after.left_hours, str(after.refreshes)[:10]) == (20, "2026-12-06")
