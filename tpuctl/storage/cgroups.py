"""The limits of this process's cgroup: vCPUs and memory.

A container sees its own limits at the root of its cgroup hierarchy; a process in a slice has them
at any level above it, and the tightest counts (cgroups(7), version 1 and 2, and
Documentation/admin-guide/cgroup-v2.rst).
"""

from collections.abc import Iterator
from pathlib import Path


def quota_vcpus(root: Path = Path("/")) -> float | None:
    """The CPU quota in vCPUs; None without a limit."""
    limits = [limit for folder in _folders(root) if (limit := _limit(folder))]
    return min(limits, default=None)


def throttled_s(root: Path = Path("/")) -> float | None:
    """Seconds that the quota has throttled us so far; None if they are not counted."""
    totals = [total for folder in _folders(root) if (total := _throttled(folder)) is not None]
    return max(totals, default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The tightest memory limit; None without one."""
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            # Version 1 writes "no limit" as a number near 2**63.
            if text and text.isdigit() and int(text) < 2**60:
                limits.append(int(text))
    return min(limits, default=None)


def _folders(root: Path, controller: str = "cpu") -> Iterator[Path]:
    """Yield the folder of our cgroup and all above it, in each mounted hierarchy."""
    mount = root / "sys/fs/cgroup"
    membership = _text(root / "proc/self/cgroup") or "0::/"
    for line in membership.splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controllers if controllers else mount
        if controllers and not base.is_dir():
            base = mount / controller
        inner = base / place.lstrip("/")
        yield from (each for each in (inner, *inner.parents) if each.is_relative_to(base))


def _limit(folder: Path) -> float | None:
    if text := _text(folder / "cpu.max"):
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us, period_us = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota_us and period_us and int(quota_us) > 0:
        return int(quota_us) / int(period_us)
    return None


def _throttled(folder: Path) -> float | None:
    statistics = dict(line.split() for line in (_text(folder / "cpu.stat") or "").splitlines())
    if "throttled_usec" in statistics:
        return int(statistics["throttled_usec"]) / 1e6
    if "throttled_time" in statistics:
        return int(statistics["throttled_time"]) / 1e9
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
