"""Before a job: is every worker of a slice fit for it, and are they all alike?"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tpuctl.errors import TpuctlError, WorkerUnfitError
from tpuctl.hardware.types import known_chips
from tpuctl.outcome import Outcome, Status
from tpuctl.remote.access import Access
from tpuctl.remote.connection import Connection, call_agent
from tpuctl.remote.fleet import Fleet, open_fleet, run_async
from tpuctl.remote.hosts import Host
from tpuctl.units import GIB, format_bytes, format_duration

PACKAGES = (
    "jax", "jaxlib", "libtpu", "tensorflow", "tensorflow-tpu", "tensorflow-cpu", "torch",
    "torch_xla", "keras", "numpy",
)  # fmt: skip
"""Packages whose versions must agree: different ones give different programs, which never meet."""

_LEAST_DISK_BYTES = GIB
_LARGEST_SKEW_S = 10.0


@dataclass(frozen=True)
class Probe:
    """What a worker is like; `clock_s` is how far its clock is ahead of ours.

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
    """What the workers are like, and which of them are unfit and how."""

    workers: tuple[Probe, ...]
    problems: tuple[tuple[int, TpuctlError], ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """An error when any worker is unfit."""
        return "error" if self.problems else "ok"

    @property
    def exit_code(self) -> int:
        """That of the first problem."""
        return self.problems[0][1].exit_code if self.problems else 0

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """What is wrong with whom."""
        return tuple(problem for _, problem in self.problems)

    @property
    def unfit(self) -> dict[int, TpuctlError]:
        """The first problem of each worker that has one, by its number."""
        return dict(reversed(self.problems))


def check_workers(
    hosts: tuple[Host, ...], access: Access, *, chips_per_worker: int | None = None
) -> WorkerCheck:
    """Look at every worker; without `chips_per_worker` they only have to agree."""

    async def check() -> WorkerCheck:
        async with open_fleet(hosts, access) as fleet:
            return await probe_fleet(fleet, chips_per_worker)

    return run_async(check())


async def probe_fleet(fleet: Fleet, chips_per_worker: int | None) -> WorkerCheck:
    """Look at the workers of a fleet, all at once."""
    answers = await fleet.each(_probe)
    pairs = list(zip(fleet.hosts, answers, strict=True))
    seen = [(host, answer) for host, answer in pairs if isinstance(answer, Probe)]
    unseen = [(host.index, a) for host, a in pairs if isinstance(a, TpuctlError)]
    found = [*unseen, *find_problems(seen, chips_per_worker)]
    return WorkerCheck(tuple(probe for _, probe in seen), tuple(found))


async def _probe(connection: Connection) -> Probe:
    host = connection.host
    async with call_agent(
        connection, "probe.probe", packages=PACKAGES, known=known_chips()
    ) as conversation:
        now_s = (await conversation.answer())["now_s"]
        clock_s = now_s - time.time()
        answer = await conversation.answer()
    return Probe(
        host.index,
        host.address,
        clock_s,
        answer["disk_free_bytes"],
        answer["python"],
        dict(answer["packages"]),
        answer["chips"],
        tuple(f"{holder['pid']} ({holder['command']})" for holder in answer["holders"]),
        answer["libtpu"],
    )


def find_problems(
    seen: Sequence[tuple[Host, Probe]], chips_per_worker: int | None
) -> list[tuple[int, TpuctlError]]:
    """Name every worker that is unfit, or unlike the others, and how."""
    if not seen:
        return []
    usual_clock_s = median(probe.clock_s for _, probe in seen)
    usual_python = _most_common([probe.python for _, probe in seen])
    usual = {name: _most_common([p.packages.get(name) for _, p in seen]) for name in PACKAGES}
    usual_chips = chips_per_worker
    if usual_chips is None:
        usual_chips = max(probe.chips for _, probe in seen)
    found = []
    for host, probe in seen:
        problems = _own_problems(host, probe, usual_chips)
        skew_s = probe.clock_s - usual_clock_s
        if abs(skew_s) > _LARGEST_SKEW_S:
            side = "ahead of" if skew_s > 0 else "behind"
            what = f"its clock is {format_duration(abs(skew_s))} {side} the others'"
            problems.append(_unfit(host, what, "sudo systemctl restart systemd-timesyncd"))
        has = {"python": probe.python, **{name: probe.packages.get(name) for name in PACKAGES}}
        for name, wanted in {"python": usual_python, **usual}.items():
            if has[name] != wanted:
                what = f"it has {name} {has[name] or '(none)'}, the others {wanted or 'none'}"
                problems.append(_unfit(host, what, _install(name, wanted)))
        found += [(host.index, problem) for problem in problems]
    return found


def _own_problems(host: Host, probe: Probe, chips: int) -> list[TpuctlError]:
    problems: list[TpuctlError] = []
    free = probe.disk_free_bytes
    if free is not None and free < _LEAST_DISK_BYTES:
        problems.append(_unfit(host, f"only {format_bytes(free)} of its disk is free", "df -h"))
    if probe.chips < chips:
        what = f"it shows {probe.chips} of {chips} chips"
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


def _most_common(values: list[str | None]) -> str | None:
    """The value of most; of the first, where two are as common."""
    return Counter(values).most_common(1)[0][0]
