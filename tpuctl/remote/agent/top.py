"""The load of a worker: CPU, memory, and its chips by libtpu's metrics."""

from __future__ import annotations

import os
import select
import time

from tpuctl.remote.agent.chips import Chips
from tpuctl.remote.agent.metrics import DUTY_CYCLE, HBM_TOTAL, HBM_USED, MetricsError, read_metrics
from tpuctl.remote.agent.wire import note, send
from tpuctl.runtime.holders import BY_LOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from tpuctl.runtime.holders import Holder, State

    Values = dict[int, float]

PORTS = "TPU_RUNTIME_METRICS_PORTS"
"""Environment variable with the ports of libtpu's metrics; the default is 8431 to 8438."""

_DEFAULT_PORTS = tuple(range(8431, 8439))
_ANSWER_S = 1.0
_METRICS = (DUTY_CYCLE, HBM_USED, HBM_TOTAL)


def watch(request: dict[str, Any], stdin: BinaryIO) -> None:
    """Report `count` times, or until the other end closes or its lease ends.

    The CPU load is that of the `interval_s` before a report.
    """
    before, count = _processor_times(), request["count"]
    deadline = time.monotonic() + request["lease_s"]
    while count is None or count > 0:
        end = time.monotonic() + request["interval_s"]
        while (left_s := end - time.monotonic()) > 0:
            if select.select([0], [], [], left_s)[0]:
                if not os.read(0, 4096):
                    return
                deadline = time.monotonic() + request["lease_s"]
        if time.monotonic() > deadline:
            return
        now = _processor_times()
        send(note(**_machine(before, now), **_chips(Chips(request["known"]))))
        before, count = now, None if count is None else count - 1


def _machine(before: tuple[int, int] | None, now: tuple[int, int] | None) -> dict[str, Any]:
    """Report CPU and memory, and why a value is missing."""
    total, used = _memory()
    percent, why = None, []
    if before and now and now[1] > before[1]:
        percent = round(100 * (now[0] - before[0]) / (now[1] - before[1]), 1)
    else:
        why.append("/proc/stat shows no load")
    if total is None:
        why.append("/proc/meminfo shows no memory")
    return {
        "vcpus": os.cpu_count(),
        "vcpu_percent": percent,
        "memory_bytes": total,
        "memory_used_bytes": used,
        "why_null": "; ".join(why) or None,
    }


def _processor_times() -> tuple[int, int] | None:
    """Read the busy time and all time of all CPUs since boot, in ticks."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        times = [int(word) for word in words[1:9]]
    except (OSError, ValueError):
        return None
    if len(times) < 5:
        return None
    return sum(times) - times[3] - times[4], sum(times)


def _memory() -> tuple[int | None, int | None]:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            pairs = (line.split(":", 1) for line in file if ":" in line)
            kib = {name: int(rest.split()[0]) for name, rest in pairs if rest.split()}
        return kib["MemTotal"] * 1024, (kib["MemTotal"] - kib["MemAvailable"]) * 1024
    except (OSError, ValueError, KeyError):
        return None, None


def _chips(chips: Chips) -> dict[str, Any]:
    """Report each chip's load, memory and holder, and why a value is missing."""
    state = chips.state()
    if state is None:
        return {"chips": []}
    values, failed = _read(chips, state)
    count, per_chip = len(chips.nodes), chips.devices_per_chip
    duty = _by_chip(values[0], count, per_chip)
    used, total = (_by_chip(each, count, per_chip, together=True) for each in values[1:])
    reports = []
    for index, nodes in enumerate(chips.nodes):
        holder = _holder_of(nodes, state)
        report = {
            "index": index,
            "device": ", ".join(nodes),
            "duty_cycle_percent": duty[index],
            "hbm_used_bytes": _whole(used[index]),
            "hbm_bytes": _whole(total[index]),
            "holder_pid": holder.pid if holder else None,
            "holder_user": holder.user if holder else None,
            "holder_command": holder.command if holder else None,
            "why_null": _why(state, holder, (duty[index], used[index]), failed),
        }
        reports.append(report)
    return {"chips": reports}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _holder_of(nodes: tuple[str, ...], state: State) -> Holder | None:
    """Find the holder of a chip: by device node, or by libtpu's lock if that is all we see."""
    for holder in state.holders:
        if set(holder.device.split(", ")) & set(nodes):
            return holder
    locking = [holder for holder in state.holders if holder.seen_by == BY_LOCK]
    return locking[0] if len(locking) == len(state.holders) == 1 else None


def _read(chips: Chips, state: State) -> tuple[list[Values], str | None]:
    """Read the metrics of every process that serves them; returns them merged, and an error."""
    merged: list[Values] = [{}, {}, {}]
    ports = _ports(state)
    open_ports = [port for port in ports if chips.machine.is_listening(port) is not False]
    why = None
    if not open_ports:
        shown = f"{ports[0]}" if len(ports) == 1 else f"{ports[0]} to {ports[-1]}"
        why = f"no process serves libtpu's metrics (port {shown})"
    for port in open_ports:
        try:
            answers = read_metrics(port, _METRICS, _ANSWER_S)
        except MetricsError as error:
            why = why or str(error)
            continue
        for number, new in enumerate(answers):
            merged[number] = {**new, **merged[number]}
    return merged, why


def _ports(state: State) -> list[int]:
    """List the ports of libtpu's metrics: set for a holder of chips or for us, or the default."""
    texts = [os.environ.get(PORTS, "")]
    for holder in state.holders:
        texts.append(_variable(holder.pid, PORTS))
    words = [word.strip() for text in texts for word in text.split(",")]
    ports = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6]
    return list(dict.fromkeys(ports)) or list(_DEFAULT_PORTS)


def _variable(pid: int, name: str) -> str:
    """Read an environment variable of a process, if we may."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
    except OSError:
        return ""
    found = (value for key, _, value in pairs if key == name.encode())
    return next(found, b"").decode("ascii", "replace")


def _by_chip(
    values: Values, chips: int, per_chip: int | None, *, together: bool = False
) -> list[float | None]:
    """Turn values by device into values by chip: summed with `together`, else averaged."""
    ordered = [values[device] for device in sorted(values)]
    each = per_chip or max(1, len(ordered) // chips)
    if len(ordered) == chips:
        groups = [[value] for value in ordered]
    elif len(ordered) == chips * each:
        groups = [ordered[at : at + each] for at in range(0, len(ordered), each)]
    else:
        # A program that uses some of the chips: libtpu numbers the devices that it sees.
        groups = [[] for _ in range(chips)]
        for device, value in values.items():
            if device // each < chips:
                groups[device // each].append(value)
    return [(sum(g) / (1 if together else len(g))) if g else None for g in groups]


def _why(
    state: State, holder: Holder | None, values: tuple[float | None, ...], failed: str | None
) -> str | None:
    """Explain why a value of a chip is null; None when none is."""
    failed = failed or "libtpu reports no value"
    unseen = ""
    if state.uninspected:
        unseen = f"; {state.uninspected} processes of other users could not be inspected"
    if holder:
        return f"{failed}, but process {holder.pid} has it open" if None in values else None
    if None not in values:
        return f"no visible process has it open{unseen}"
    if state.uninspected or state.holders:
        return f"{failed}; no visible process has it open{unseen}"
    return "no program has it open, so none serves libtpu's metrics"
