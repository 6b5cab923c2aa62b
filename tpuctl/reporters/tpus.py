"""TPUs as text: all of them, one of them, and one that was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.reporters import layout
from tpuctl.reporters.workers import jobs_table
from tpuctl.units import format_count, format_duration, format_moment, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from tpuctl.cloud.list import TpuList
    from tpuctl.cloud.tpu import Balance, QueuedTpu, Tpu
    from tpuctl.cloud.wait import WaitResult
    from tpuctl.providers.check import ProviderCheck
    from tpuctl.providers.combined import Offers

_TPU_TITLES = ("name", "zone", "type", "state", "age", "time left", "per hour", "so far")
_QUEUED_TITLES = ("queued resource", "zone", "type", "state", "age", "per hour", "nodes")
_EMULATED = "These TPUs are emulated: nothing here is real, and nothing is billed."


def render_tpus(tpus: TpuList) -> str:
    """Show TPUs and queued resources in two tables, their total cost, and what dead ones block."""
    lines: list[str] = []
    if tpus.tpus:
        lines += [*layout.plain_table(_TPU_TITLES, list(map(_tpu_cells, tpus.tpus))), ""]
    if queued := tpus.queued_resources:
        lines += [*layout.plain_table(_QUEUED_TITLES, list(map(_queued_cells, queued))), ""]
    lines.append(_totals(tpus))
    lines += [f"{balance_line(each)}." for each in tpus.balances]
    if dead := _dead(tpus):
        lines.append(f"{_waste(dead)} To free them: tpuctl gc --yes")
    if tpus.emulated:
        lines.append(_EMULATED)
    return "\n".join(lines)


def render_tpu(result: Tpu | QueuedTpu) -> RenderableType:
    """Show one TPU with its workers and jobs, or one that is still queued."""
    from tpuctl.cloud.tpu import QueuedTpu

    if isinstance(result, QueuedTpu):
        return layout.facts(_queued_rows(result))
    parts: list[RenderableType] = [layout.facts(_tpu_rows(result))]
    if result.workers:
        table = layout.table("worker", "internal address", "external address", "state")
        for worker in result.workers:
            addresses = (worker.internal_ip or "-", worker.external_ip or "-")
            table.add_row(str(worker.index), *addresses, worker.state)
        parts += ["", table]
    if jobs := getattr(result, "jobs", ()):
        parts += ["", jobs_table(jobs)]
    if result.is_dead:
        zone = f" --zone {result.zone}" if result.zone else ""
        command = f"tpuctl delete {result.name}{zone}"
        waste = f"{_waste([result])} To free them"
        if result.reachable == "batch":
            waste = "It has ended. To delete it there"
        parts += ["", layout.text(f"{waste}: {command}")]
    if result.emulated:
        parts += ["", layout.text(_EMULATED)]
    return layout.stack(*parts)


def render_waited(result: WaitResult) -> str:
    """Say what was waited for, and how long it took."""
    where = f"{result.name} in {result.zone}" if result.zone else result.name
    is_it = "is" if result.seconds else "is already"
    after = f", after {format_duration(result.seconds)}" if result.seconds else ""
    if result.tpu is None:
        return f"{where} {is_it} gone{after}."
    return f"{where} {is_it} ready on {format_count(len(result.tpu.workers), 'worker')}{after}."


def _tpu_cells(tpu: Tpu) -> tuple[str, ...]:
    is_well = tpu.is_dead or tpu.health in ("HEALTHY", "UNKNOWN")
    is_paid_in_units = tpu.provisioning == "units"
    return (
        tpu.name,
        tpu.place,
        _type(tpu),
        tpu.state if is_well else f"{tpu.state}, {tpu.health}",
        # Colab does not say when the runtime of a browser was created.
        "-" if is_paid_in_units and tpu.created == tpu.as_of else _age(tpu.age_s),
        _time_left(tpu),
        units_per_hour(tpu) if is_paid_in_units else format_usd(tpu.usd_per_hour),
        _so_far(tpu),
    )


def _so_far(tpu: Tpu) -> str:
    if tpu.provisioning != "units" or tpu.units_per_hour is None:
        return format_usd(tpu.usd_so_far)
    return f"{tpu.units_per_hour * tpu.age_s / 3600:.1f} units"


def _queued_cells(item: QueuedTpu) -> tuple[str, ...]:
    return (
        item.name,
        item.zone,
        _type(item),
        item.state,
        _age(item.age_s),
        format_usd(item.usd_per_hour),
        ", ".join(item.nodes),
    )


def _totals(tpus: TpuList) -> str:
    where = f"in {tpus.zone}" if tpus.zone else tpus.place
    if tpus.unreachable_zones and not tpus.zone:
        where = f"{where} that answered"
    elif tpus.failures:
        where = "at the providers that answered"
    if not tpus.tpus and not tpus.queued_resources:
        return f"No TPUs {where}." + (" All zones: tpuctl list --all-zones" if tpus.zone else "")
    alive = [tpu for tpu in tpus.tpus if not tpu.is_dead]
    chips = sum(tpu.chips or 0 for tpu in alive)
    counts = f"{format_count(len(alive), 'TPU')} with {format_count(chips, 'chip')}"
    amounts = f"{format_usd(tpus.usd_per_hour)} per hour, {format_usd(tpus.usd_so_far)} so far"
    unpriced = f", plus {tpus.unpriced} with an unknown price" if tpus.unpriced else ""
    return f"{counts}: {amounts}{unpriced}."


def _dead(tpus: TpuList) -> tuple[Tpu | QueuedTpu, ...]:
    """Everything dead, once: a dead queued resource already counts the chips of its nodes."""
    queued = [item for item in tpus.queued_resources if item.is_dead]
    parents = {(item.zone, item.name) for item in queued}
    alone = [
        tpu for tpu in tpus.tpus if tpu.is_dead and (tpu.zone, tpu.queued_resource) not in parents
    ]
    return (*alone, *queued)


def _waste(dead: Sequence[Tpu | QueuedTpu]) -> str:
    names = ", ".join(item.name for item in dead[:8]) + (", …" if len(dead) > 8 else "")
    held = "its name" if len(dead) == 1 else "their names"
    chips = format_count(sum(item.chips or 0 for item in dead), "chip")
    return f"Dead, but still holding {held} and the quota of {chips}: {names}."


def _tpu_rows(tpu: Tpu) -> list[tuple[str, str]]:
    known = "" if tpu.health == "UNKNOWN" else tpu.health
    health = ": ".join(word for word in (known, tpu.health_description) if word)
    chips = "unknown chips" if tpu.chips is None else format_count(tpu.chips, "chip")
    so_far = f"{format_usd(tpu.usd_so_far)} so far"
    if tpu.why_no_cost:
        so_far = f"unknown so far: {tpu.why_no_cost}"
    rows = [
        ("name", tpu.name),
        ("provider", tpu.provider),
        ("zone", tpu.zone or ""),
        ("type", f"{_type(tpu)} ({chips})"),
        ("state", tpu.state),
        ("health", health),
        ("symptoms", "; ".join(tpu.symptoms)),
        ("runtime version", tpu.runtime_version),
        ("queued resource", tpu.queued_resource or ""),
        ("data disks", ", ".join(tpu.data_disks)),
        ("created", f"{tpu.created:%Y-%m-%d %H:%M:%S} UTC, {_age(tpu.age_s)} ago"),
        ("time left", "" if tpu.is_dead else _time_left(tpu)),
        ("costs", _costs(tpu, so_far)),
        ("labels", _labels(tpu)),
        ("id", tpu.id),
    ]
    return [(name, value) for name, value in rows if value]


def _costs(tpu: Tpu, so_far: str) -> str:
    if tpu.provisioning != "units":
        return f"{format_usd(tpu.usd_per_hour)} per hour, {so_far}"
    left = "" if tpu.units_left is None else f"; {tpu.units_left:,.1f} units left"
    hours = "" if tpu.hours_left is None else f", {format_duration(tpu.hours_left * 3600)}"
    return f"{units_per_hour(tpu)} per hour{left}{hours}"


def units_per_hour(tpu: Tpu) -> str:
    """Say how many compute units a TPU uses."""
    if tpu.units_per_hour is None:
        return "unknown units"
    return f"{tpu.units_per_hour:g} units"


def balance_line(balance: Balance) -> str:
    """Say what is left in an account, and for how long it lasts."""
    left = "unknown" if balance.left is None else f"{round(balance.left, 1):g}"
    parts = [f"{balance.provider}: {left} {balance.unit} left"]
    if balance.rate_per_hour is not None:
        parts.append(f"{balance.rate_per_hour:g} per hour in use")
    if balance.unit == "units" and balance.hours_left is not None:
        parts.append(f"enough for {format_duration(balance.hours_left * 3600)}")
    if balance.reserved:
        parts.append(f"{balance.reserved:g} of them reserved")
    if balance.refreshes:
        parts.append(f"new ones at {format_moment(balance.refreshes)}")
    return ", ".join(parts)


def render_check(result: ProviderCheck) -> RenderableType:
    """Show what was checked of an account."""
    words = {True: "ok", False: "FAILED", None: "unknown"}
    rows = [(each.name, words[each.ok], each.detail) for each in result.checks]
    return layout.folded_table(("check", "", "found"), rows)


def render_offers(result: Offers) -> RenderableType:
    """Show what is available, cheapest per chip first, and which providers failed."""
    rows: list[tuple[str, ...]] = []
    notes: dict[str, str] = {}
    for offer in result.offers:
        price = format_usd(offer.usd_per_hour)
        if offer.units_per_hour is not None:
            price = f"{offer.units_per_hour:g} units"
        how = offer.provisioning.replace("_", " ")
        cells = (
            offer.provider,
            offer.accelerator_type,
            offer.zone or "-",
            f"{how}, not now" if offer.available is False else how,
            price,
            "unknown" if offer.quota_left is None else f"{round(offer.quota_left, 1):g}",
            "-" if offer.limit_hours is None else f"{offer.limit_hours:g} h",
            notes.setdefault("; ".join(offer.evidence), str(len(notes) + 1)),
        )
        rows.append(cells)
    titles = ("provider", "type", "zone", "how", "per hour", "left", "limit", "note")
    lines = layout.plain_table(titles, rows) if rows else ["No offers. Prices: tpuctl types"]
    lines += ["", *(f"{number}. {note}" for note, number in notes.items())] if notes else []
    lines += (
        ["", *(f"{balance_line(each)}." for each in result.balances)] if result.balances else []
    )
    if not result.unusable:
        return layout.text("\n".join(lines))
    lines += ["", "Not asked:"]
    return layout.stack(layout.text("\n".join(lines)), layout.facts(result.unusable.items()))


def _queued_rows(item: QueuedTpu) -> list[tuple[str, str]]:
    rows = [
        ("queued resource", item.name),
        ("zone", item.zone),
        ("type", _type(item)),
        ("state", item.state),
        ("error", item.error or ""),
        ("nodes", ", ".join(item.nodes)),
        ("created", f"{item.created:%Y-%m-%d %H:%M:%S} UTC, {_age(item.age_s)} ago"),
        ("will cost", f"{format_usd(item.usd_per_hour)} per hour"),
        ("labels", _labels(item)),
    ]
    return [(name, value) for name, value in rows if value]


def _labels(item: Tpu | QueuedTpu) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(item.labels.items()))


def _age(age_s: float) -> str:
    return format_duration(age_s) if age_s >= 1 else "0 s"


def _time_left(tpu: Tpu) -> str:
    if tpu.ttl_left_s is None:
        ttl_s = tpu.ttl_from_start_s
        return "no limit" if ttl_s is None else f"{format_duration(ttl_s)} from start"
    return "expired" if tpu.ttl_left_s <= 0 else format_duration(tpu.ttl_left_s)


def _type(item: Tpu | QueuedTpu) -> str:
    model = "spot" if item.spot else getattr(item, "provisioning", "")
    known = model if model in ("spot", "flex") else ""
    return f"{item.accelerator_type} {known}".rstrip()
