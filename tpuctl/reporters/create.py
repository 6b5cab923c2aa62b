"""What a create will ask for, what it costs, and what became of it."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tpuctl.cloud.create import Created, NotCreated
from tpuctl.cloud.follow import ZoneAttempt
from tpuctl.cloud.plan import CreatePlan, Offer
from tpuctl.units import format_duration, format_usd


def plan(result: CreatePlan) -> Any:
    """Show what would be asked for, zone by zone in the order of trying."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("zone", "an hour", "quota, chips", "lives for", ""):
        table.add_column(column, overflow="fold")
    for offer in result.offers:
        quota = "unknown" if offer.quota_chips is None else str(offer.quota_chips)
        life = "no limit" if offer.ttl_s is None else format_duration(offer.ttl_s)
        why_not = f"not tried: {offer.not_tried}" if offer.not_tried else ""
        table.add_row(offer.zone, _usd(offer.usd_per_hour), quota, life, why_not)
    workers = f"{result.workers} worker" + ("s" if result.workers > 1 else "")
    headline = Text(
        f"Would create {result.name}: {_kind(result)}, {result.chips} chips on {workers}, topology "
        f"{result.topology or 'unknown'}, runtime version {result.runtime_version}.",
        style="bold",
    )
    order = "all at once; the first TPU wins" if result.queued else "one after the other"
    return Group(headline, "", table, "", Text(f"Tried {order}. {_dated(result)}"))


def price(result: CreatePlan) -> str:
    """Say in one sentence what it will cost, before anything is asked for."""
    return f"{_kind(result)}: {_price(result.to_try)}{_limit(result)}. {_dated(result)}"


def question(result: CreatePlan) -> str:
    """Ask for leave to spend that."""
    zones = [offer.zone for offer in result.to_try]
    where = zones[0] if len(zones) == 1 else f"the first of {len(zones)} zones that has one"
    return f"Create {result.name} in {where} for {_price(result.to_try)}{_limit(result)}?"


def attempt(result: ZoneAttempt) -> str:
    """One line for one zone."""
    after = f" after {format_duration(result.seconds)}" if result.seconds else ""
    reason = f": {result.reason}" if result.reason else ""
    return f"{result.zone}: {result.outcome.replace('_', ' ')}{after}{reason}"


def created(result: Created | NotCreated) -> Any:
    """Say what there is now and until when, or that there is nothing."""
    if isinstance(result, NotCreated):
        return f"{result.name} was not created."
    spot = ", spot" if result.spot else ""
    emulated = ", emulated" if result.emulated else ""
    last = result.attempts[-1]
    after = f" after {format_duration(last.seconds)}" if last.outcome == "ready" else ""
    lines = [
        f"{result.name} is {result.state} in {result.zone}{after}: {result.accelerator_type}, "
        f"{result.chips} chips on {_workers(result)}{spot}{emulated}.",
        _running_cost(result),
    ]
    for worker in result.workers:
        addresses = (worker.external_ip, worker.internal_ip)
        lines.append(f"worker {worker.index}: {', '.join(filter(None, addresses)) or 'no address'}")
    done = "show" if last.outcome == "ready" else "wait"
    end = "stop paying" if result.id else "give it up"
    where = f"{result.name} --zone {result.zone}"
    lines.append(f"Next: tpuctl {done} {where}; to {end}: tpuctl delete {where}")
    return "\n".join(lines)


def _running_cost(result: Created) -> str:
    """What it costs since when; one in line has no id yet, and costs nothing until it is there."""
    price = f"{_usd(result.usd_per_hour)} an hour"
    if not result.id:
        return f"{price} from when it is there; in line it costs nothing."
    limit = f"; gone by {result.expires:%Y-%m-%d %H:%M} UTC" if result.expires else ""
    return f"{price} since {result.created:%H:%M} UTC{limit}."


def _kind(result: CreatePlan) -> str:
    flags = (("spot", result.spot), ("reserved", result.reserved), ("queued", result.queued))
    return ", ".join([result.accelerator_type, *(name for name, is_set in flags if is_set)])


def _price(offers: tuple[Offer, ...]) -> str:
    known = sorted({offer.usd_per_hour for offer in offers if offer.usd_per_hour is not None})
    if not known:
        return "a price that is not known"
    unknown = any(offer.usd_per_hour is None for offer in offers)
    more = " (in some zones a price that is not known)" if unknown else ""
    least, most = _usd(known[0]), _usd(known[-1])
    return (least if len(known) == 1 else f"{least} to {most}") + f" an hour{more}"


def _limit(result: CreatePlan) -> str:
    lives = sorted({offer.ttl_s for offer in result.to_try if offer.ttl_s is not None})
    if not lives:
        return ", until you delete it"
    most = [o.ttl_s / 3600 * o.usd_per_hour for o in result.to_try if o.ttl_s and o.usd_per_hour]
    at_most = f", {format_usd(max(most))} at most" if most else ""
    return f", for {format_duration(lives[-1])}{at_most}"


def _dated(result: CreatePlan) -> str:
    return f"List prices as of {result.prices_as_of}, without traffic and storage."


def _workers(result: Created) -> str:
    number = len(result.workers)
    return f"{number} worker" + ("" if number == 1 else "s")


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)
