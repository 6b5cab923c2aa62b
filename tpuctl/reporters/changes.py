"""Creating, watching and deleting TPUs: what would be done, at what price, and what was done."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.hardware.compute_engine import CLOUD_TPU, place_of
from tpuctl.reporters import layout
from tpuctl.reporters.tpus import balance_line, units_per_hour
from tpuctl.units import format_count, format_duration, format_usd

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tpuctl.cloud import follow
    from tpuctl.cloud.create import Created, NotCreated
    from tpuctl.cloud.delete import DeleteResult, TpuDeletion
    from tpuctl.cloud.gc import GcResult
    from tpuctl.cloud.plan import CreatePlan, Offer
    from tpuctl.providers.migrate import Migration
    from tpuctl.providers.port import HostedPlan, ProviderOffer
    from tpuctl.supervise.messages import WatchResult
    from tpuctl.supervise.plan import WatchPlan
    from tpuctl.supervise.relay import RelayPlan, RelayResult


def render_create_plan(plan: CreatePlan | HostedPlan) -> RenderableType:
    """Show what would be requested, zone by zone in the order of trying."""
    from tpuctl.providers.port import HostedPlan

    if isinstance(plan, HostedPlan):
        return f"Would create {plan.name} on {plan.provider}. {create_price(plan)}"
    table = layout.table("zone", "per hour", "quota, chips", "lives for", "")
    for offer in plan.offers:
        quota = "unknown" if offer.quota_chips is None else str(offer.quota_chips)
        quota = "none needed" if plan.options.reservation or plan.reserved else quota
        life = "no limit" if offer.ttl_s is None else format_duration(offer.ttl_s)
        why_not = f"skipped: {offer.not_tried}" if offer.not_tried else ""
        table.add_row(offer.zone, format_usd(offer.usd_per_hour), quota, life, why_not)
    title = (
        f"Would create {plan.name}: {_kind(plan)}, {format_count(plan.chips, 'chip')} on "
        f"{format_count(plan.workers, 'worker')}, topology {plan.topology or 'unknown'}, "
        f"{'runtime version' if plan.provider == CLOUD_TPU else 'image family'} "
        f"{plan.runtime_version}."
    )
    order = "all at once, and the first TPU wins" if plan.queued else "one after the other"
    tried = f"Tried {order}. " if len(plan.offers) > 1 else ""
    where = "" if plan.provider == CLOUD_TPU else f" On {_control_plane(plan)}"
    footer = layout.text(f"{tried}{_price_date(plan)}{where}")
    return layout.stack(layout.text(title, "bold"), "", table, "", footer)


def create_price(plan: CreatePlan | HostedPlan) -> str:
    """Say in one sentence what a create will cost."""
    from tpuctl.providers.port import HostedPlan

    if isinstance(plan, HostedPlan):
        left = f"{balance_line(plan.balance)}. " if plan.balance else ""
        return f"{plan.accelerator_type}: {_hosted_price(plan)}. {left}".strip()
    price = f"{_kind(plan)}: {_price(plan.to_try)}{_limit(plan)}. {_price_date(plan)}"
    # The usual control plane needs no explanation; -v shows it.
    return price if plan.provider == CLOUD_TPU else f"{price}\nOn {_control_plane(plan)}"


def _control_plane(plan: CreatePlan) -> str:
    return f"{plan.why_provider or 'Compute Engine'}."


def create_question(plan: CreatePlan | HostedPlan) -> str:
    """Ask for permission to create, naming the price."""
    from tpuctl.providers.port import HostedPlan

    if isinstance(plan, HostedPlan):
        return f"Create {plan.name} on {plan.provider} for {_hosted_price(plan)}?"
    zones = [offer.zone for offer in plan.to_try]
    where = zones[0] if len(zones) == 1 else f"the first of {len(zones)} zones that has capacity"
    return f"Create {plan.name} in {where} for {_price(plan.to_try)}{_limit(plan)}?"


def _hosted_price(plan: HostedPlan) -> str:
    price = "a part of the free hours"
    if plan.provisioning == "units":
        known = plan.units_per_hour is not None
        price = f"{plan.units_per_hour:g} units per hour" if known else "units at an unknown rate"
    limits = [f"for {format_duration(plan.ttl_s)}"] if plan.ttl_s else []
    limits += [f"{plan.max_units:g} units at most"] if plan.max_units else []
    return ", ".join([price, *(limits or [plan.until])])


def attempt_line(attempt: follow.ZoneAttempt) -> str:
    """Say in one line what a zone answered."""
    after = f" after {format_duration(attempt.seconds)}" if attempt.seconds else ""
    reason = f": {attempt.reason}" if attempt.reason else ""
    return f"{attempt.zone}: {attempt.outcome.replace('_', ' ')}{after}{reason}"


def render_created(result: Created | NotCreated) -> str:
    """Say what exists now, its cost and addresses, and how to delete it."""
    from tpuctl.cloud.create import NotCreated

    if isinstance(result, NotCreated):
        return f"{result.name} was not created."
    last = result.attempts[-1]
    took = last.outcome == "ready" and last.seconds
    after = f" after {format_duration(last.seconds)}" if took else ""
    spot = ", spot" if result.spot else ""
    emulated = ", emulated" if result.emulated else ""
    workers = format_count(len(result.workers), "worker")
    lines = [
        f"{result.name} is {result.state} in {result.place}{after}: {result.accelerator_type}, "
        f"{format_count(result.chips or 0, 'chip')} on {workers}{spot}{emulated}.",
        _running_cost(result),
    ]
    for worker in result.workers if result.zone else ():
        addresses = filter(None, (worker.external_ip, worker.internal_ip))
        lines.append(f"worker {worker.index}: {', '.join(addresses) or 'no address'}")
    command = "show" if last.outcome == "ready" else "wait"
    end = "stop paying" if result.id else "cancel it"
    where = f"{result.name} --zone {result.zone}" if result.zone else result.name
    lines.append(f"Next: tpuctl {command} {where}; to {end}: tpuctl delete {where}")
    return "\n".join(lines)


def _running_cost(result: Created) -> str:
    price = f"{format_usd(result.usd_per_hour)} per hour"
    if result.provisioning == "units":
        price = f"{units_per_hour(result)} per hour"
    # A queued TPU has no id until it exists, and costs nothing until then.
    if not result.id:
        return f"{price} once it exists; queueing is free."
    limit = f"; deleted by {result.expires:%Y-%m-%d %H:%M} UTC" if result.expires else ""
    if result.usd_per_hour is None and result.provisioning != "units":
        price = "billed at an unknown price"
    return f"{price} since {result.created:%H:%M} UTC{limit}."


def _kind(plan: CreatePlan) -> str:
    flags = (("spot", plan.spot), ("flex-start", plan.flex), ("reserved", plan.reserved),
             ("queued", plan.queued))  # fmt: skip
    return ", ".join([plan.accelerator_type, *(name for name, is_set in flags if is_set)])


def _price(offers: tuple[Offer, ...]) -> str:
    known = sorted({offer.usd_per_hour for offer in offers if offer.usd_per_hour is not None})
    if not known:
        return "an unknown price"
    low, high = format_usd(known[0]), format_usd(known[-1])
    some_unknown = any(offer.usd_per_hour is None for offer in offers)
    unknown = " (price unknown in some zones)" if some_unknown else ""
    return f"{low if low == high else f'{low} to {high}'} per hour{unknown}"


def _limit(plan: CreatePlan) -> str:
    lives = sorted({offer.ttl_s for offer in plan.to_try if offer.ttl_s is not None})
    if not lives:
        return ", until you delete it"
    costs = [o.ttl_s / 3600 * o.usd_per_hour for o in plan.to_try if o.ttl_s and o.usd_per_hour]
    at_most = f", {format_usd(max(costs))} at most" if costs else ""
    return f", for {format_duration(lives[-1])}{at_most}"


def _price_date(plan: CreatePlan) -> str:
    return f"List prices read on {plan.prices_as_of}, without traffic and storage."


_ENDINGS = {
    "planned": "Would delete",
    "deleted": "Deleted",
    "already_deleted": "Already deleted:",
    "replaced": "Already deleted, and replaced by another TPU:",
    "left_alone": "Kept:",
    "failed": "Not deleted:",
}


def delete_question(plan: DeleteResult) -> str:
    """Ask for permission to delete, naming each TPU and what is saved."""
    head = f"In project {plan.project}: " if plan.project else ""
    if len(plan.tpus) == 1:
        return f"{head}delete {_described(plan.tpus[0])}?"
    lines = [f"  {_described(removal)}" for removal in plan.tpus]
    saves = f"This saves {format_usd(plan.saved_usd_per_hour)} per hour."
    heads = [head.strip()] if head else []
    return "\n".join([*heads, *lines, f"Delete these {len(plan.tpus)} TPUs? {saves}"])


def render_deletion(result: DeleteResult) -> str:
    """Say what happened to each TPU, and what is saved."""
    lines = []
    for removal in result.tpus:
        is_timed = removal.outcome == "deleted" and removal.seconds
        took = f", in {format_duration(removal.seconds)}" if is_timed else ""
        lines.append(f"{_ENDINGS[removal.outcome]} {_described(removal)}{took}")
    lines += [
        f"Already deleted: {gone.name}{f' in {gone.zone}' if gone.zone else ''}"
        for gone in result.already_deleted
    ]
    if not lines:
        return "Nothing was deleted." if result.failures else "Nothing to delete."
    if result.tpus:
        lines.append(
            _saved(result.freed_chips, result.saved_usd_per_hour, acted=not result.dry_run)
        )
    return "\n".join(lines)


def render_leftovers(result: GcResult) -> RenderableType:
    """Show dead, expired and forgotten TPUs, and what deleting them frees."""
    if not result.found:
        return "Nothing to clean up: no dead, expired or forgotten TPUs."
    titles = ("name", "zone", "what", "per hour", "chips", "action", "reason")
    rows = [
        (
            find.name,
            place_of(find.zone, find.deletion.provider),
            find.kind.replace("_", " "),
            format_usd(find.usd_per_hour),
            "unknown" if find.chips is None else str(find.chips),
            find.action.replace("_", " "),
            find.reason,
        )
        for find in result.found
    ]
    total = _saved(result.freed_chips, result.saved_usd_per_hour, acted=result.acted)
    following = [] if result.acted else ["To delete: tpuctl gc --yes"]
    below = (layout.text(line) for line in ("", total, *following))
    return layout.stack(layout.folded_table(titles, rows), *below)


def _described(removal: TpuDeletion) -> str:
    price = "price unknown"
    if removal.usd_per_hour is not None:
        price = f"{format_usd(removal.usd_per_hour)} per hour"
    facts = [removal.accelerator_type, removal.state, price]
    if removal.queued_resource and removal.kind == "node":
        facts.append(f"with its queued resource {removal.queued_resource}")
    if removal.takes_along:
        facts.append(f"and with it {', '.join(removal.takes_along)}")
    return f"{removal.name} in {place_of(removal.zone, removal.provider)} ({', '.join(facts)})"


def _saved(chips: int, usd_per_hour: float, *, acted: bool) -> str:
    freed = f"{format_count(chips, 'chip')} and {format_usd(usd_per_hour)} per hour"
    return f"{'Freed' if acted else 'Would free'} {freed}."


def render_migration(result: Migration) -> str:
    """Show the command that makes the same TPU elsewhere, and what would be different."""
    lines = [f"{result.name} in {result.zone} would be on Compute Engine:", "", result.command, ""]
    lines += [f"- {difference}" for difference in result.differences]
    quota = result.quota
    chips = (quota.on_demand_chips, quota.spot_chips) if quota else (None, None)
    shown = " / ".join("unknown" if number is None else str(number) for number in chips)
    lines += ["", f"Quota in chips, on demand / spot: {shown}."]
    lines.append(f"Price: {format_usd(result.usd_per_hour)} per hour.")
    if result.created:
        lines += [
            render_created(result.created),
            f"{result.name} stays, and costs money as before.",
        ]
    return "\n".join(lines)


def render_watch_plan(plan: WatchPlan) -> str:
    """Show what would be kept running, and what would happen on a preemption."""
    place = f" in {plan.zone}" if plan.zone else ""
    now = f"is {plan.state}{place}" if plan.state else "does not exist yet"
    lines = [
        f"Would supervise {plan.name}, which {now}; {watch_promise(plan)}",
        f"The job: {shlex.join(plan.command)}",
    ]
    if plan.folder:
        source = f", a copy of {plan.code}" if plan.code else ""
        lines.append(f"It runs in the folder {plan.folder}{source}.")
    lines.append(f"Gives up after {plan.max_crashes} crashes; preemptions do not count.")
    if plan.goes_on_with:
        lines.append(f"Resumes the job {plan.goes_on_with}.")
    return "\n".join(lines)


def watch_promise(plan: WatchPlan) -> str:
    """Say what would be created after a preemption, where, and at what price."""
    if plan.hosted_by:
        rate = f", for {plan.units_per_hour:g} units per hour" if plan.units_per_hour else ""
        kind = plan.accelerator_type
        return f"if {plan.hosted_by} takes it away, {kind} is created there again{rate}."
    flags = (("spot", plan.spot), ("queued", plan.queued))
    words = ", ".join(word for word, is_set in flags if is_set)
    kind = f"{plan.accelerator_type} ({words})" if words else plan.accelerator_type
    where = ", ".join(plan.zones) if plan.zones else "the first zone with capacity"
    price = "an unknown price"
    if plan.usd_per_hour is not None:
        price = f"{format_usd(plan.usd_per_hour)} per hour"
    return f"if it is preempted, another {kind} is created in {where}, for {price}."


def watch_question(plan: WatchPlan) -> str:
    """Ask for permission to create the first TPU and its replacements."""
    return f"{plan.name} does not exist. Create it, and again whenever it is preempted?"


def render_watched(result: WatchResult) -> RenderableType:
    """Show every attempt and why it ended, then the last output of a job that failed."""
    table = layout.table("attempt", "zone", "ran for", "ended by", "because")
    for attempt in result.attempts:
        code = "" if attempt.exit_code is None else f"exit code {attempt.exit_code}"
        table.add_row(
            str(attempt.number),
            attempt.zone,
            format_duration((attempt.ended - attempt.began).total_seconds()),
            attempt.cause.replace("_", " "),
            attempt.reason or code,
        )
    if not result.tail:
        return table
    tail = layout.text("\n".join(result.tail))
    return layout.stack(table, "", layout.text("Last output:"), tail)


def render_relay_plan(plan: RelayPlan) -> RenderableType:
    """Show where a job would run, in which order, and what that costs."""
    rows = [
        (
            f"{number}. {each.provider}",
            each.accelerator_type,
            _offered(each),
            "; ".join(each.evidence),
        )
        for number, each in enumerate(plan.offers, 1)
    ]
    table = layout.folded_table(("", "type", "per hour", "what is known"), rows)
    sent = f", with {', '.join(plan.sent)}" if plan.sent else ""
    lines = [f"Checkpoints are kept in {plan.checkpoints}, and go from one to the next."]
    if plan.resumes:
        lines.append(f"Resumes an interrupted run, last on {plan.resumes}.")
    job = layout.command(f"The job: {shlex.join(plan.command)}{sent}")
    return layout.stack(job, table, *map(layout.text, lines))


def _offered(offer: ProviderOffer) -> str:
    if offer.available is False:
        return "not now"
    if offer.provisioning == "units":
        rate = offer.units_per_hour
        return "units, rate unknown" if rate is None else f"{rate:g} units"
    return "free" if offer.provisioning == "free" else format_usd(offer.usd_per_hour)


def render_relay(result: RelayResult) -> str:
    """Show every part of the job, and the ledger."""
    rows = [
        (
            str(part.number), part.provider, part.accelerator_type, f"{part.hours:.2f}",
            "" if part.units is None else f"{part.units:.2f}",
            "" if part.usd is None else format_usd(part.usd), part.end, part.reason,
        )
        for part in result.attempts
    ]  # fmt: skip
    titles = ("part", "provider", "type", "hours", "units", "cost", "end", "because")
    total = f"In all: {result.hours:.2f} TPU hours, {result.units:.2f} units, "
    return "\n".join(
        [
            *layout.plain_table(titles, rows),
            f"{total}{format_usd(result.usd)}. The checkpoints are in {result.checkpoints}.",
        ]
    )
