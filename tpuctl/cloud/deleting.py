"""`delete`: what it would take away, and what became of that."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.groups import group_all, group_of
from tpuctl.cloud.journal import COLLECTED, DELETED, Entry, Journal
from tpuctl.cloud.looking import find, look
from tpuctl.cloud.models import ALL_ZONES
from tpuctl.cloud.removing import (
    TIMEOUT_S,
    Removal,
    exit_code_of,
    plan_removal,
    remove_all,
    warnings_of,
)
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.outcome import Outcome, Status
from tpuctl.progress import OnProgress, silent


@dataclass(frozen=True)
class Gone:
    """A TPU that is not there any more, and that the journal remembers."""

    name: str
    zone: str


@dataclass(frozen=True)
class Deletion(Outcome):
    """What is to be deleted, or what became of each; see `Removal` for the words.

    `saved_usd_per_hour` and `freed_chips` leave out what is not known.
    """

    tpus: tuple[Removal, ...]
    already_deleted: tuple[Gone, ...] = ()
    unreachable_zones: tuple[str, ...] = ()
    dry_run: bool = True
    saved_usd_per_hour: float = 0.0
    freed_chips: int = 0
    not_planned: tuple[TpuctlError, ...] = field(default=(), metadata={"internal": True})

    @property
    def status(self) -> Status:
        """`error` when nothing could be done, `partial` when not everything could."""
        if self.failures or self.unreachable_zones:
            done = self.already_deleted or any(not removal.error for removal in self.tpus)
            return "partial" if done else "error"
        return "attention" if self.warnings else "ok"

    @property
    def exit_code(self) -> int:
        """1 when something is still there; 3 when the same command may do better later."""
        return exit_code_of(self.failures)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left alone, what stays behind, and where nobody answered."""
        zones = ", ".join(self.unreachable_zones)
        missed = (f"No answer from {zones}: nothing is deleted there.",) if zones else ()
        return (*missed, *warnings_of(self.tpus))

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """Names that are nowhere, and deletions that failed."""
        return (*self.not_planned, *(r.error for r in self.tpus if r.error))


def plan_deletion(
    api: TpuApi, names: Sequence[str] | None, *, zone: str | None = None, journal: Journal
) -> Deletion:
    """Find what bears the names, and say what deleting it means; changes nothing.

    No names at all mean everything in the zone, or in all zones.

    A name that the journal knows to be gone is no error. A name that nobody knows is one among the
    failures, and raised where it is the only one.
    """
    if names is None:
        return _plan_everything(api, zone)
    planned: list[Removal] = []
    gone: list[Gone] = []
    failures: list[TpuctlError] = []
    for name in dict.fromkeys(names):
        try:
            planned.append(plan_removal(group_of(api, find(api, name, zone)), name=name))
        except NotFoundError as error:
            remembered = _remembered(journal.entries(api), name, zone)
            gone += remembered
            failures += [] if remembered else [error]
        except TpuctlError as error:
            failures.append(error)
    if len(failures) == 1 and not planned and not gone:
        raise failures[0]
    return _summed(Deletion(_once(planned), tuple(gone), not_planned=tuple(failures)))


def _plan_everything(api: TpuApi, zone: str | None) -> Deletion:
    seen = look(api, zone or ALL_ZONES)
    planned = [plan_removal(group) for group in group_all(seen)]
    in_order = sorted(planned, key=lambda removal: (removal.zone, removal.name))
    return _summed(
        Deletion(
            tuple(in_order),
            unreachable_zones=seen.unreachable_zones,
            not_planned=seen.failures,
        )
    )


def delete(
    api: TpuApi,
    plan: Deletion,
    *,
    journal: Journal,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = silent,
) -> Deletion:
    """Delete what was planned, each exactly as it was when it was planned, and wait for its end."""
    ended = remove_all(
        api, plan.tpus, journal=journal, timeout_s=timeout_s, on_progress=on_progress
    )
    return _summed(replace(plan, tpus=ended, dry_run=False))


def _summed(deletion: Deletion) -> Deletion:
    """Add up what is planned, or what has really gone."""
    counted = [r for r in deletion.tpus if r.outcome in ("planned", "deleted")]
    return replace(
        deletion,
        saved_usd_per_hour=round(sum(removal.usd_per_hour or 0 for removal in counted), 4),
        freed_chips=sum(removal.chips or 0 for removal in counted),
    )


def _once(planned: Sequence[Removal]) -> tuple[Removal, ...]:
    """Leave out what goes with something else that is named as well."""
    first: dict[tuple[str, str], Removal] = {}
    for removal in planned:
        first.setdefault((removal.zone, removal.queued_resource or f"node {removal.name}"), removal)
    return tuple(first.values())


def _remembered(entries: Sequence[Entry], name: str, zone: str | None) -> list[Gone]:
    """The TPUs of that name that did exist, and were made by us."""
    existed = (
        entry
        for entry in entries
        if entry.name == name and zone in (None, entry.zone)
        if entry.phase == "ready" or entry.outcome in (COLLECTED, DELETED)
    )
    return [Gone(name, each) for each in dict.fromkeys(entry.zone for entry in existed)]
