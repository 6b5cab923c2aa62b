"""Linux counters from made-up /proc and /sys trees: version 1, version 2, and nothing at all."""

import os
import threading
from pathlib import Path

import pytest

from tpuctl.profiling.measure import signals
from tpuctl.profiling.windows import Signals
from tpuctl.storage import cgroups


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/cgroup": "0::/user/job\n",
    "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user/job/cpu.stat": "usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n",
    "sys/fs/cgroup/user/memory.max": "1073741824\n",
}
V1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/docker/ab\n2:memory:/docker/ab\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.stat": "nr_throttled 1\nthrottled_time 700000000\n",
    "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "9223372036854771712\n",
}


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    root = write(tmp_path, V2)
    assert cgroups.quota_vcpus(root) == 1.5
    assert cgroups.throttled_s(root) == 2.5
    assert cgroups.memory_limit_bytes(root) == 1 << 30


def test_version_1_is_read_too(tmp_path: Path) -> None:
    root = write(tmp_path, V1)
    assert cgroups.quota_vcpus(root) == 0.5
    assert cgroups.throttled_s(root) == 0.7
    assert cgroups.memory_limit_bytes(root) is None


def test_a_container_that_sees_its_limit_at_the_top_of_the_tree(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../outside\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    root = write(tmp_path, files)
    assert cgroups.quota_vcpus(root) == 2.0


@pytest.mark.parametrize("text", ["", "max 100000", "nonsense", "100 0", "1 2 3"])
def test_a_limit_that_is_none_or_cannot_be_read_is_no_limit(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    found = signals.attempt(lambda: cgroups.quota_vcpus(root))
    assert found is None


def test_a_machine_without_any_of_it_names_what_is_missing(tmp_path: Path) -> None:
    before, after = signals.read(tmp_path), signals.read(tmp_path)
    found = signals.between(
        before, after, tool_cpu_s=0.0, consumer_cpu_s=0.0, gil_overshoots_s=[], root=tmp_path
    )
    assert found.run_delay_s is found.other_cpu_s is None
    assert {"run_delay_s", "other_cpu_s", "gil_overshoot_p90_ms"} <= set(found.missing)
    assert "cpu_s" not in found.missing


def test_cpu_of_others_is_what_the_machine_used_beyond_us(tmp_path: Path) -> None:
    cpus = signals.usable_cpus()

    def stat(ticks: int) -> str:
        lines = (f"cpu{cpu} {ticks} 0 0 999 0 0 0 7 0 0" for cpu in cpus)
        return "cpu 1 1 1 1 1 1 1 1 1 1\n" + "\n".join(lines) + "\ncpu99999 9 9 9 9 9 9 9 9\n"

    write(tmp_path, {"proc/stat": stat(0)})
    before = signals.read(tmp_path)
    write(tmp_path, {"proc/stat": stat(100_000)})
    after = signals.read(tmp_path)
    found = signals.between(
        before, after, tool_cpu_s=0.0, consumer_cpu_s=0.0, gil_overshoots_s=[0.1] * 20
    )
    assert found.other_cpu_s == pytest.approx(1000.0 * len(cpus), abs=5.0)
    assert found.steal_s == 0.0
    assert found.gil_overshoot_p90_ms == pytest.approx(100.0)


def test_all_threads_run_on_some_of_the_vcpus_for_a_while() -> None:
    before, stop = signals.usable_cpus(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with signals.running_on(before[:1]):
        moved = [os.sched_getaffinity(each) for each in (0, thread.native_id or 0)]
    after = os.sched_getaffinity(thread.native_id or 0)
    stop.set()
    thread.join()
    assert moved == [{before[0]}] * 2
    assert tuple(sorted(after)) == signals.usable_cpus() == before


def test_this_machine_can_be_read() -> None:
    found = signals.read()
    assert found.cpu_s > 0
    assert found.threads


def test_a_thread_that_ended_takes_nothing_away_from_what_the_others_did(tmp_path: Path) -> None:
    def threads(**nanoseconds: str) -> dict[str, str]:
        return {f"proc/self/task/{name[1:]}/schedstat": t for name, t in nanoseconds.items()}

    write(tmp_path, threads(t1="1000000000 5000000000 1", t2="0 0 1", t3="0 0 1"))
    before = signals.read(tmp_path, tool_threads=[3])
    (tmp_path / "proc/self/task/1/schedstat").unlink()
    write(tmp_path, threads(t2="1000000000 2000000000 9", t3="0 8000000000 9"))
    after = signals.read(tmp_path, tool_threads=[3])
    found = signals.between(before, after, tool_cpu_s=0.0, consumer_cpu_s=0.0, gil_overshoots_s=[])
    assert found.run_delay_s == pytest.approx(2.0)


def test_workers_that_ended_are_counted_until_they_were_last_seen(tmp_path: Path) -> None:
    def thread(name: int, running_s: int, delayed_s: int) -> None:
        times = f"{running_s}000000000 {delayed_s}000000000 1"
        write(tmp_path, {f"proc/self/task/{name}/schedstat": times})

    threads = signals.Threads()
    thread(1, 1, 1)
    before = signals.read(tmp_path, threads=threads)
    thread(1, 3, 4)
    thread(2, 5, 6)
    threads.read(tmp_path)
    (tmp_path / "proc/self/task/1/schedstat").unlink()
    thread(2, 1, 2)  # The ID of the thread that ended, used again.
    after = signals.read(tmp_path, threads=threads)
    found = signals.between(before, after, tool_cpu_s=0.0, consumer_cpu_s=0.0, gil_overshoots_s=[])
    assert found.run_delay_s == pytest.approx(3 + 6 + 2)


def test_a_lock_that_is_held_makes_most_sleeps_late_and_a_busy_machine_a_few(
    tmp_path: Path,
) -> None:
    reading = signals.read(tmp_path)

    def late(overshoots_s: list[float]) -> Signals:
        return signals.between(
            reading, signals.read(tmp_path), tool_cpu_s=0.0, consumer_cpu_s=0.0,
            gil_overshoots_s=overshoots_s,
        )  # fmt: skip

    rarely, usually = late([0.0002] * 17 + [0.02] * 3), late([0.0002] * 3 + [0.02] * 17)
    assert rarely.gil_overshoot_p90_ms == usually.gil_overshoot_p90_ms == pytest.approx(20.0)
    assert rarely.gil_overshoot_p50_ms == pytest.approx(0.2)
    assert usually.gil_overshoot_p50_ms == pytest.approx(20.0)
