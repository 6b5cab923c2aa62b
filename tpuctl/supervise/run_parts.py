"""Run the parts of `watch --on`: a TPU that is reached over SSH, or a batch session."""

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tpuctl.clock import Clock, WallClock
from tpuctl.errors import (
    AlreadyExistsError,
    DeadlineError,
    MissingExtraError,
    NoCapacityError,
    NotFoundError,
    NotLoggedInError,
    QuotaExceededError,
    StoppedError,
    TpuctlError,
    TryAgainError,
    UnavailableError,
    WriteError,
    WrongStateError,
)
from tpuctl.providers.port import Login, Provider
from tpuctl.providers.registry import is_control_plane, open_provider
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, Direction
from tpuctl.remote.output import Sink
from tpuctl.storage import open_storage
from tpuctl.supervise.actions import CloudActions, ProviderActions
from tpuctl.supervise.loop import open_target, watch
from tpuctl.supervise.messages import WatchResult
from tpuctl.supervise.models import JobSpec, KnownTpu, LaunchJob, TpuObservation, WatchState
from tpuctl.supervise.plan import WatchOptions
from tpuctl.supervise.relay import (
    PAUSE_S,
    End,
    Go,
    JobPart,
    Ledger,
    LedgerFile,
    PartEnd,
    Pause,
    RelayResult,
    next_step,
    sum_up,
)
from tpuctl.supervise.worker_actions import WorkerActions, attempt_variables
from tpuctl.units import format_duration

CHECKPOINTS = "TPUCTL_CHECKPOINTS"
"""Variable of the job: the folder for its checkpoints, below the one that it runs in."""

FETCH_S = 60.0
_MAX_LOST = 5
_USERS_TURN = (AlreadyExistsError, MissingExtraError, NotLoggedInError, WriteError)


@dataclass(frozen=True)
class Checkpoints:
    """Where the checkpoints are kept: the folder here, and the bucket if that is the place."""

    folder: Path
    bucket: str | None = None

    def pull(self) -> None:
        """Fetch what the bucket has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.bucket:
            stored = open_storage(self.bucket)
            for each in stored.list():
                stored.fetch(each.name, self.folder / each.name)

    def push(self) -> None:
        """Store what is here in the bucket."""
        if not self.bucket:
            return
        stored = open_storage(self.bucket)
        there = {each.name: each for each in stored.list()}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file():
                stored.write(name, path, over=there.get(name))


@dataclass(frozen=True)
class RelayJob:
    """The job: `sent` are local files and folders with their places in the job's folder."""

    spec: JobSpec
    sent: tuple[tuple[str, str], ...]
    checkpoints: Checkpoints
    options: WatchOptions
    max_units: float | None = None
    project: str | None = None


class _PartActions(WorkerActions):
    """A part ends where a watch would create another TPU; its checkpoints are fetched in time."""

    def prepare(self, job: RelayJob, part: JobPart, on_seen: Callable[[KnownTpu], None]) -> None:
        """Take the job and the part, and the callback for what the TPU has used."""
        self._job, self._part, self._on_seen = job, part, on_seen
        self.left, self.may_come, self.is_home = "", False, False
        self._lost = 0
        # A look that began while the job was followed may still run when it has ended: its copy
        # must not replace a later one.
        self._fetching = threading.Lock()
        self._fetched: datetime | None = None
        self._is_usable = False

    def observe(self, state: WatchState) -> TpuObservation:
        """Count what it uses, and fetch checkpoints now and then."""
        seen = super().observe(state)
        self._is_usable = seen.kind == "usable"
        if seen.known:
            self._on_seen(seen.known)
        if self._is_usable and state.open and state.open.launched:
            now = self.clock.now()
            if self._fetched is None or now - self._fetched >= timedelta(seconds=FETCH_S):
                self.fetch()
                self._fetched = now
        if seen.expired:
            self.left = seen.why_gone or "its time to live was over"
            return replace(seen, expired=False, on_purpose=False)
        return seen

    def create(self, state: WatchState) -> None:
        """Create the TPU of this part, once."""
        if state.attempts:
            last = state.attempts[-1].reason
            self.left = self.left or last
            raise WrongStateError(f"{state.name} is gone: {self.left}.")
        try:
            super().create(state)
        except StoppedError:
            raise
        except TpuctlError as error:
            self._lost += isinstance(error, UnavailableError)
            if isinstance(error, UnavailableError) and self._lost < _MAX_LOST:
                raise
            self.left, self.may_come = str(error), isinstance(error, TryAgainError)
            raise WrongStateError(str(error)) from error

    def launch(self, spec: JobSpec, step: LaunchJob) -> None:
        """Send the job's files and the checkpoints, and start it."""
        kept = self._job.checkpoints.folder
        sent = [*self._job.sent, *([(str(kept), kept.name)] if any(kept.iterdir()) else [])]
        for path, place in sent:
            self.copy_code(
                path,
                f"{spec.folder}/{place}" + ("/" if Path(path).is_file() else ""),
                include_secrets=spec.include_secrets,
            )
        self.start(spec, step)

    def variables(self, step: LaunchJob) -> Mapping[str, str]:
        """Count the attempts of all parts."""
        return attempt_variables(self._part.number + step.number - 1)

    def delete(self, state: WatchState) -> None:
        """Fetch the checkpoints before they are gone with the TPU."""
        error = self.fetch() if self._is_usable else None
        if error and state.end:
            raise error
        self.is_home = self._is_usable
        super().delete(state)

    def fetch(self) -> TpuctlError | None:
        """Fetch the checkpoints from the first worker; none yet is fine."""
        kept, spec = self._job.checkpoints, self._job.spec
        try:
            hosts, access = self._workers()
            place = f"{spec.folder}/{kept.folder.name}/"
            plan = CopyPlan(Direction.DOWN, None, place, str(kept.folder))
            with self._fetching:
                done = copy(hosts[:1], access, plan)
                if done.failures and not isinstance(done.failures[0], NotFoundError):
                    return done.failures[0]
                kept.push()
        except TpuctlError as error:
            return error
        return None


