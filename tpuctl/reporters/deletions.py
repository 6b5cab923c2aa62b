"""What is to be deleted, as a question; what was, as an answer."""

from tpuctl.cloud.delete import DeleteResult, TpuDeletion
from tpuctl.cloud.gc import GcResult
from tpuctl.reporters.columns import columns
from tpuctl.units import format_duration, format_usd

_ENDINGS = {
    "planned": "Would delete",
    "deleted": "Deleted",
    "already_deleted": "Was deleted already:",
    "replaced": "Was deleted already, and replaced by another:",
    "left_alone": "Left alone:",
    "failed": "Not deleted:",
}


def question(plan: DeleteResult) -> str:
    """Ask whether to delete, naming each TPU and what its end saves."""
    if len(plan.tpus) == 1:
        return f"Delete {_described(plan.tpus[0])}?"
    lines = [f"  {_described(removal)}" for removal in plan.tpus]
    saves = f"That stops {format_usd(plan.saved_usd_per_hour)} an hour."
    return "\n".join([*lines, f"Delete these {len(plan.tpus)} TPUs? {saves}"])


def deletion(result: DeleteResult) -> str:
    """Say what became of each, and what that saves."""
    lines = [_line(removal) for removal in result.tpus]
    lines += [f"Was deleted already: {gone.name} in {gone.zone}" for gone in result.already_deleted]
    if not lines:
        return "Nothing was deleted." if result.failures else "There is nothing to delete."
    if result.tpus:
        lines.append(_sum(result.freed_chips, result.saved_usd_per_hour, acted=not result.dry_run))
    return "\n".join(lines)


def leftovers(result: GcResult) -> str:
    """Show what nobody needs, and what its end frees."""
    if not result.found:
        return "Nothing is left over: no dead TPUs, none out of time, none forgotten."
    titles = ("name", "zone", "what", "an hour", "chips", "action", "reason")
    rows = [
        (
            find.name,
            find.zone,
            find.kind.replace("_", " "),
            _usd(find.usd_per_hour),
            "unknown" if find.chips is None else str(find.chips),
            find.action.replace("_", " "),
            find.reason,
        )
        for find in result.found
    ]
    total = _sum(result.freed_chips, result.saved_usd_per_hour, acted=result.acted)
    following = [] if result.acted else ["To delete: tpuctl gc --yes"]
    return "\n".join([*columns(titles, rows), "", total, *following])


def _line(removal: TpuDeletion) -> str:
    after = f", in {format_duration(removal.seconds)}" if removal.outcome == "deleted" else ""
    return f"{_ENDINGS[removal.outcome]} {_described(removal)}{after}"


def _described(removal: TpuDeletion) -> str:
    price = "price unknown"
    if removal.usd_per_hour is not None:
        price = f"{format_usd(removal.usd_per_hour)} an hour"
    facts = [removal.accelerator_type, removal.state, price]
    if removal.queued_resource and removal.kind == "node":
        facts.append(f"with its queued resource {removal.queued_resource}")
    if removal.takes_along:
        facts.append(f"and with it {', '.join(removal.takes_along)}")
    return f"{removal.name} in {removal.zone} ({', '.join(facts)})"


def _sum(chips: int, usd_per_hour: float, *, acted: bool) -> str:
    verb = "Freed" if acted else "Would free"
    return (
        f"{verb} {chips:,} chip{'' if chips == 1 else 's'} and {format_usd(usd_per_hour)} an hour."
    )


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)
