"""Whatever others wrote: an answer or one of our errors, in bounded time and memory."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzzing import JSON_TARGETS, TARGETS, Target, damage_json, damaged_input, inputs
from tpuctl.errors import InvalidInputError
from tpuctl.remote.agent.tree import read_entries
from tpuctl.remote.agent.wire import Refusal
from tpuctl.start_python import ROOT

pytestmark = [
    pytest.mark.slow,
    # A thread of an earlier test may draw a random number in between.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

ALL = {**TARGETS, **JSON_TARGETS}
INPUTS = 40


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """A parser that believes a length in a file fails here."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("name", ALL)
def test_any_input_is_answered_or_refused(name: str, tmp_path: Path) -> None:
    @settings(max_examples=INPUTS // ALL[name].cost, suppress_health_check=list(HealthCheck))
    @given(inputs(name))
    def check(data: bytes) -> None:
        ALL[name].check(data, tmp_path)

    check()


@pytest.mark.parametrize("name", ALL)
def test_the_seeds_are_understood(name: str, tmp_path: Path) -> None:
    """Else nothing behind the first check would ever be reached."""
    assert any(ALL[name].check(seed, tmp_path) for seed in ALL[name].seeds())


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b"nan", b""])
@pytest.mark.parametrize("name", JSON_TARGETS)
def test_json_without_end_is_answered_or_refused(name: str, text: bytes, tmp_path: Path) -> None:
    ALL[name].check(text, tmp_path)


def stumble(data: bytes, folder: Path) -> object:
    return json.loads(data)["plan_id"]


def swallow(data: bytes, folder: Path) -> object:
    raise InvalidInputError("This is a bug in tpuctl.")


def fill_memory(data: bytes, folder: Path) -> object:
    return bytearray(1 << 40)


@pytest.mark.parametrize("run", [stumble, swallow, fill_memory])
def test_the_fuzzer_notices_what_is_no_answer(run, tmp_path: Path) -> None:
    target = Target(run, JSON_TARGETS["manifest"].seeds)

    def fuzz() -> None:
        for number in range(50):
            target.check(damaged_input("manifest", number), tmp_path)

    with pytest.raises((KeyError, TypeError, ValueError, AssertionError, MemoryError)):
        fuzz()


def test_the_damage_is_the_same_every_time_and_of_many_kinds() -> None:
    first = [damaged_input("manifest", number) for number in range(60)]
    assert first == [damaged_input("manifest", number) for number in range(60)]
    assert len(set(first)) > 50
    assert damage_json is not None


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_a_worker_cannot_send_a_name_that_no_file_can_have(name: str) -> None:
    for row in ([name, "f", 420, 3, 1, ""], ["link", "l", 511, 0, 1, name]):
        with pytest.raises(Refusal, match="not a valid name"):
            read_entries([row])
    # The bytes of a name that is not UTF-8 are half characters too, and are a name.
    assert read_entries([["\udc80", "f", 420, 3, 1, ""]])


@pytest.mark.parametrize(
    ("name", "code", "failed"), [("time", 0, "none"), ("nonsense", 1, "nonsense")]
)
def test_the_fuzzer_ends_with_a_summary_and_a_code(name: str, code: int, failed: str) -> None:
    words = [sys.executable, "-m", "tests.fuzzing", "--seconds", "1", name]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f" inputs; failed: {failed}")
