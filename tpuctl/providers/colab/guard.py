"""The guard of a runtime: a separate process that deletes it in time.

Colab itself has no time to live. So this process outlives the command and the terminal that
started it, and deletes the runtime at `--ttl`, when the budget of units is spent, or when its job
has ended and the output was fetched. It needs this machine to be on: else only Colab's own limit on
idle runtimes is left. While a job runs, it tells Colab that the runtime is in use.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from tpuctl.errors import TpuctlError
from tpuctl.providers.colab.api import ColabApi
from tpuctl.providers.colab.records import TAKEN_AWAY, Record, Records
from tpuctl.start_python import child_environment, python_command
from tpuctl.storage.local import ensure_folder, is_locked

LOOK_S = 60.0
KEEP_ALIVE_S = 300.0
LANDS_WITHIN = timedelta(minutes=5)
"""How long after a create whose answer was lost its runtime may still appear."""

IGNORED = (signal.SIGHUP, signal.SIGINT)
LOCK = "guard"
FETCHED = "the output was fetched"


def has_guard(records: Records, name: str) -> bool:
    """Whether a guard of this runtime runs."""
    return is_locked(records.lock(name, LOCK))


def start_guard(records: Records, name: str) -> None:
    """Start the guard of a runtime in its own session, unless one runs."""
    if has_guard(records, name):
        return
    ensure_folder(records.folder, private=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    os.posix_spawn(
        sys.executable,
        python_command("tpuctl.providers.colab.run_guard", name),
        child_environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(records.path(name, "guard.log")), flags, 0o600),
        ],
        setsid=True,
        # From its first moment on: closing a terminal must not end it.
        setsigmask=IGNORED,
    )


def why_delete(record: Record, now: datetime, *, has_ended: bool = False) -> str | None:
    """Return why a runtime must be deleted now; None while it may stay."""
    if record.expires and record.expires <= now:
        return "its time to live is over"
    spent = units_spent(record, now)
    if record.max_units is not None and spent is not None and spent >= record.max_units:
        return f"it has used {spent:.2f} of {record.max_units:g} units"
    if record.until_done and record.is_home and has_ended:
        return f"its job {record.until_done} has ended and {FETCHED}"
    return None


def units_spent(record: Record, now: datetime) -> float | None:
    """Return the units that a runtime has used; None if its rate is unknown."""
    if record.units_per_hour is None:
        return None
    return record.units_per_hour * max(0.0, (now - record.created).total_seconds()) / 3600


def measure_rate(api: ColabApi, record: Record) -> float | None:
    """Return the units per hour that a runtime has added to those of the account, if known."""
    with suppress(TpuctlError):
        after = api.units().per_hour
        if after is not None and record.units_before is not None:
            return round(max(0.0, after - record.units_before), 4) or None
    return None


class Guard:
    """One guard; `job_states` asks for the states of the jobs by name, `fetch` gets the output."""

    def __init__(
        self,
        records: Records,
        api: ColabApi,
        name: str,
        job_states: Callable[[Record], dict[str, str]],
        fetch: Callable[[Records, Record], Record],
    ) -> None:
        self._records, self._api, self._name = records, api, name
        self._job_states, self._fetch = job_states, fetch
        self._kept_alive: datetime | None = None

    def check(self) -> bool:
        """Check once, and do what is due; False when there is nothing left to guard."""
        record = self._records.find(self._name)
        if record is None:
            return False
        runtimes = {each.id for each in self._api.list()}
        now = self._api.clock.now()
        if record.phase == "intended":
            return self._find_intended(record, now)
        if record.runtime_id not in runtimes:
            self._records.forget(record, TAKEN_AWAY)
            return False
        if record.max_units is not None and record.units_per_hour is None:
            record = self._with_rate(record)
        states: dict[str, str] = {}
        with suppress(TpuctlError):
            states = self._job_states(record)
        has_ended = states.get(record.until_done or "") not in (None, "running")
        if has_ended and not why_delete(record, now):
            with suppress(TpuctlError):
                record = self._fetch(self._records, record)
        if why := why_delete(record, now, has_ended=has_ended):
            return self._delete(record, why)
        last = self._kept_alive
        is_due = last is None or now - last >= timedelta(seconds=KEEP_ALIVE_S)
        if "running" in states.values() and is_due:
            self._api.keep_alive(record.runtime_id)
            self._kept_alive = now
        return True

    def _with_rate(self, record: Record) -> Record:
        """Measure what the create could not: without a rate no budget is ever spent."""
        rate, now = measure_rate(self._api, record), self._records.find(self._name)
        if rate is None or now is None or now.key != record.key:
            return record
        return self._records.update(now, units_per_hour=rate)

    def _find_intended(self, record: Record, now: datetime) -> bool:
        """Look for the runtime of a create that has not been answered yet."""
        if self._records.is_being_created(self._name):
            return True
        found = self._api.find(record.key)
        if found is None:
            if now - record.created < LANDS_WITHIN:
                return True
            self._records.forget(record)
            return False
        if why := why_delete(record, now):
            return self._delete(self._records.update(record, runtime_id=found.id), why)
        return True

    def _delete(self, record: Record, why: str) -> bool:
        self._records.expect_end(record, why)
        self._api.delete(record.runtime_id)
        if record.runtime_id in {each.id for each in self._api.list()}:
            return True
        sys.stderr.write(f"{self._api.clock.now():%F %T} deleted {record.runtime_id}: {why}\n")
        self._records.forget(record, why)
        return False


def next_check_s(record: Record | None, now: datetime) -> float:
    """Return the seconds until the next check: not later than a deadline."""
    if record is None or record.expires is None:
        return LOOK_S
    return max(1.0, min(LOOK_S, (record.expires - now).total_seconds()))
