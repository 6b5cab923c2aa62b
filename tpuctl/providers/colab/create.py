"""Create a runtime: record it, start its guard, then request it, always with the same key."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from tpuctl.cloud.create import Choice
from tpuctl.cloud.lookup import attempt
from tpuctl.errors import (
    AlreadyExistsError,
    InvalidInputError,
    MissingExtraError,
    StoppedError,
    TpuctlError,
    UnavailableError,
)
from tpuctl.providers.colab import guard
from tpuctl.providers.colab.api import ColabApi, Runtime, accelerator_for, type_of
from tpuctl.providers.colab.records import Record, Records, new_record
from tpuctl.providers.port import HostedPlan


def open_api(plane: str | None) -> ColabApi:
    """Open a control plane; raises MissingExtraError and NotLoggedInError."""
    try:
        from tpuctl.providers.colab._control_planes import open_control_plane
    except ImportError as error:
        if (error.name or "").startswith("tpuctl"):
            raise
        raise MissingExtraError(
            "Talking to Colab", extra="gcp", module=error.name or "google-auth"
        ) from error
    return open_control_plane(plane or None)


def is_known_to(api: ColabApi, record: Record) -> bool:
    """Whether a control plane made the runtime: the two have different names for one."""
    return record.plane in ("", api.plane)


def own_plane(api: ColabApi, record: Record) -> ColabApi:
    """Return the control plane that made a runtime, whichever answers other commands now."""
    return api if is_known_to(api, record) else open_api(record.plane)


def find_runtime(api: ColabApi, record: Record) -> Runtime | None:
    """Find the runtime of a record: by its key until its create was answered, then by its id."""
    api = own_plane(api, record)
    if record.phase == "intended":
        return api.find(record.key)
    return next((each for each in api.list() if each.id == record.runtime_id), None)


@dataclass
class Creation:
    """One create; its lock is held by the caller."""

    api: ColabApi
    records: Records
    plan: HostedPlan
    on_warning: Callable[[str], None]

    def run(
        self, on_interrupt: Callable[[], Choice], then: Callable[[Record], None]
    ) -> tuple[Runtime, Record]:
        """Create or adopt the runtime, and call `then` with its record."""
        name = self.plan.name
        record = self._resume() or self._intend()
        was_running = record.phase == "running"
        try:
            runtime = self._request(record)
            record = self.records.find(name) or record
            then(record)
        except (KeyboardInterrupt, SystemExit) as stop:
            # What ran before this command may have jobs; a signal leaves no time for a question.
            fixed: Choice | None = "leave" if was_running else None
            if isinstance(stop, SystemExit):
                fixed = fixed or "cancel"
            raise self._stopped(record, lambda: fixed or on_interrupt(), stop) from stop
        except UnavailableError as error:
            error.hint = f"{name} may exist: the same command adopts it, or: tpuctl gc"
            raise
        return runtime, record

    def _intend(self) -> Record:
        """Record the request and start its guard, before it is sent."""
        plan = self.plan
        now, units = self.api.clock.now(), plan.balance
        self.records.path(plan.name, "gone").unlink(missing_ok=True)
        record = self.records.save(
            new_record(
                plan.name,
                plan.accelerator_type,
                created=now,
                plane=self.api.plane,
                expires=now + timedelta(seconds=plan.ttl_s) if plan.ttl_s else None,
                max_units=plan.max_units,
                units_before=units.rate_per_hour if units else None,
            )
        )
        guard.start_guard(self.records, plan.name)
        return record

    def _resume(self) -> Record | None:
        """Return the record of an earlier create if it may still have its runtime."""
        plan = self.plan
        record = self.records.find(plan.name)
        if record is None:
            return None
        if record.accelerator_type != plan.accelerator_type:
            raise AlreadyExistsError(
                f"{plan.name} on Colab is a {record.accelerator_type}.",
                hint=f"Choose another name, or first: tpuctl delete {plan.name}",
            )
        found = find_runtime(self.api, record)
        is_old = self.api.clock.now() - record.created >= guard.LANDS_WITHIN
        if found is None and (record.phase == "running" or is_old):
            self.records.forget(record)
            return None
        self.on_warning(f"Resuming an earlier create of {plan.name}, with its limits.")
        guard.start_guard(self.records, plan.name)
        return record

    def _request(self, record: Record) -> Runtime:
        """Create the runtime with the key of the record, and measure its rate."""
        if record.phase == "running" and (there := find_runtime(self.api, record)):
            return there
        plan = self.plan
        _, theirs = accelerator_for(plan.accelerator_type)
        runtime = self._ask(record, theirs)
        self.records.update(record, runtime_id=runtime.id)
        if runtime.accelerator != theirs:
            self.api.delete(runtime.id)
            self.records.forget(record)
            raise InvalidInputError(
                f"Colab gave a {type_of(runtime.accelerator)} instead of a "
                f"{plan.accelerator_type}: it was deleted.",
                hint="The same command again later, or another provider: tpuctl offers",
            )
        rate = guard.measure_rate(self.api, record) or plan.units_per_hour
        self.records.update(record, phase="running", runtime_id=runtime.id, units_per_hour=rate)
        return runtime

    def _ask(self, record: Record, theirs: str) -> Runtime:
        """Send the request; a refusal counts only when nothing was created nevertheless."""
        try:
            return self.api.create(record.key, theirs)
        except UnavailableError:
            raise
        except TpuctlError as refused:
            found = attempt(lambda: find_runtime(self.api, record))
            if isinstance(found, Runtime):
                return found
            # Without an answer the record stays, so that gc asks again.
            if found is None:
                self.records.forget(record)
            raise refused from None

    def _stopped(
        self, record: Record, on_interrupt: Callable[[], Choice], stop: BaseException
    ) -> StoppedError:
        name = record.name
        error = StoppedError(
            f"Interrupted; {name} on Colab may exist, and uses units.",
            hint=f"The same command adopts it, or: tpuctl delete {name}",
        )
        # A second Ctrl-C leaves it.
        with suppress(TpuctlError, KeyboardInterrupt):
            if on_interrupt() == "cancel" and (
                found := find_runtime(self.api, self.records.find(name) or record)
            ):
                self.api.delete(found.id)
                self.records.forget(record)
                error = StoppedError(f"Interrupted; {name} on Colab was deleted.")
        if isinstance(stop, SystemExit) and isinstance(stop.code, int):
            error.exit_code = stop.code
        return error
