"""Buckets on a bad day: the port over the emulator's faults, and what it says when it gives up."""

import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.test_storage_port import MIB, QUICK, crc32c
from tpuctl.clock import ManualClock, RetryPolicy
from tpuctl.errors import (
    InvalidInputError,
    NotFoundError,
    NotLoggedInError,
    PermissionDeniedError,
    RateLimitedError,
    TpuctlError,
    UnavailableError,
)
from tpuctl.storage import open_storage
from tpuctl.storage.errors import TRANSIENT, RequestContext, translate
from tpuctl.storage.port import Storage

pytestmark = pytest.mark.slow

TIRED = RetryPolicy(first_s=0.01, longest_s=0.02, total_s=0.1)
DATA = bytes(range(256)) * (80 * 1024)


class Bad:
    """A bucket on which faults are planned, opened with hardly any patience."""

    def __init__(self, practice: Any, monkeypatch: pytest.MonkeyPatch, *faults: Any) -> None:
        self.world = practice({"buckets": {"shelf": {}}, "faults": list(faults)})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", self.world.emulator.http)
        self.clock = ManualClock(self.world.clock.now())
        self.storage: Storage = open_storage("gs://shelf", clock=self.clock, retry=QUICK)

    def soon_tired(self) -> Storage:
        return open_storage("gs://shelf", clock=self.clock, retry=TIRED)

    def asked(self, method: str) -> int:
        return sum(name == method for name, *_ in self.world.emulator.requests)


@pytest.mark.parametrize("error", ["unavailable", "rate_limit", "internal", "deadline", "cut"])
@pytest.mark.parametrize("after_accept", [False, True])
def test_what_may_work_in_a_moment_is_tried_again(
    practice: Any, monkeypatch: Any, tmp_path: Path, error: str, after_accept: bool
) -> None:
    methods = ("insert", "upload_chunk", "get", "stat", "list", "delete")
    bad = Bad(
        practice,
        monkeypatch,
        *({"on": f"storage_{on}", "error": error, "after_accept": after_accept} for on in methods),
    )
    (tmp_path / "big").write_bytes(DATA)
    first = bad.storage.write("small", b"abc")
    assert bad.storage.write("small", b"abc") == first
    bad.storage.write("big", tmp_path / "big", crc32c=crc32c(DATA))
    assert bad.storage.read("small") == b"abc"
    assert bad.storage.read("big") == DATA
    assert bad.storage.stat("small") == first
    assert [entry.name for entry in bad.storage.list()] == ["big", "small"]
    bad.storage.delete(first)
    assert [entry.name for entry in bad.storage.list()] == ["big"]


def test_a_download_goes_on_where_it_was_cut(
    practice: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    fault = {"on": "storage_get", "error": "cut", "after_bytes": 5 * MIB, "every": True}
    bad = Bad(practice, monkeypatch, fault)
    bad.storage.write("big", DATA)
    assert bad.storage.fetch("big", tmp_path / "down").size_bytes == len(DATA)
    assert (tmp_path / "down").read_bytes() == DATA
    assert bad.asked("storage_get") == 4


def test_corrupted_bytes_are_fetched_again(practice: Any, monkeypatch: Any, tmp_path: Path) -> None:
    faults = [
        {"on": "storage_get", "nth": nth, "error": "corrupt", "after_bytes": 7} for nth in (1, 3)
    ]
    bad = Bad(practice, monkeypatch, *faults)
    bad.storage.write("a", b"0123456789")
    assert bad.storage.read("a") == b"0123456789"
    bad.storage.fetch("a", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b"0123456789"
    assert bad.asked("storage_get") == 4


def test_bytes_that_are_always_corrupted_are_never_given_out(
    practice: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    bad = Bad(practice, monkeypatch, {"on": "storage_get", "error": "corrupt", "every": True})
    bad.storage.write("a", b"0123456789")
    tired = bad.soon_tired()
    for act in (lambda: tired.read("a"), lambda: tired.fetch("a", tmp_path / "x")):
        with pytest.raises(UnavailableError, match="do not match the stored crc32c"):
            act()


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        ("unavailable", UnavailableError, "again"),
        ("rate_limit", RateLimitedError, "again"),
        ("permission", PermissionDeniedError, "add-iam-policy-binding gs://shelf"),
        ("not_found", NotFoundError, "gcloud storage ls gs://shelf"),
        ("unauthenticated", NotLoggedInError, "gcloud auth application-default login"),
    ],
)
@pytest.mark.parametrize("method", ["insert", "get", "stat", "list"])
def test_giving_up_names_the_object_and_the_next_command(
    practice: Any, monkeypatch: Any, method: str, error: str, kind: Any, hint: str
) -> None:
    fault = {"on": f"storage_{method}", "error": error, "every": True}
    bad = Bad(practice, monkeypatch, fault)
    tired = bad.soon_tired()
    acts = {
        "insert": lambda: tired.write("a", b"1"),
        "get": lambda: tired.read("a"),
        "stat": lambda: tired.stat("a"),
        "list": lambda: list(tired.list()),
    }
    with pytest.raises(kind, match="gs://shelf/") as given:
        acts[method]()
    assert hint in (given.value.hint or "")


def test_waits_grow_on_the_clock_that_was_given(practice: Any, monkeypatch: Any) -> None:
    bad = Bad(practice, monkeypatch, {"on": "storage_get", "error": "internal", "every": True})
    bad.storage.write("a", b"1")
    began = bad.clock.now()
    with pytest.raises(UnavailableError):
        bad.soon_tired().read("a")
    waited_s = (bad.clock.now() - began).total_seconds()
    assert TIRED.total_s - TIRED.longest_s <= waited_s <= TIRED.total_s


def test_a_bucket_that_is_not_there_is_told_from_an_object(practice: Any, monkeypatch: Any) -> None:
    Bad(practice, monkeypatch)
    missing = open_storage("gs://elsewhere", retry=QUICK)
    for act in (
        lambda: missing.write("a", b"1"),
        lambda: missing.read("a"),
        lambda: list(missing.list()),
    ):
        with pytest.raises(NotFoundError, match="the bucket elsewhere does not exist") as given:
            act()
        assert "buckets create" not in (given.value.hint or "")
    create = shlex.split(given.value.hint or "")
    assert subprocess.run([sys.executable, *create[1:]], check=False).returncode == 0
    assert list(missing.list()) == []


def test_a_bucket_of_googles_is_created_with_googles_command(monkeypatch: Any) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    asked = RequestContext("Could not read gs://elsewhere/a", "elsewhere")
    error = translate(404, "The specified bucket does not exist.", asked)
    assert (error.hint or "").startswith("gcloud storage buckets create gs://elsewhere ")


def test_an_emulator_that_is_gone_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(UnavailableError, match="no emulator is running at http://127") as given:
        open_storage("gs://shelf", clock=clock).read("a")
    assert "tpuctl emulator start" in (given.value.hint or "")


def test_without_a_login_the_command_to_log_in_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "broken.json"))
    with pytest.raises(NotLoggedInError, match="are not usable"):
        open_storage("gs://shelf")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
    with pytest.raises(NotLoggedInError, match="no Google Cloud credentials"):
        open_storage("gs://shelf")


@pytest.mark.parametrize("status", range(400, 600))
def test_every_status_becomes_one_of_our_errors(status: int) -> None:
    error = translate(status, "words", RequestContext("Could not read gs://b/n", "b"))
    assert isinstance(error, TpuctlError)
    assert (error.exit_code == 3) == (status in TRANSIENT)
    assert str(error).startswith("Could not read gs://b/n: ")
    assert error.hint or isinstance(error, InvalidInputError)
