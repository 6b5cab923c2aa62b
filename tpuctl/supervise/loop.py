"""The loop of a watch: observe, decide, save, act, until the job is done."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tpuctl.cloud.connect import open_cloud
from tpuctl.errors import StoppedError, TpuctlError, WriteError
from tpuctl.providers.port import Provider
from tpuctl.providers.registry import is_control_plane
from tpuctl.supervise.actions import CloudActions, ProviderActions, Supervised
from tpuctl.supervise.decide import POLL_S, decide
from tpuctl.supervise.follow import ConditionTimer
from tpuctl.supervise.messages import WatchResult, describe_step
from tpuctl.supervise.models import (
    AskWorkers,
    CloseAttempt,
    CreateTpu,
    DeleteTpu,
    EndWatch,
    FollowJob,
    JobSpec,
    LaunchJob,
    Observation,
    Step,
    StopJobs,
    TpuObservation,
    Wait,
    WatchEnd,
    WatchState,
)
from tpuctl.supervise.plan import WatchPlan, plan_on_provider, plan_watch
from tpuctl.supervise.state import Scope, StateFile, next_state
from tpuctl.supervise.worker_actions import WorkerActions


def watch(
    actions: WorkerActions,
    state: WatchState,
    spec: JobSpec,
    *,
    store: StateFile,
    note: Callable[[str], None],
    show: Callable[[WatchResult], None] = lambda result: None,
    delete_at_end: bool = False,
) -> WatchResult:
    """Keep the TPU alive and the job running until it is done, or has failed too often.

    `show` gets the result before it is recorded that the watch is over: after a crash the same
    command shows the result again, and does not run the job again.

    Creates TPUs, which costs money. The caller holds `store.lock()`. Resumes an earlier watch,
    however it ended. On Ctrl-C the job keeps running.
    """
    return _Watch(actions, state, spec, store, note, show).run(delete_at_end=delete_at_end)


COUNT_S = 600.0
"""Seconds between two records of what a TPU with a budget has cost while its job is followed."""

MakePlan = Callable[..., WatchPlan]
MakeActions = Callable[..., Any]


def open_target(
    owner: Provider,
    name: str,
    *,
    project: str | None = None,
    on_warning: Callable[[str], None] = lambda text: None,
    kinds: tuple[MakeActions, MakeActions] = (CloudActions, ProviderActions),
) -> tuple[StateFile, MakePlan, MakeActions]:
    """Return the state file of a watch, and how to plan it and to act on its provider.

    `kinds` are the actions on a Cloud TPU and on any other provider. Raises UnsupportedError.
    """
    if is_control_plane(owner):
        cloud = open_cloud(project, control_plane=owner.abilities.name, on_warning=on_warning)
        plan = partial(plan_watch, cloud, name, check=owner.abilities.check)
        return StateFile(cloud.api, name), plan, partial(kinds[0], cloud)
    if not isinstance(owner, Supervised):
        raise owner.abilities.refuse("watch", name=name)
    store = StateFile(Scope(owner.abilities.name, owner.endpoint), name)
    return store, partial(plan_on_provider, owner, name), partial(kinds[1], owner)


@dataclass
class _Watch:
    _actions: WorkerActions
    _state: WatchState
    _spec: JobSpec
    _store: StateFile
    _note: Callable[[str], None]
    _show: Callable[[WatchResult], None]

    def __post_init__(self) -> None:
        self._seen = Observation(TpuObservation("unknown"))
        now = self._actions.clock.now
        self._trouble, self._failing, self._coming = (ConditionTimer(now) for _ in range(3))
        self._said, self._counted = "", now()

    def run(self, *, delete_at_end: bool) -> WatchResult:
        while True:
            self._observe()
            step = decide(self._state, self._spec, self._seen)
            self._tell(step)
            self._save(step)
            if isinstance(step, EndWatch):
                return self._end(step, delete_at_end)
            self._act(step)

    def _observe(self) -> None:
        tpu = self._actions.observe(self._state)
        before = self._seen.tpu
        past_s = self._coming.seconds(tpu.kind == "coming")
        self._seen = replace(self._seen, tpu=replace(tpu, past_s=past_s))
        if tpu.kind != "usable":
            self._trouble.seconds(False)
        if (tpu.kind, tpu.id) != (before.kind, before.id):
            # Answers and errors of the previous TPU's workers say nothing about this one.
            refused = None if before.kind == "usable" else self._seen.refused
            self._seen = replace(self._seen, workers=None, refused=refused, hung=None)

    def _save(self, step: Step) -> None:
        state = next_state(self._state, step, self._seen, self._actions.clock.now())
        if state != self._state:
            self._state = state
            self._store.save(state, self._spec)

    def _act(self, step: Step) -> None:
        try:
            self._do(step)
        except StoppedError:
            raise
        except TpuctlError as error:
            refusals = self._seen.refusals + 1
            self._seen = replace(self._seen, refused=error, refusals=refusals, workers=None)
            self._measure(is_troubled=True)

    def _do(self, step: Step) -> None:
        match step:
            case CreateTpu() | DeleteTpu() | LaunchJob():
                self._change(step)
                self._seen = replace(self._seen, refused=None, refusals=0)
                self._trouble.seconds(False)
            case Wait():
                self._actions.clock.sleep(step.seconds)
                self._seen = replace(self._seen, refused=None)
            case AskWorkers():
                workers = self._actions.ask(self._state)
                self._seen = replace(self._seen, workers=workers)
                self._measure(is_troubled=bool(workers.errors or workers.unfit))
                return
            case StopJobs():
                self._actions.stop_jobs(step.jobs)
            case FollowJob():
                self._follow()
                return
            case CloseAttempt():
                if self._seen.tpu.kind == "usable" and self._state.last:
                    self._actions.show_rest(self._state.last.job)
        self._seen = replace(self._seen, workers=None, hung=None)

    def _change(self, step: CreateTpu | DeleteTpu | LaunchJob) -> None:
        match step:
            case CreateTpu():
                self._actions.create(self._state)
                self._state = replace(self._state, creating=False)
            case DeleteTpu():
                self._actions.delete(self._state)
            case LaunchJob():
                self._actions.launch(self._spec, step)

    def _follow(self) -> None:
        self._measure(is_troubled=False)
        limit_s = self._spec.bad_host_after_s
        result = self._actions.follow(
            self._state,
            self._spec,
            poll_s=POLL_S,
            give_up_lost=lambda is_lost: self._trouble.seconds(is_lost) >= limit_s,
            on_seen=self._count_until,
        )
        self._seen = replace(self._seen, workers=None, hung=result.hung)

    def _count_until(self, seen: datetime) -> None:
        """Count what the TPU has cost until it was last seen: it may be gone by the next look.

        With a budget also on disk now and then: a kill must not forget the hours of a long job.
        """
        if self._state.tpu is None:
            return
        self._state = replace(self._state, tpu=replace(self._state.tpu, seen=seen))
        is_due = seen - self._counted >= timedelta(seconds=COUNT_S)
        if is_due and self._state.recipe.max_usd is not None:
            self._counted = seen
            # On a full disk the job runs on.
            with suppress(WriteError):
                self._store.save(self._state, self._spec)

    def _measure(self, *, is_troubled: bool) -> None:
        """Measure for how long the workers have been in trouble, and the job failing."""
        workers, failing_s = self._seen.workers, 0.0
        if workers:
            failing_s = self._failing.seconds(any(job.failure for job in workers.job.values()))
        trouble_s = self._trouble.seconds(is_troubled)
        self._seen = replace(self._seen, trouble_s=trouble_s, failing_s=failing_s)

    def _tell(self, step: Step) -> None:
        text = describe_step(step, self._state, self._seen)
        if text and text != self._said:
            self._note(text)
        self._said = text or self._said

    def _end(self, step: EndWatch, delete_at_end: bool) -> WatchResult:
        if self._state.end is None:
            self._state = replace(self._state, end=self._new_end(step.error))
            # From here on, the same command after a crash only repeats the deletion.
            self._store.save(self._state, self._spec)
        state, seen, end = self._state, self._seen, self._state.end
        assert end
        last = state.last
        exists = not set(end.tpu_ids).isdisjoint(self._actions.ids)
        if exists and delete_at_end:
            exists = not self._delete_at_end()
        if delete_at_end and not exists and end.tail and step.error:
            step.error.hint = "The rest of its log was deleted with the TPU (--delete)."
        result = WatchResult(
            name=state.name,
            zone=seen.tpu.zone if exists else None,
            job=last.job if last else None,
            attempts=state.attempts,
            crashes=state.crashes,
            usd_per_hour=self._price_left(exists),
            usd_so_far=round(state.usd_so_far, 2),
            tail=end.tail,
            error=step.error,
        )
        try:
            self._show(result)
        finally:
            self._record_end()
        return result

    def _price_left(self, exists: bool) -> float | None:
        """Return what the TPU costs an hour from now on; None where it no longer exists."""
        seen, known = self._seen.tpu, self._seen.tpu.known or self._state.tpu
        if not exists or known is None:
            return None
        # Of a slice that has lost a VM, the others still cost money, and only then is it known.
        return 0.0 if seen.kind == "dead" and not seen.known else known.usd_per_hour

    def _record_end(self) -> None:
        """Record that the watch is over; a failure does not change a result that was shown."""
        try:
            self._store.save(self._state, self._spec, is_over=True)
        except WriteError as error:
            self._note(f"Warning: {error} The same command again shows this result again.")

    def _new_end(self, error: TpuctlError | None) -> WatchEnd:
        last, kind = self._state.last, self._seen.tpu.kind
        is_crash = kind == "usable" and last and last.cause == "crash" and error
        tail = self._actions.tail(last) if is_crash and last else ()
        # Another process is deleting it already.
        ids = () if kind == "leaving" else self._actions.ids
        if error is None:
            return WatchEnd(ids, tail)
        return WatchEnd(ids, tail, error.code, str(error), error.hint, error.exit_code)

    def _delete_at_end(self) -> bool:
        """Delete the TPU; a failure is only a note, so that it does not hide how the job ended."""
        zone = self._seen.tpu.zone
        self._note(f"Deleting {self._state.name}{f' in {zone}' if zone else ''}.")
        try:
            self._actions.delete(self._state)
        except StoppedError:
            raise
        except TpuctlError as error:
            self._note(f"Error: {error}")
            return False
        return True
