"""Check before a job that every worker of a slice is fit for it, and that they are alike."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tpuctl.errors import TpuctlError, WorkerUnfitError
from tpuctl.hardware.types import known_chips
from tpuctl.outcome import Outcome
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Connection, call_agent
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.units import GIB, format_bytes, format_duration

PACKAGES = (
    "jax", "jaxlib", "libtpu", "tensorflow", "tensorflow-tpu", "tensorflow-cpu", "torch",
    "torch_xla", "torch_tpu", "keras", "numpy",
)  # fmt: skip
"""Packages whose versions must agree: others compile different programs, which then hang."""

_MIN_DISK_BYTES = GIB
_MAX_SKEW_S = 10.0


@dataclass(frozen=True)
class Probe:
    """The state of a worker; `clock_s` is how far its clock is ahead of ours.

    `libtpu` is the path of its TPU library, if it has one.
    """

    index: int
    address: str
    clock_s: float
    disk_free_bytes: int | None
    python: str | None
    packages: dict[str, str]
    chips: int
    holders: tuple[str, ...]
    libtpu: str | None = None


@dataclass(frozen=True)
class WorkerCheck(Outcome):
    """The state of the workers, and the problems that make some of them unfit for a job."""

    workers: tuple[Probe, ...]
    problems: tuple[tuple[int, TpuctlError], ...] = field(default=(), metadata={"internal": True})

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The problems, with their workers in the message."""
        return tuple(problem for _, problem in self.problems)

    @property
    def unfit(self) -> dict[int, TpuctlError]:
        """The first problem of each unfit worker, by its number."""
        return dict(reversed(self.problems))


def check_workers(
    hosts: tuple[Host, ...], access: Access, *, chips_per_worker: int | None = None
) -> WorkerCheck:
    """Check every worker; without `chips_per_worker` their numbers of chips only have to agree."""

    async def check() -> WorkerCheck:
        async with open_fleet(hosts, access) as fleet:
            return await probe_fleet(fleet, chips_per_worker)

    return run_async(check())


async def probe_fleet(fleet: Fleet, chips_per_worker: int | None) -> WorkerCheck:
    """Check the workers of a fleet, all at once."""
    answers = await fleet.each(_probe)
    pairs = list(zip(fleet.hosts, answers, strict=True))
    seen = [(host, answer) for host, answer in pairs if isinstance(answer, Probe)]
    unseen = [(host.index, a) for host, a in pairs if isinstance(a, TpuctlError)]
    problems = (*unseen, *find_problems(seen, chips_per_worker))
    return WorkerCheck(tuple(probe for _, probe in seen), problems)


@dataclass(frozen=True)
class _Clock:
    now_s: float


async def _probe(connection: Connection) -> Probe:
    request = {"packages": PACKAGES, "known": known_chips()}
    async with call_agent(connection, "chips.probe", **request) as call:
        # The time is the first reply, alone: what follows takes seconds to collect.
        clock_s = call.read(_Clock, await call.reply()).now_s - time.time()
        return call.read(Probe, {**await call.reply(), "clock_s": clock_s})


def find_problems(
    seen: Sequence[tuple[Host, Probe]], chips_per_worker: int | None
) -> list[tuple[int, TpuctlError]]:
    """List the problems of each worker by its number, and how it differs from the others."""
    if not seen:
        return []
    # The median of the workers, not our own clock: what counts is that they agree.
    usual_clock_s = median(probe.clock_s for _, probe in seen)
    usual = {
        name: Counter(_version(probe, name) for _, probe in seen).most_common(1)[0][0]
        for name in ("python", *PACKAGES)
    }
    usual_chips = chips_per_worker
    if usual_chips is None:
        usual_chips = max(probe.chips for _, probe in seen)
    found = []
    for host, probe in seen:
        problems = _own_problems(host, probe, usual_chips)
        skew_s = probe.clock_s - usual_clock_s
        if abs(skew_s) > _MAX_SKEW_S:
            side = "ahead of" if skew_s > 0 else "behind"
            what = f"its clock is {format_duration(abs(skew_s))} {side} the others'"
            problems.append(_unfit(host, what, "sudo systemctl restart systemd-timesyncd"))
        for name, wanted in usual.items():
            version = _version(probe, name)
            if version != wanted:
                what = f"it has {name} {version or '(none)'}, the others {wanted or 'none'}"
                problems.append(_unfit(host, what, _install(name, wanted)))
        found += [(host.index, problem) for problem in problems]
    return found


def _version(probe: Probe, name: str) -> str | None:
    return probe.python if name == "python" else probe.packages.get(name)


def _own_problems(host: Host, probe: Probe, chips: int) -> list[TpuctlError]:
    problems: list[TpuctlError] = []
    free = probe.disk_free_bytes
    if free is not None and free < _MIN_DISK_BYTES:
        problems.append(_unfit(host, f"its disk has only {format_bytes(free)} free", "df -h"))
    if probe.chips < chips:
        what = f"it has {probe.chips} of {chips} chips"
        problems.append(_unfit(host, what, "ls -l /dev/accel0 /dev/vfio"))
    if probe.holders:
        what = f"its chips are held by process {', '.join(probe.holders)}"
        problems.append(
            WorkerUnfitError(
                f"{host.label} is not fit for a job: {what}.",
                hint=f"tpuctl free {host.target} --worker {host.index}",
            )
        )
    return problems


def _unfit(host: Host, what: str, command: str) -> WorkerUnfitError:
    return WorkerUnfitError(
        f"{host.label} is not fit for a job: {what}.",
        hint=f"tpuctl run {host.target} --worker {host.index} -- {command}",
    )


def _install(name: str, wanted: str | None) -> str:
    if name == "python":
        return "python3 --version"
    return f"pip install {name}=={wanted}" if wanted else f"pip uninstall -y {name}"
