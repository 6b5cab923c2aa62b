"""What workers are doing, as a table and the reasons for its gaps."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tpuctl.remote.hosts import ranges
from tpuctl.remote.top import ChipUse, Usage, WorkerUse
from tpuctl.units import format_bytes

_NOTHING = "–"
_MANY_CHIPS = 32


def usage(result: Usage) -> RenderableType:
    """A line for each chip, or each worker where they are many; then why numbers are missing."""
    return Group(_table(result), *_reasons(result))


def live(result: Usage) -> RenderableType:
    """The same with what went wrong, which has no other place while the table is alive."""
    return Group(usage(result), *(Text(f"{failure}") for failure in result.failures))


def _table(result: Usage) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "vCPUs", "memory", "chip", "duty", "HBM"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holder", overflow="fold")
    is_long = sum(len(worker.chips) for worker in result.workers) > _MANY_CHIPS
    for worker in result.workers:
        machine = [str(worker.index), _load(worker), _memory(worker)]
        rows = [_together(worker)] if is_long and worker.chips else map(_chip, worker.chips)
        for row in list(rows) or [[_NOTHING] * 4]:
            table.add_row(*machine, *row)
            machine = [""] * len(machine)
    return table


def _load(worker: WorkerUse) -> str:
    if worker.vcpu_percent is None:
        return _NOTHING
    return f"{worker.vcpu_percent:.0f}% of {worker.vcpus or '?'}"


def _memory(worker: WorkerUse) -> str:
    return _of(worker.memory_used_bytes, worker.memory_bytes)


def _chip(chip: ChipUse) -> list[str]:
    return [
        str(chip.index),
        _percent([chip.duty_cycle_percent]),
        _of(chip.hbm_used_bytes, chip.hbm_bytes),
        _holder(chip),
    ]


def _together(worker: WorkerUse) -> list[str]:
    """All chips of a worker in one line; a number only where every chip has one."""
    holders = dict.fromkeys(_holder(chip) for chip in worker.chips)
    return [
        f"all {len(worker.chips)}",
        _percent([chip.duty_cycle_percent for chip in worker.chips]),
        _of(
            _sum(chip.hbm_used_bytes for chip in worker.chips),
            _sum(chip.hbm_bytes for chip in worker.chips),
        ),
        "; ".join(holders),
    ]


def _holder(chip: ChipUse) -> str:
    if chip.holder_pid is None:
        return _NOTHING
    return f"{chip.holder_pid} {chip.holder_user or '?'} {chip.holder_command or ''}".rstrip()


def _percent(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return _NOTHING
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return f"{low}%" if low == high else f"{low}–{high}%"


def _of(used: int | None, total: int | None) -> str:
    if used is None:
        return _NOTHING
    return format_bytes(used) + (f" of {format_bytes(total)}" if total else "")


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _reasons(result: Usage) -> list[Text]:
    """Each reason once, with the workers and chips that it is about."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for worker in result.workers:
        if worker.why_null and not worker.failure:
            found.setdefault(worker.why_null, []).append((worker.index, None))
        if not worker.chips and not worker.failure:
            found.setdefault("there are no chips", []).append((worker.index, None))
        for chip in worker.chips:
            if chip.why_null:
                found.setdefault(chip.why_null, []).append((worker.index, chip.index))
    return [Text(f"{_places(places)}: {why}") for why, places in found.items()]


def _places(places: list[tuple[int, int | None]]) -> str:
    workers = ranges({worker for worker, _ in places})
    chips = {chip for _, chip in places if chip is not None}
    return f"worker {workers}" + (f", chip {ranges(chips)}" if chips else "")
