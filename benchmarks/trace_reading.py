"""Read a trace of 100 MB: how long, and how much memory, for 8 chips and 24 busy host threads.

Then the real trace of a TPU v6e, where it is there: how busy, and how much idle time is explained.
"""

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.test_trace_real import SHARED, TPU_V6E
from tests.xspaces import Names, message, number, stats, varint

SIZE_BYTES = 100_000_000
CHIPS, THREADS = 8, 24
CHUNK = 20_000
LIMIT_S, LIMIT_BYTES = 10.0, 1_500_000_000
READ = "import sys; from tpuctl.cli.app import main; sys.argv = ['tpuctl', *sys.argv[1:]]; main()"


def events(rng: random.Random, kinds: int, start_ps: int, busy: float, extra: bytes) -> bytes:
    """Consecutive events of random kinds and lengths, as a chip or a thread records them."""
    parts, clock = [], start_ps
    for _ in range(CHUNK):
        duration = rng.randrange(10**6, 10**8)
        body = number(1, rng.randrange(1, kinds)) + number(2, clock) + number(3, duration) + extra
        parts.append(b"\x22" + varint(len(body)) + body)
        clock += round(duration / busy)
    return b"".join(parts)


def plane(name: str, lines: list[tuple[str, bytes]], kinds: list[str], names: Names) -> bytes:
    """A plane around lines whose events are there already."""
    encoded = (
        message(3, number(1, i), message(2, n.encode()), e) for i, (n, e) in enumerate(lines)
    )
    titles = (
        message(4, number(1, i), message(2, number(1, i), message(2, kind.encode())))
        for i, kind in enumerate(kinds, 1)
    )
    stat_names = (
        message(5, number(1, key), message(2, number(1, key), message(2, stat.encode())))
        for stat, key in names.numbers.items()
    )
    return message(1, message(2, name.encode()), *encoded, *titles, *stat_names)


def write_trace(place: Path, size_bytes: int = SIZE_BYTES) -> None:
    """Write a trace of about that size: 70 % of it operations of chips, the rest host threads."""
    rng, names = random.Random(0), Names()
    on_chip = stats(4, names, {"device_offset_ps": 5438997127500, "device_duration_ps": 44376625})
    on_host = stats(4, names, {"id": 12345678901234})
    rounds = 0
    chips: list[list[bytes]] = [[] for _ in range(CHIPS)]
    threads: list[list[bytes]] = [[] for _ in range(THREADS)]
    total = 0
    while total < size_bytes:
        start_ps = rounds * CHUNK * 60 * 10**6
        for each in chips:
            each.append(events(rng, 900, start_ps, 0.85, on_chip))
        for each in rng.sample(threads, 8):
            each.append(events(rng, 300, start_ps, 0.4, on_host))
        total = sum(len(part) for each in (*chips, *threads) for part in each)
        rounds += 1
    operations = [f"%fusion.{index} = f32[1024,1024]" for index in range(900)]
    calls = ["PjitFunction(step)", "TransferToDevice", "Iterator::Root"]
    calls += [f"Work::Kind{index}" for index in range(300)]
    lines = [(f"thread/{index}", b"".join(parts)) for index, parts in enumerate(threads)]
    with place.open("wb") as stream:
        for index, parts in enumerate(chips):
            ops = [("XLA Ops", b"".join(parts))]
            stream.write(plane(f"/device:TPU:{index}", ops, operations, names))
        stream.write(plane("/host:CPU", lines, calls, names))


def idle_loop_s() -> float:
    """CPU time of ten million turns of a loop: how fast this machine is just now."""
    start = time.process_time()
    for _ in range(10_000_000):
        pass
    return time.process_time() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "big.xplane.pb"
        write_trace(place)
        size = place.stat().st_size
        start = time.perf_counter()
        command = [sys.executable, "-c", READ, "profile", "trace", str(place)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall_s = time.perf_counter() - start
        loop_s = idle_loop_s()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"trace reading: {size / 1e6:.0f} MB in {wall_s:.1f} s, {used.ru_utime:.1f} s of CPU "
        f"(under {LIMIT_S:.0f}), {used.ru_maxrss / 1e3:,.0f} MB of memory "
        f"(under {LIMIT_BYTES / 1e6:,.0f}); {used.ru_utime / loop_s:.0f} times ten million turns "
        f"of an empty loop, which took {loop_s:.2f} s"
    )
    show_real(SHARED / "xplane" / TPU_V6E)


def show_real(place: Path) -> None:
    """Print what is to be found in the trace of a v6e-4 (XProf: busy 86.5 % by another window)."""
    from tpuctl.profiling.trace.profile import profile_trace

    if not place.exists():
        print(f"v6e trace: {place.name} is not here; TPUCTL_SHARED says where it is")
        return
    found = profile_trace(place)
    assert found.trace
    print(
        f"v6e trace: busy {1 - (found.device_idle_fraction or 0):.1%} of the common window "
        f"(85.2 % is right), {found.trace.assigned_idle_fraction:.1%} of the idle time assigned"
    )


if __name__ == "__main__":
    main()
