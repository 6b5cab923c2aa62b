"""Giving up requests: a request that nobody wants any more is cancelled, and seen to be gone."""

from collections.abc import Iterable

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.journal import Entry, Journal
from tpuctl.cloud.polling import Polling
from tpuctl.cloud.requesting import is_of, read_named
from tpuctl.errors import DeadlineError, TpuctlError

TIMEOUT_S = 300.0
"""How long a cancelled request is watched; after that the journal and `gc` look after it."""


def give_up(
    api: TpuApi,
    journal: Journal,
    entries: Iterable[Entry],
    *,
    outcome: str,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Entry, ...]:
    """Cancel requests, and return those that could not be seen to be gone in time.

    The journal says first that they are unwanted. Identity is read right before every deletion:
    whatever else bears such a name is left alone.
    """
    left = [journal.update(entry, phase="abandoned", outcome=outcome) for entry in entries]
    polling = Polling(api.clock, timeout_s=timeout_s)
    while True:
        looked_at = [_cancel(api, journal, entry) for entry in left]
        left = [entry for entry in looked_at if entry]
        if not left:
            return ()
        try:
            polling.pause("", hint="")
        except DeadlineError:
            return tuple(left)


def _cancel(api: TpuApi, journal: Journal, entry: Entry) -> Entry | None:
    """Ask for the deletion of what a request made, unless that is under way; None when it is gone.

    What the service answers does not matter: the next look shows what it has done.
    """
    try:
        there = read_named(api, entry)
        if there is None or not is_of(there, entry):
            return _missing(api, journal, entry)
        if there.state == "DELETING":
            return entry
        if entry.kind == "queued":
            api.delete_queued_resource(entry.name, zone=entry.zone, force=True)
        else:
            api.delete_node(entry.name, zone=entry.zone)
    except TpuctlError:
        pass
    return entry


def _missing(api: TpuApi, journal: Journal, entry: Entry) -> Entry | None:
    """Believe at once that an accepted request is gone; one just sent may show a moment later."""
    now = api.clock.now()
    if entry.operation or entry.created:
        journal.update(entry, phase="closed", closed=now)
        return None
    if entry.missing_since is None:
        return journal.update(entry, missing_since=now)
    return None
