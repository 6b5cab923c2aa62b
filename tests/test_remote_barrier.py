"""Is every worker fit for a job, and are they alike?"""

import platform
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import Distribution, version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from tests.workers import Slice, running_slice
from tpuctl.remote.agent.chips import DEVICES
from tpuctl.remote.barrier import PACKAGES, Probe, check_workers, find_problems
from tpuctl.remote.hosts import Host, parse_hosts
from tpuctl.remote.jobs import start_job
from tpuctl.remote.results import summarize
from tpuctl.remote.run import plan_command

GOOD = Probe(0, "h", 0.0, 50 << 30, "3.11.2", {"jax": "0.10.2", "numpy": "2.4.6"}, 4, ())


def slice_of(*changes: dict[str, Any]) -> list[tuple[Host, Probe]]:
    """Four good workers, some of them changed."""
    hosts = parse_hosts("h0,h1,h2,h3")
    padded = [*changes, *[{}] * (4 - len(changes))]
    return [
        (host, replace(GOOD, index=host.index, **change))
        for host, change in zip(hosts, padded, strict=True)
    ]


def test_good_workers_have_no_problem() -> None:
    assert find_problems(slice_of(), 4) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"disk_free_bytes": 5 << 20}, "its disk has only 5 MiB free"),
        ({"clock_s": 90.0}, "its clock is 1m 30s ahead of the others'"),
        ({"clock_s": -90.0}, "its clock is 1m 30s behind the others'"),
        ({"python": "3.8.10"}, "it has python 3.8.10, the others 3.11.2"),
        ({"python": None}, "it has python (none), the others 3.11.2"),
        ({"packages": {"jax": "0.6.2", "numpy": "2.4.6"}}, "it has jax 0.6.2, the others 0.10.2"),
        ({"packages": {"numpy": "2.4.6"}}, "it has jax (none), the others 0.10.2"),
        (
            {"packages": {**GOOD.packages, "torch": "2.9.0"}},
            "it has torch 2.9.0, the others none",
        ),
        ({"chips": 3}, "it has 3 of 4 chips"),
        ({"holders": ("77 (python x.py)",)}, "its chips are held by process 77 (python x.py)"),
    ],
)
def test_the_worker_that_is_wrong_is_named_and_how(change: dict[str, Any], said: str) -> None:
    ((index, problem),) = find_problems(slice_of({}, change), None)
    assert index == 1
    assert str(problem) == f"worker 1 (h1) is not fit for a job: {said}."
    verb, where = ("free" if "holders" in change else "run"), "--host h0,h1,h2,h3 --worker 1"
    assert f"{problem.hint} ".startswith(f"tpuctl {verb} {where} ")


def test_each_way_of_being_unfit_is_told_once() -> None:
    problems = find_problems(slice_of({}, {"chips": 3}, {"disk_free_bytes": 9}, {"chips": 3}), 4)
    chips, disk = (str(failure) for failure in summarize(problems))
    assert "worker 1 (h1)" in chips
    assert "it has 3 of 4 chips. The same on worker 3." in chips
    assert "worker 2 (h2) is not fit for a job: its disk has only 9 B free" in disk


def test_a_wrong_clock_of_our_own_is_no_problem_of_theirs() -> None:
    assert find_problems(slice_of(*[{"clock_s": 3600.0}] * 4), None) == []


def test_chips_that_all_lack_are_missed_when_their_number_is_known() -> None:
    seen = slice_of(*[{"chips": 0}] * 4)
    assert find_problems(seen, None) == []
    assert len(find_problems(seen, 4)) == 4


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    (folder / "vfio").mkdir(parents=True)
    for name in ("vfio/0", "vfio/1", "vfio/vfio", "null", "accel"):
        (folder / name).touch()
    return folder


@pytest.fixture
def own(tmp_path: Path, devices: Path) -> Iterator[Slice]:
    with running_slice(tmp_path, 2) as workers:
        workers.refuse(1)
        workers.come_back(1, env={DEVICES: str(devices)})
        yield workers


def test_real_workers_are_looked_at(own: Slice) -> None:
    for each in range(2):
        (own.folder(each) / "torch_xla-9.9.9+local.dist-info").mkdir()
    found = check_workers(own.hosts, own.access)
    (index, problem), *others = found.problems
    assert index == 0
    assert "it has 0 of 2 chips" in str(problem)
    assert others == []
    first = found.workers[0]
    assert first.python == platform.python_version()
    here = {name for name in PACKAGES if any(Distribution.discover(name=name))}
    assert first.packages == {**{name: version(name) for name in here}, "torch_xla": "9.9.9+local"}
    assert abs(first.clock_s) < 10


def test_a_process_that_holds_a_chip_is_found(own: Slice, devices: Path) -> None:
    with (devices / "vfio" / "0").open("rb") as chip:
        holder = subprocess.Popen(["sleep", "600"], stdin=chip)
    try:
        found = check_workers(own.hosts[1:], own.access)
        assert f"held by process {holder.pid} (sleep …)" in str(found.failures[0])
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.slow
def test_a_job_is_not_started_when_a_worker_is_unfit_unless_that_is_wanted(own: Slice) -> None:
    command = plan_command(["touch", "started"])
    refused = start_job(own.hosts, command, own.access, job="a")
    assert [failure.code for failure in refused.failures] == ["worker_unfit", "not_started"]
    assert not (own.folder(1) / ".tpuctl").exists()
    assert start_job(own.hosts, command, own.access, job="b", check=False).exit_code == 0


def test_a_worker_that_cannot_be_reached_is_a_problem_too(own: Slice) -> None:
    own.refuse(0)
    assert check_workers(own.hosts, own.access).unfit[0].code == "worker_unreachable"
