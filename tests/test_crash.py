"""Commands struck while they run, and run again: a sample of what `make soak` tries in full."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("array_record")
pytest.importorskip("asyncssh")
pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from tests.endurance import endure, undisturbed_weights
from tests.interrupt_cases import CASES
from tests.interrupting import Opened, Place, interrupted, shim, undisturbed
from tests.soak import sample

pytestmark = pytest.mark.slow

# Struck twice: by a kill, and by an error.
TWICE = ("presize", "create")
# Much of what they do is done by the others, too.
VARIANTS = {
    "presize --overwrite",
    "presize --format wds",
    "presize --format arrayrecord",
    "cache gs://",
    "create --queued",
    "watch --delete",
    "cp down",
    "launch --on",
}

# Writes as nobody should: in place, in two halves, with a file of notes that a kill leaves behind.
CARELESS = """
import json, os
out = "../out"
if not os.path.exists(out):
    open("../notes", "w").close()
    with open(out, "w", buffering=1) as file:
        file.write("one\\n")
        file.write("two\\n")
    os.unlink("../notes")
print(json.dumps({"errors": []}))
"""


@pytest.fixture(autouse=True)
def compiler() -> None:
    if shim() is None:
        pytest.skip("there is no C compiler: commands cannot be interrupted at chosen points")


@pytest.fixture(scope="module")
def aside() -> Iterator[ProcessPoolExecutor]:
    """Another process, whose environment the cases may change."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def careless(place: Place, stack: ExitStack) -> Opened:
    (place.root / "given" / "careless.py").write_text(CARELESS)
    out = place.root / "out"
    return Opened([], lambda: {"out": out.read_text()}, program=("careless.py",))


def test_a_careless_program_is_found_out(tmp_path: Path) -> None:
    wanted = undisturbed(careless, tmp_path / "undisturbed")
    kinds = [point.kind for point in wanted.points]
    assert kinds == ["create", "create", "write", "write", "unlink"]
    found = []
    for strike in ("kill 1", "kill 2", "kill 4", "kill 5", "error 3 28", "torn 3"):
        try:
            interrupted(careless, strike, tmp_path / strike, wanted)
        except AssertionError as error:
            found.append((strike, str(error).partition("\n")[0]))
    names = [strike for strike, _ in found]
    assert names == ["kill 4", "kill 5", "error 3 28", "torn 3"]
    assert found[0][1].startswith("['out: one")
    assert found[1][1] == "['notes']"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in VARIANTS)) for name in CASES],
)
def test_a_command_that_is_struck_and_run_again_gives_the_same(
    aside: ProcessPoolExecutor, name: str, tmp_path: Path
) -> None:
    assert aside.submit(sample, name, 1 + (name in TWICE), tmp_path / "struck").result() == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("cache gs://", "/copies/[^/]+/\\.manifest"),
        # On a busy machine it may have ended before the strike.
        pytest.param("cp down", "/out", marks=pytest.mark.soak),
    ],
)
def test_a_command_that_is_killed_as_it_ends_can_be_run_again(
    tmp_path: Path, name: str, path: str
) -> None:
    wanted = undisturbed(CASES[name], tmp_path / "undisturbed")
    last = [point.number for point in wanted.points if re.search(path, point.path)][-1]
    for number in (last - 1, last):
        interrupted(CASES[name], f"kill {number}", tmp_path / str(number), wanted)


def test_a_script_of_launch_may_be_killed_as_it_writes(tmp_path: Path) -> None:
    wanted = undisturbed(CASES["launch"], tmp_path / "undisturbed")
    written = [point.number for point in wanted.points if point.path.endswith("/ran")][-1]
    for kind in ("die", "torn"):
        interrupted(CASES["launch"], f"{kind} {written}", tmp_path / kind, wanted)


@pytest.mark.soak
def test_soak_runs_outside_of_pytest_too(tmp_path: Path) -> None:
    """There nothing has set the secret of its emulators."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("TPUCTL_")}
    words = [sys.executable, "-m", "tests.soak", "gc", "only=short"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert "1 strikes" in done.stdout, done.stderr
    assert (done.returncode, ", 0 failed" in done.stdout) == (0, True)


def test_the_workers_of_the_benchmarks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.remote_fanout import _place, _workers

    monkeypatch.setenv("TPUCTL_STATE_DIR", "")
    with _place(tmp_path) as root, _workers(root, 2) as hosts:
        assert [host.startswith("me@127.9.0.") for host in hosts] == [True, True]


@pytest.mark.parametrize(("slowest_s", "failed"), [(4.0, "none"), (16.0, "scale")])
def test_the_benchmarks_end_with_a_summary_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slowest_s: float,
    failed: str,
) -> None:
    """Nothing has set the secret of their emulators, and a figure may be more than promised."""
    from benchmarks import __main__, scale

    for name in ("TPU_TOKEN_FILE", "TPU_ENDPOINT", "STATE_DIR"):
        monkeypatch.setenv(f"TPUCTL_{name}", "")
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")

    def nodes() -> None:
        with scale._dead_nodes(2):
            scale._growth("list", "nodes", {1: (1.0, 9.0), 2: (2.0, 9.0), 4: (slowest_s, 9.0)}, 0)

    for part in ("images", "shards", "workers", "log"):
        monkeypatch.setattr(scale, f"_{part}", lambda: None)
    monkeypatch.setattr(scale, "_nodes", nodes)
    monkeypatch.setattr(scale, "_TOO_MUCH", [])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "scale"])
    assert __main__.main() == int(failed != "none")
    assert capsys.readouterr().out.splitlines()[-1] == f"1 benchmarks; failed: {failed}"


def test_a_watch_of_an_hour_ends_with_the_right_weights_and_cost(tmp_path: Path) -> None:
    hours = 1.0
    endured = endure(tmp_path, hours=hours)
    assert endured.result.error is None
    assert len(endured.result.attempts) >= 2
    assert set(endured.weights) == {undisturbed_weights(tmp_path / "alone", hours=hours)}
    assert endured.result.usd_so_far == pytest.approx(endured.billed_usd, abs=0.01)
