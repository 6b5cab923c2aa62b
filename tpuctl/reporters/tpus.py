"""TPUs as text: all of them, one of them, and one that was waited for."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.cloud.list import TpuList
from tpuctl.cloud.tpu import QueuedTpu, Tpu
from tpuctl.cloud.wait import WaitResult
from tpuctl.remote.jobs import ShownTpu
from tpuctl.reporters.columns import columns
from tpuctl.reporters.workers import table_of_jobs
from tpuctl.units import format_duration, format_usd

_EMULATED = "All of this comes from an emulator: nothing here is real, and nothing is billed."


def listing(tpus: TpuList) -> str:
    """Show everything in two tables, what it costs together, and what dead ones block."""
    lines: list[str] = []
    if tpus.tpus:
        lines += [*_table_of_tpus(tpus.tpus), ""]
    if tpus.queued_resources:
        lines += [*_table_of_queued(tpus.queued_resources), ""]
    lines.append(_totals(tpus))
    if dead := _dead(tpus):
        lines.append(f"{_waste(dead)} To free them: tpuctl gc --yes")
    if tpus.emulated:
        lines.append(_EMULATED)
    return "\n".join(lines)


def one(result: Tpu | QueuedTpu) -> RenderableType:
    """Show one TPU with its workers, or one that still waits in line."""
    if isinstance(result, QueuedTpu):
        return _facts(_queued_rows(result))
    parts: list[RenderableType] = [_facts(_rows(result))]
    if result.workers:
        parts += ["", _table_of_workers(result)]
    if isinstance(result, ShownTpu) and result.jobs:
        parts += ["", table_of_jobs(result.jobs)]
    if result.is_dead:
        following = f"tpuctl delete {result.name} --zone {result.zone}"
        parts += ["", Text(f"{_waste([result])} To free them: {following}")]
    if result.emulated:
        parts += ["", Text(_EMULATED)]
    return Group(*parts)


def waited(result: WaitResult) -> str:
    """Say that it has come true, and after how long."""
    where = f"{result.name} in {result.zone}" if result.zone else result.name
    after = f"after {format_duration(result.seconds)}" if result.seconds else "already"
    if result.tpu is None:
        return f"{where} is gone, {after}."
    return f"{where} is ready on {_count(len(result.tpu.workers), 'worker')}, {after}."


def _table_of_tpus(tpus: Sequence[Tpu]) -> list[str]:
    titles = ("name", "zone", "type", "state", "age", "time left", "an hour", "so far")
    rows = [
        (
            tpu.name,
            tpu.zone,
            _type(tpu),
            _state(tpu),
            _age(tpu.age_s),
            _time_left(tpu),
            _usd(tpu.usd_per_hour),
            _usd(tpu.usd_so_far),
        )
        for tpu in tpus
    ]
    return columns(titles, rows)


def _table_of_queued(queued: Sequence[QueuedTpu]) -> list[str]:
    titles = ("queued resource", "zone", "type", "state", "age", "an hour", "nodes")
    rows = [
        (
            item.name,
            item.zone,
            _type(item),
            item.state,
            _age(item.age_s),
            _usd(item.usd_per_hour),
            ", ".join(item.nodes),
        )
        for item in queued
    ]
    return columns(titles, rows)


def _table_of_workers(tpu: Tpu) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("worker", "internal address", "external address", "state"):
        table.add_column(column)
    for worker in tpu.workers:
        table.add_row(
            str(worker.index), worker.internal_ip or "-", worker.external_ip or "-", worker.state
        )
    return table


def _totals(tpus: TpuList) -> str:
    where = f"in {tpus.zone}" if tpus.zone else "in any zone"
    if tpus.unreachable_zones and not tpus.zone:
        where = "in any zone that answered"
    if not tpus.tpus and not tpus.queued_resources:
        return f"No TPUs {where}." + (" Every zone: tpuctl list --all-zones" if tpus.zone else "")
    alive = [tpu for tpu in tpus.tpus if not tpu.is_dead]
    chips = sum(tpu.chips or 0 for tpu in alive)
    amounts = f"{format_usd(tpus.usd_per_hour)} an hour, {format_usd(tpus.usd_so_far)} so far"
    unknown = f", and {tpus.unpriced} whose price is not known" if tpus.unpriced else ""
    return f"{_count(len(alive), 'TPU')} with {_count(chips, 'chip')}: {amounts}{unknown}."


def _dead(tpus: TpuList) -> tuple[Tpu | QueuedTpu, ...]:
    """What blocks names and quota, once: the nodes of a dead queued resource are counted in it."""
    queued = [item for item in tpus.queued_resources if item.is_dead]
    makers = {(item.zone, item.name) for item in queued}
    alone = [
        tpu for tpu in tpus.tpus if tpu.is_dead and (tpu.zone, tpu.queued_resource) not in makers
    ]
    return (*alone, *queued)


def _waste(dead: Sequence[Tpu | QueuedTpu]) -> str:
    names = ", ".join(item.name for item in dead[:8]) + (", …" if len(dead) > 8 else "")
    chips = sum(item.chips or 0 for item in dead)
    what = f"holding {'its name' if len(dead) == 1 else 'their names'} and the quota of"
    return f"Dead, but still {what} {_count(chips, 'chip')}: {names}."


def _rows(tpu: Tpu) -> list[tuple[str, str]]:
    health = ": ".join(word for word in (tpu.health, tpu.health_description) if word)
    chips = "unknown" if tpu.chips is None else str(tpu.chips)
    rows = [
        ("name", tpu.name),
        ("zone", tpu.zone),
        ("type", f"{_type(tpu)} ({chips} chips)"),
        ("state", tpu.state),
        ("health", "" if health == "UNKNOWN" else health),
        ("symptoms", "; ".join(tpu.symptoms)),
        ("runtime version", tpu.runtime_version),
        ("queued resource", tpu.queued_resource or ""),
        ("data disks", ", ".join(tpu.data_disks)),
        ("created", f"{tpu.created:%Y-%m-%d %H:%M:%S} UTC, {_age(tpu.age_s)} ago"),
        ("time left", "" if tpu.is_dead else _time_left(tpu)),
        ("costs", f"{_usd(tpu.usd_per_hour)} an hour, {_so_far(tpu)}"),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(tpu.labels.items()))),
        ("id", tpu.id),
    ]
    return [(name, value) for name, value in rows if value]


def _queued_rows(item: QueuedTpu) -> list[tuple[str, str]]:
    rows = [
        ("queued resource", item.name),
        ("zone", item.zone),
        ("type", _type(item)),
        ("state", item.state),
        ("error", item.error or ""),
        ("nodes", ", ".join(item.nodes)),
        ("created", f"{item.created:%Y-%m-%d %H:%M:%S} UTC, {_age(item.age_s)} ago"),
        ("will cost", f"{_usd(item.usd_per_hour)} an hour"),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(item.labels.items()))),
    ]
    return [(name, value) for name, value in rows if value]


def _age(age_s: float) -> str:
    return format_duration(age_s) if age_s >= 1 else "0 s"


def _so_far(tpu: Tpu) -> str:
    return (
        f"unknown so far: {tpu.why_no_cost}"
        if tpu.why_no_cost
        else f"{_usd(tpu.usd_so_far)} so far"
    )


def _time_left(tpu: Tpu) -> str:
    if tpu.ttl_left_s is None:
        return "no limit"
    return "over" if tpu.ttl_left_s <= 0 else format_duration(tpu.ttl_left_s)


def _state(tpu: Tpu) -> str:
    is_well = tpu.health in ("HEALTHY", "UNKNOWN")
    return tpu.state if is_well or tpu.is_dead else f"{tpu.state}, {tpu.health}"


def _type(item: Tpu | QueuedTpu) -> str:
    return f"{item.accelerator_type}{' spot' if item.spot else ''}"


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in rows:
        facts.add_row(name, Text(value))
    return facts


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