class _CloudPart(_PartActions, CloudActions):
    """A part on a Cloud TPU."""


class _ProviderPart(_PartActions, ProviderActions):
    """A part on another provider that is reached over SSH."""


class Relay:
    """The parts of one command; `talk` are the sink, the notes and the progress of a watch."""

    def __init__(
        self,
        ledger: Ledger,
        places: tuple[str, ...],
        job: RelayJob,
        *,
        store: LedgerFile,
        sink: Sink,
        note: Callable[[str], None],
        **talk: Any,
    ) -> None:
        self._ledger, self._places, self._job, self._store = ledger, places, job, store
        self._sink, self._note, self._talk = sink, note, talk
        self._clock: Clock = WallClock()
        self._may_exist = False

    def run(self) -> RelayResult:
        """Run part after part until the job is done or given up; costs money."""
        while True:
            most = self._job.spec.max_crashes
            step = next_step(self._ledger, self._places, max_crashes=most)
            match step:
                case End():
                    self._ledger = replace(self._ledger, is_over=True)
                    self._store.save(self._ledger)
                    kept = self._job.checkpoints
                    return sum_up(self._ledger, kept.bucket or str(kept.folder), step.error)
                case Pause():
                    self._note(f"No TPU anywhere; asking again in {format_duration(PAUSE_S)}.")
                    self._clock.sleep(PAUSE_S)
                    # A round without a TPU is not history: only what ran or failed is.
                    kept_parts = tuple(part for part in self._ledger.legs if part.end != "refused")
                    self._ledger = replace(self._ledger, legs=kept_parts)
                    self._run(Go(0))
                case Go():
                    self._run(step)

    def _run(self, step: Go) -> None:
        name, _, kind = self._places[step.place].partition(":")
        self._may_exist = self._ledger.open is not None
        try:
            provider = open_provider(name, project=self._job.project, on_warning=self._note)
            self._clock = getattr(provider, "clock", self._clock)
            part = self._ledger.open or self._new_part(name, kind)
            self._job.checkpoints.pull()
            is_batch = provider.abilities.reachable == "batch"
            part = self._run_batch(part) if is_batch else self._run_on_workers(provider, part)
        except StoppedError:
            raise
        except TpuctlError as error:
            if self._may_exist and self._asks_again(name, error):
                return
            part = self._ledger.open or self._numbered(name, kind, self._clock.now())
            hint = f" {error.hint}" if error.hint else ""
            may_come = isinstance(error, TryAgainError)
            part = replace(part, end="refused", reason=f"{error}{hint}", may_come=may_come)
        self._keep(part)
        why = f": {part.reason}" if part.reason else ""
        self._note(f"Part {part.number}, on {part.provider}: {part.end}{why}")

    def _asks_again(self, provider: str, error: TpuctlError) -> bool:
        """Wait for a provider where the open part may run: elsewhere it would run a second time.

        Raises the error where only the user can help; the same command then resumes the part.
        """
        if isinstance(error, _USERS_TURN):
            raise error
        if not isinstance(error, TryAgainError) or isinstance(error, NoCapacityError):
            return False
        self._note(f"{provider}: {error} Asking again in {format_duration(PAUSE_S)}.")
        self._clock.sleep(PAUSE_S)
        return True

    def _numbered(self, provider: str, kind: str, now: datetime) -> JobPart:
        number = max((part.number for part in self._ledger.legs), default=0) + 1
        return JobPart(number, provider, kind, f"watch-{self._ledger.id}-{number}", now)

    def _new_part(self, name: str, kind: str) -> JobPart:
        return self._keep(self._numbered(name, kind, self._clock.now()))

    def _keep(self, part: JobPart) -> JobPart:
        self._ledger = self._ledger.with_part(part)
        self._store.save(self._ledger)
        return part

    def _count(self, known: KnownTpu) -> None:
        """Note what the open part has used until now, so that a crash does not lose it."""
        part = self._ledger.open
        if part:
            hours = max(0.0, (known.seen - known.created).total_seconds()) / 3600
            rates = known.units_per_hour, known.usd_per_hour
            units, usd = (None if rate is None else round(rate * hours, 4) for rate in rates)
            # A full disk must not stop the job.
            with suppress(WriteError):
                self._keep(replace(part, hours=round(hours, 4), units=units, usd=usd))

    def _options(self, part: JobPart) -> WatchOptions:
        """Return the options for a part's TPU, with what is left of the budget."""
        given = replace(self._job.options, accelerator_type=part.accelerator_type)
        if given.max_usd is not None:
            others = (each for each in self._ledger.legs if each.number != part.number)
            left = given.max_usd - sum(each.usd or 0.0 for each in others)
            if left <= 0:
                raise QuotaExceededError(f"The budget of {given.max_usd:g} dollars is spent.")
            given = replace(given, max_usd=left)
        return given

    def _run_on_workers(self, provider: Provider, part: JobPart) -> JobPart:
        job = self._job
        most = job.spec.max_crashes - self._ledger.crashes
        spec = replace(job.spec, max_crashes=most)
        store, make_plan, act_on = open_target(
            provider, part.name, project=job.project, kinds=(_CloudPart, _ProviderPart)
        )
        options = replace(self._options(part), provider=part.provider)
        if not is_control_plane(provider):
            options = replace(
                options, zones=(), max_usd=None, spot=None, queued=None, provider=None
            )
        plan = make_plan(options, spec, store=store)
        state = plan.watch_state
        if not is_control_plane(provider):
            state = replace(state, recipe=replace(state.recipe, max_units=job.max_units))
        actions = act_on(Login(), sink=self._sink, note=self._note, **self._talk)
        self._clock = actions.clock
        actions.prepare(job, part, self._count)
        with store.lock():
            ended = watch(actions, state, spec, store=store, note=self._note, delete_at_end=True)
        return _concluded(self._ledger.open or part, ended, actions)

    def _run_batch(self, part: JobPart) -> JobPart:
        """Run the job in a session on Kaggle; a run that is known is followed to its end."""
        from tpuctl.providers.batch import RunStore
        from tpuctl.providers.kaggle.client import KaggleClient
        from tpuctl.providers.kaggle.follow import finish, follow
        from tpuctl.providers.kaggle.runs import PREFIX, plan_run, submit
        from tpuctl.providers.pack import HostedJob

        client, store, kept = KaggleClient(), RunStore(), self._job.checkpoints.folder
        self._clock, name = client.clock, f"{PREFIX}{part.name}"
        run = store.find(name)
        if run is None or not run.version:
            spec = self._job.spec
            sources = [*self._job.sent, *([(str(kept), kept.name)] if any(kept.iterdir()) else [])]
            batch_job = HostedJob(
                Path(spec.command[-1]),
                {"command": spec.command, "env": {**spec.env, **attempt_variables(part.number)}},
                tuple((Path(path), place) for path, place in sources),
                limit_s=self._job.options.ttl_s,
                job=part.name,
            )
            planned = plan_run(client, store, batch_job)
            part = self._keep(replace(part, hours_before=client.quota().used_hours))
            self._may_exist = True
            run = submit(client, store, planned, self._note, name=name)
        ended = follow(client, store, run, sink=self._sink, note=self._note)
        done = finish(client, store, run, ended, on_progress=lambda progress: None)
        if (fetched := Path(run.out) / kept.name).is_dir():
            shutil.copytree(fetched, kept, dirs_exist_ok=True)
            self._job.checkpoints.push()
        used = max(0.0, client.quota().used_hours - part.hours_before)
        part = replace(part, hours=round(used, 4), usd=0.0, exit_code=done.returncode)
        if not done.failures:
            return replace(part, end="done")
        error = done.failures[0]
        end: PartEnd = "ended"
        if isinstance(error, TryAgainError) and not isinstance(error, DeadlineError):
            end = "refused"
        is_crash = done.returncode and not isinstance(error, TryAgainError)
        return replace(
            part,
            end="crash" if is_crash else end,
            crashes=int(bool(is_crash)),
            reason=str(error),
            may_come=end == "refused",
        )


def _concluded(part: JobPart, ended: WatchResult, actions: _PartActions) -> JobPart:
    last, error = (ended.attempts[-1] if ended.attempts else None), ended.error
    end: PartEnd = "ended" if last else "refused"
    if error is None and not actions.is_home:
        # The next one resumes from the last checkpoint that is here.
        return replace(
            part, end="ended", reason="it was gone before its last checkpoints were fetched"
        )
    if error is None:
        end = "done"
    elif not actions.left and last and last.cause in ("crash", "stopped"):
        end = last.cause
    reason = actions.left or (last.reason if last else "") or str(error or "")
    return replace(
        part,
        end=end,
        reason=reason if error else "",
        exit_code=last.exit_code if last else None,
        crashes=ended.crashes,
        may_come=actions.may_come,
    )
