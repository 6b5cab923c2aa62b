"""What a watch decides, given what it remembers and sees: pure, so every turn can be tried."""

import enum
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.cloud.plan import CreateOptions
from tpuctl.errors import (
    CommandFailedError,
    CommandNotFoundError,
    NoCapacityError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    TpuctlError,
    UnavailableError,
    UnknownLoginError,
    WorkerError,
    WorkerUnfitError,
    WorkerUnreachableError,
)
from tpuctl.supervise.decide import MAX_REPLACED, POLL_S, REPAIR_S, SETTLE_S, decide
from tpuctl.supervise.models import (
    AskWorkers,
    Cause,
    CloseAttempt,
    CreateTpu,
    DeleteTpu,
    EndWatch,
    FollowJob,
    ForgetTpu,
    JobAttempt,
    JobObservation,
    JobSpec,
    KnownTpu,
    LaunchJob,
    Observation,
    PendingDeletion,
    RunningAttempt,
    Silence,
    Step,
    StopJobs,
    TpuObservation,
    Wait,
    WatchState,
    WorkersObservation,
)
from tpuctl.supervise.state import next_state

NOW = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
ZONE = "us-central1-a"
WATCH = "0123456789abcdef"
RECIPE = CreateOptions("t1", "v5litepod-16", (ZONE,), spot=True)
SPEC = JobSpec(("python", "train.py"), max_crashes=3, hang_after_s=300.0)
OPEN = RunningAttempt(1, "watch-01234567-1", "7", ZONE, NOW, launched=True)
TPU = KnownTpu("7", ZONE, NOW, NOW, "c", made=True, proven=True)
EMPTY = WatchState(WATCH, "t1", RECIPE)
SEEN = replace(EMPTY, tpu=TPU)
BUSY = replace(SEEN, open=OPEN, serial=1)
USABLE = TpuObservation("usable", "READY", "7", ZONE, known=TPU, is_ours=True)
NONE = TpuObservation("none", "gone")
DEAD = TpuObservation("dead", "PREEMPTED", "7", ZONE)
GOOD = WorkersObservation(2)
RUNS = JobObservation("running")
FAILED = JobObservation("finished", 3, CommandFailedError("The job ended with exit code 3."))
DONE = JobObservation("finished", 0)
REFUSES = WorkerUnreachableError("worker 1 refuses connections.")
UNFIT = WorkerUnfitError("worker 1 is not fit for a job: it shows 3 of 4 chips.")


def attempt(
    cause: Cause, number: int = 1, tpu_id: str = "7", code: int | None = None
) -> JobAttempt:
    job = f"watch-01234567-{number}"
    return JobAttempt(number, cause, "why", job, tpu_id, ZONE, NOW, NOW, code, 1)


def after(*attempts: JobAttempt, **changes: object) -> WatchState:
    return replace(SEEN, attempts=attempts, serial=len(attempts), **changes)  # type: ignore[arg-type]


def on(jobs: dict[int, JobObservation], **changes: object) -> Observation:
    workers = replace(GOOD, job=jobs)
    return replace(Observation(USABLE, workers), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "seen", "step"),
    [
        pytest.param(EMPTY, Observation(NONE), CreateTpu(), id="there is none"),
        pytest.param(
            BUSY, Observation(NONE), CloseAttempt("preempted", "it vanished"), id="it vanished"
        ),
        pytest.param(SEEN, Observation(NONE), CreateTpu(), id="none any more"),
        pytest.param(
            BUSY, Observation(DEAD), CloseAttempt("preempted", "it was PREEMPTED"), id="preempted"
        ),
        pytest.param(SEEN, Observation(DEAD), DeleteTpu("it was PREEMPTED"), id="dead"),
        pytest.param(SEEN, Observation(USABLE), AskWorkers(), id="usable"),
        pytest.param(SEEN, on({}), LaunchJob(1, "watch-01234567-1"), id="first"),
        pytest.param(
            after(attempt("preempted")), on({}), LaunchJob(2, "watch-01234567-2"), id="second"
        ),
        pytest.param(BUSY, on({0: RUNS, 1: RUNS}), FollowJob(), id="it runs"),
        pytest.param(BUSY, on({0: DONE, 1: RUNS}), FollowJob(), id="it runs on worker 1 still"),
        pytest.param(
            BUSY, on({0: DONE, 1: DONE}), CloseAttempt("done", "", exit_code=0), id="it is done"
        ),
        pytest.param(after(attempt("done")), on({}), EndWatch(), id="nothing more to do"),
        pytest.param(
            BUSY,
            on({0: RUNS, 1: FAILED}, failing_s=SETTLE_S),
            CloseAttempt("crash", "the job ended with exit code 3", exit_code=3, worker=1),
            id="a crash",
        ),
        pytest.param(
            BUSY,
            on({0: JobObservation("lost"), 1: RUNS}),
            CloseAttempt("maintenance", "worker 0 restarted, or lost its job", worker=0),
            id="restarted",
        ),
        pytest.param(
            replace(BUSY, attempts=(attempt("maintenance"),) * 2),
            on({0: JobObservation("lost"), 1: RUNS}),
            CloseAttempt("bad_host", "worker 0 keeps losing its job", worker=0),
            id="restarted again and again",
        ),
        pytest.param(
            BUSY,
            on({0: JobObservation("stopped"), 1: RUNS}),
            CloseAttempt("stopped", "the job was stopped on worker 0"),
            id="stopped by somebody",
        ),
        pytest.param(
            BUSY,
            on({0: RUNS, 1: RUNS}, hung=Silence((1,), 320.0)),
            CloseAttempt("crash", "worker 1 hung: no output for 5m 20s", worker=1),
            id="hung",
        ),
        pytest.param(
            BUSY,
            on({0: RUNS}),
            CloseAttempt("maintenance", "the job disappeared from worker 1"),
            id="a disk is gone",
        ),
        pytest.param(
            replace(BUSY, open=replace(OPEN, launched=False)),
            on({0: RUNS}),
            StopJobs((OPEN.job,)),
            id="begun on some workers only",
        ),
        pytest.param(
            replace(BUSY, open=replace(OPEN, launched=False)),
            on({}),
            LaunchJob(1, OPEN.job),
            id="begun nowhere",
        ),
        pytest.param(
            after(attempt("crash")),
            replace(on({}), workers=replace(GOOD, remains=("watch-01234567-1",))),
            StopJobs(("watch-01234567-1",)),
            id="the rest of a slice is stopped before it begins again",
        ),
        pytest.param(
            replace(BUSY, open=replace(OPEN, tpu_id="6")),
            Observation(USABLE),
            CloseAttempt("preempted", "another TPU has its name now"),
            id="another TPU",
        ),
        pytest.param(
            replace(SEEN, removing=PendingDeletion("7", "why")),
            Observation(DEAD),
            DeleteTpu("why"),
            id="still to be deleted",
        ),
        pytest.param(
            replace(SEEN, removing=PendingDeletion("7", "why")),
            Observation(NONE),
            ForgetTpu(),
            id="deleted",
        ),
        pytest.param(
            replace(SEEN, removing=PendingDeletion("6", "why")),
            Observation(USABLE),
            ForgetTpu(),
            id="a new one",
        ),
        pytest.param(
            replace(EMPTY, creating=True),
            Observation(TpuObservation("coming", "CREATING", "7", ZONE, is_ours=True)),
            CreateTpu(),
            id="go on with making it",
        ),
        pytest.param(
            replace(BUSY),
            Observation(TpuObservation("coming", "REPAIRING", "7", ZONE, past_s=REPAIR_S)),
            CloseAttempt("maintenance", "it was REPAIRING for 1h 00m"),
            id="maintenance for ever",
        ),
        pytest.param(
            SEEN,
            Observation(TpuObservation("coming", "REPAIRING", "7", ZONE, past_s=REPAIR_S)),
            DeleteTpu("it was REPAIRING for 1h 00m", is_bad_host=True),
            id="replaced after that",
        ),
    ],
)
def test_the_next_step(state: WatchState, seen: Observation, step: Step) -> None:
    assert decide(state, SPEC, seen) == step


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        pytest.param(
            BUSY, Observation(TpuObservation("unknown", error=UnavailableError("?"))), id="asleep"
        ),
        pytest.param(
            BUSY, Observation(TpuObservation("coming", "REPAIRING", "7", ZONE)), id="maintenance"
        ),
        pytest.param(
            EMPTY, Observation(TpuObservation("coming", "WAITING", in_line=True)), id="in line"
        ),
        pytest.param(
            BUSY, Observation(TpuObservation("leaving", "DELETING", "7", ZONE)), id="leaving"
        ),
        pytest.param(BUSY, on({0: RUNS, 1: FAILED}), id="is it a crash or a preemption?"),
        pytest.param(
            BUSY, replace(on({}), workers=replace(GOOD, errors={1: REFUSES})), id="unreachable"
        ),
        pytest.param(
            SEEN, replace(on({}), workers=replace(GOOD, unfit={1: UNFIT})), id="unfit and ours"
        ),
        pytest.param(
            SEEN, Observation(NONE, refused=NoCapacityError("none left")), id="no capacity"
        ),
        pytest.param(
            SEEN, Observation(NONE, refused=QuotaExceededError("used")), id="quota held yet"
        ),
    ],
)
def test_what_may_pass_is_waited_for(state: WatchState, seen: Observation) -> None:
    step = decide(state, SPEC, seen)
    assert isinstance(step, Wait)
    assert 0 < step.seconds <= 600


def end_of(state: WatchState, seen: Observation) -> TpuctlError:
    step = decide(state, SPEC, seen)
    assert isinstance(step, EndWatch), step
    assert step.error
    return step.error


def test_after_k_crashes_it_ends_with_the_jobs_own_exit_code() -> None:
    crashes = [attempt("crash", n, code=7) for n in (1, 2, 3)]
    assert isinstance(decide(after(*crashes[:2]), SPEC, on({})), LaunchJob)
    error = end_of(after(*crashes), on({}))
    assert (error.exit_code, error.code) == (7, "command_failed")
    assert f"3 times and is not restarted; the last time {crashes[-1].reason}." in str(error)
    assert "tpuctl logs t1 --zone us-central1-a --job watch-01234567-3" in (error.hint or "")


def test_preemptions_are_never_too_many_and_crashes_between_them_add_up() -> None:
    many = [attempt("preempted", n) for n in range(1, 200)]
    assert isinstance(decide(after(*many), SPEC, on({})), LaunchJob)
    mixed = [attempt("crash", 1), attempt("preempted", 2), attempt("crash", 3)]
    assert isinstance(decide(after(*mixed), SPEC, on({})), LaunchJob)
    assert "3 times" in str(end_of(after(*mixed, attempt("crash", 4)), on({})))


@pytest.mark.parametrize(
    "seen", [TpuObservation("none", on_purpose=True), TpuObservation("none", expired=True)]
)
def test_what_was_deleted_on_purpose_or_is_out_of_time_is_not_made_again(
    seen: TpuObservation,
) -> None:
    closed = decide(BUSY, SPEC, Observation(seen))
    assert isinstance(closed, CloseAttempt)
    assert closed.cause == "stopped"
    assert "not recreated" in str(end_of(SEEN, Observation(seen)))


def test_a_dead_tpu_whose_time_is_over_is_not_made_again() -> None:
    dead = Observation(replace(DEAD, expired=True))
    assert "its time to live is over" in str(end_of(SEEN, dead))
    paid = replace(SEEN, recipe=replace(RECIPE, max_usd=0.3))
    deleted = Observation(TpuObservation("none", on_purpose=True))
    assert "--max-usd" not in str(end_of(paid, deleted).hint)
    error = end_of(paid, dead)
    assert "its budget of 0.3 dollars is spent" in str(error)
    assert "tpuctl delete t1" in str(error.hint)
    assert "larger --max-usd" in str(error.hint)


def test_a_budget_counts_for_all_tpus_together() -> None:
    spent = replace(EMPTY, recipe=replace(RECIPE, max_usd=5.0), spent_usd=5.0)
    assert end_of(spent, Observation(NONE)).code == "limit_passed"
    assert decide(replace(spent, spent_usd=4.9), SPEC, Observation(NONE)) == CreateTpu()


@pytest.mark.parametrize("error", [PermissionDeniedError("no"), NotFoundError("no such type")])
def test_what_can_never_be_made_ends_it(error: TpuctlError) -> None:
    assert end_of(SEEN, Observation(NONE, refused=error, refusals=1)) is error


def test_a_quota_is_waited_for_only_for_a_while() -> None:
    full = QuotaExceededError("limit 0")
    assert end_of(SEEN, Observation(NONE, refused=full, refusals=5)) is full


def lost(state: WatchState, seconds: float) -> Step:
    workers = replace(GOOD, errors={1: REFUSES})
    return decide(state, SPEC, Observation(USABLE, workers, trouble_s=seconds))


def test_a_worker_that_never_comes_back_makes_it_a_bad_host() -> None:
    assert isinstance(lost(BUSY, 599.0), Wait)
    closed = lost(BUSY, 600.0)
    assert isinstance(closed, CloseAttempt)
    assert (closed.cause, closed.worker) == ("bad_host", 1)
    assert "worker 1 could not be used for 10m" in closed.reason
    told = next_state(BUSY, closed, Observation(USABLE), NOW)
    assert decide(told, SPEC, Observation(USABLE)) == DeleteTpu(closed.reason, is_bad_host=True)


def test_when_none_can_be_reached_and_the_service_sees_nothing_wrong_it_may_be_our_network() -> (
    None
):
    nobody = replace(GOOD, errors={0: REFUSES, 1: REFUSES})
    seen = Observation(USABLE, nobody, trouble_s=3599.0)
    assert isinstance(decide(BUSY, SPEC, seen), Wait)
    assert isinstance(decide(BUSY, SPEC, replace(seen, trouble_s=3600.0)), CloseAttempt)
    assert isinstance(decide(SEEN, SPEC, replace(seen, trouble_s=3600.0)), DeleteTpu)
    again = replace(SEEN, replaced=1)
    assert decide(again, SPEC, replace(seen, trouble_s=3600.0)) == EndWatch(REFUSES)
    ill = replace(seen, tpu=replace(USABLE, healthy=False), trouble_s=600.0)
    assert isinstance(decide(BUSY, SPEC, ill), CloseAttempt)


def test_what_the_service_refuses_is_no_fault_of_the_hosts() -> None:
    denied = Observation(USABLE, refused=PermissionDeniedError("may not update"), trouble_s=600.0)
    assert isinstance(decide(BUSY, SPEC, denied), Wait)
    assert decide(SEEN, SPEC, denied) == EndWatch(denied.refused)
    assert decide(SEEN, SPEC, replace(denied, trouble_s=1.0)) == AskWorkers()


def test_what_fails_at_once_is_asked_for_again_at_a_measured_pace() -> None:
    once = Observation(USABLE, refused=WorkerError("no address yet"), refusals=1)
    assert decide(SEEN, SPEC, once) == AskWorkers()
    assert isinstance(decide(SEEN, SPEC, replace(once, refusals=2)), Wait)
    nameless = Observation(USABLE, refused=UnknownLoginError("who are we?"), refusals=1)
    assert isinstance(decide(SEEN, SPEC, nameless), EndWatch)


def test_a_job_that_cannot_be_ended_makes_it_a_bad_host() -> None:
    stuck = WorkerError("Job x still runs on worker 1.")
    workers = replace(GOOD, remains=("watch-01234567-1",))
    seen = Observation(USABLE, workers, refused=stuck, refusals=4)
    crashed = after(attempt("crash"))
    assert isinstance(decide(crashed, SPEC, seen), StopJobs)
    assert isinstance(decide(crashed, SPEC, replace(seen, refusals=5)), DeleteTpu)


def test_a_tpu_of_the_users_that_was_never_reached_is_not_deleted() -> None:
    users = replace(SEEN, tpu=replace(TPU, made=False, proven=False))
    step = lost(users, 10_000.0)
    assert step == EndWatch(REFUSES)
    unfit = replace(on({}), workers=replace(GOOD, unfit={1: UNFIT}), trouble_s=10_000.0)
    assert decide(users, SPEC, unfit) == EndWatch(UNFIT)
    proven = replace(users, tpu=replace(TPU, made=False))
    assert isinstance(lost(proven, 600.0), DeleteTpu)


def test_after_many_bad_hosts_in_a_row_it_is_not_the_hosts() -> None:
    assert isinstance(lost(replace(SEEN, replaced=MAX_REPLACED - 1), 600.0), DeleteTpu)
    assert "5 TPUs in a row" in str(end_of_step(lost(replace(SEEN, replaced=MAX_REPLACED), 600.0)))


def end_of_step(step: Step) -> TpuctlError:
    assert isinstance(step, EndWatch)
    assert step.error
    return step.error


def test_a_command_that_does_not_exist_is_not_tried_again() -> None:
    error = CommandNotFoundError("worker 0: could not start 'pyhton'")
    refused = Observation(USABLE, None, refused=error, refusals=1)
    closed = decide(BUSY, SPEC, refused)
    assert isinstance(closed, CloseAttempt)
    assert end_of(SEEN, refused) is error


def test_another_watch_is_not_disturbed() -> None:
    seen = replace(on({}), workers=replace(GOOD, strangers=("watch-ffffffff-2",)))
    assert "tpuctl stop t1 --job watch-ffffffff-2" in (end_of(SEEN, seen).hint or "")


def test_without_hang_after_silence_ends_nothing() -> None:
    patient = replace(SPEC, hang_after_s=None)
    seen = on({0: RUNS, 1: RUNS}, hung=Silence((1,), 9999.0))
    assert decide(BUSY, patient, seen) == FollowJob()


# ---- The whole of it against a model of the world, killed at any moment --------------------------


class Act(enum.Enum):
    """What may happen at any moment."""

    PREEMPT = 1
    VANISH = 2
    CRASH = 3
    LOSE_HOST = 4
    RESTART = 5
    REPAIR = 6
    SILENCE = 7
    KILL_BEFORE_ACT = 8
    KILL_AFTER_ACT = 9
    FINISH = 10
    FINISH_ONE = 11
    REFUSE = 12


@dataclass
class Model:
    """A TPU with two workers, and the jobs on them."""

    tpu: TpuObservation = NONE
    jobs: list[dict[str, JobObservation]] = field(default_factory=lambda: [{}, {}])
    down: set[int] = field(default_factory=set)
    made: int = 0
    finished: set[str] = field(default_factory=set)
    refuses: bool = False

    def new(self) -> None:
        assert self.tpu.kind == "none", "two TPUs at once"
        self.made += 1
        known = KnownTpu(str(self.made), ZONE, NOW, NOW, made=True)
        self.tpu = TpuObservation("usable", "READY", known.id, ZONE, known=known, is_ours=True)
        self.jobs, self.down = [{}, {}], set()

    def happen(self, act: Act) -> None:
        alive = self.tpu.kind in ("usable", "coming")
        if act is Act.PREEMPT and alive:
            self.tpu = replace(self.tpu, kind="dead", state="PREEMPTED", known=None)
        elif act is Act.VANISH and alive:
            self.tpu = NONE
        elif act is Act.REPAIR and self.tpu.kind == "usable":
            self.tpu = replace(self.tpu, kind="coming", state="REPAIRING")
        elif act is Act.LOSE_HOST and alive:
            self.down.add(1)
        elif act is Act.REFUSE:
            self.refuses = True
        elif alive and act in _ENDS:
            self._end(act)

    def _end(self, act: Act) -> None:
        for worker, jobs in enumerate(self.jobs):
            for name in [name for name, job in jobs.items() if job == RUNS]:
                if act is Act.FINISH_ONE and worker:
                    continue
                jobs[name] = _ENDS[act]
                if act is Act.FINISH:
                    self.finished.add(name)

    def recover(self) -> None:
        if self.tpu.kind == "coming":
            known = KnownTpu(self.tpu.id, ZONE, NOW, NOW, made=self.tpu.is_ours)
            self.tpu = replace(self.tpu, kind="usable", state="READY", known=known)

    def ask(self, state: WatchState) -> WorkersObservation:
        name = state.open.job if state.open else ""
        running = {n for jobs in self.jobs for n, job in jobs.items() if job == RUNS}
        return WorkersObservation(
            2,
            errors=dict.fromkeys(self.down, REFUSES),
            job={w: jobs[name] for w, jobs in enumerate(self.jobs) if name in jobs},
            remains=tuple(sorted(job for job in running if job != name)),
        )


_ENDS = {
    Act.CRASH: FAILED,
    Act.RESTART: JobObservation("lost"),
    Act.FINISH: DONE,
    Act.FINISH_ONE: DONE,
}


class Watcher:
    """The loop of a watch over the model, with what it must never do."""

    def __init__(self) -> None:
        self.model = Model()
        self.state = EMPTY
        self.seen = Observation(NONE)
        self.end: EndWatch | None = None

    def turn(self, act: Act | None) -> None:
        if act:
            self.model.happen(act)
        tpu = self.model.tpu
        if (tpu.kind, tpu.id) != (self.seen.tpu.kind, self.seen.tpu.id):
            self.seen = replace(self.seen, workers=None, hung=None)
        self.seen = replace(self.seen, tpu=tpu)
        step = decide(self.state, SPEC, self.seen)
        self.check(step)
        self.state = next_state(self.state, step, self.seen, NOW)
        if act is Act.KILL_BEFORE_ACT:
            self.seen = Observation(NONE)
            return
        if act is Act.SILENCE and isinstance(step, FollowJob):
            self.seen = replace(self.seen, hung=Silence((0,), 300.0))
            return
        self.do(step)
        if act is Act.KILL_AFTER_ACT:
            self.seen = Observation(NONE)

    def check(self, step: Step) -> None:
        model, state = self.model, self.state
        numbers = [attempt.number for attempt in state.attempts]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len({attempt.job for attempt in state.attempts}) == len(numbers)
        if isinstance(step, DeleteTpu):
            assert model.tpu.kind == "dead" or step.is_bad_host
            assert state.removing or state.open is None
        if isinstance(step, LaunchJob):
            assert model.tpu.kind == "usable"
            running = [job for jobs in model.jobs for job in jobs.values() if job == RUNS]
            assert not running, "two attempts at once"
        if isinstance(step, EndWatch) and step.error is None:
            assert state.last
            assert state.last.job in model.finished, "done, but it never was"

    def do(self, step: Step) -> None:
        model = self.model
        refused, model.refuses = model.refuses, False
        if refused and isinstance(step, CreateTpu | DeleteTpu | LaunchJob):
            kept = replace(self.seen, refused=NoCapacityError("busy"), workers=None)
            self.seen = replace(kept, refusals=self.seen.refusals + 1)
            return
        if isinstance(step, CreateTpu | DeleteTpu | LaunchJob | StopJobs):
            self.change(step)
        elif isinstance(step, Wait):
            model.recover()
            troubled, failing = self.seen.trouble_s + 200, self.seen.failing_s + SETTLE_S
            self.seen = replace(
                self.seen, trouble_s=troubled, failing_s=failing, workers=None, refused=None
            )
        elif isinstance(step, AskWorkers):
            self.seen = replace(self.seen, workers=model.ask(self.state))
        elif isinstance(step, EndWatch):
            self.end = step
        else:
            self.seen = replace(self.seen, workers=None, hung=None)

    def change(self, step: CreateTpu | DeleteTpu | LaunchJob | StopJobs) -> None:
        model = self.model
        match step:
            case DeleteTpu():
                model.tpu, model.jobs = NONE, [{}, {}]
            case CreateTpu():
                model.recover() if model.tpu.kind == "coming" else model.new()
            case LaunchJob():
                for jobs in model.jobs:
                    jobs[step.job] = RUNS
            case StopJobs():
                for jobs in model.jobs:
                    jobs.update((n, JobObservation("stopped")) for n in step.jobs if n in jobs)
        self.seen = Observation(NONE)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([None, None, *Act]), max_size=60))
def test_whatever_happens_it_ends_well_and_never_does_harm(acts: list[Act | None]) -> None:
    watcher = Watcher()
    for act in acts:
        if watcher.end is None:
            watcher.turn(act)
    for turn in range(400):
        if watcher.end:
            break
        watcher.turn(Act.FINISH if turn % 5 == 4 else None)
    assert watcher.end, "it goes on for ever"
    if not {Act.CRASH, Act.SILENCE, Act.LOSE_HOST, Act.REFUSE} & set(acts):
        assert watcher.end.error is None
    assert watcher.state.crashes <= SPEC.max_crashes


@given(st.lists(st.sampled_from([Act.PREEMPT, Act.VANISH, None]), max_size=40))
def test_preempted_at_any_moment_it_still_gets_done(acts: list[Act | None]) -> None:
    watcher = Watcher()
    for act in acts:
        watcher.turn(act)
    for turn in range(100):
        if watcher.end is None:
            watcher.turn(Act.FINISH if turn % 5 == 4 else None)
    assert watcher.end == EndWatch()
    assert {a.cause for a in watcher.state.attempts} <= {"preempted", "done"}


def test_the_model_would_notice_a_second_attempt() -> None:
    watcher = Watcher()
    watcher.model.new()
    watcher.model.jobs[0]["watch-01234567-9"] = RUNS
    with pytest.raises(AssertionError, match="two attempts"):
        watcher.check(LaunchJob(1, "watch-01234567-1"))


# ---- What is remembered --------------------------------------------------------------------------


def test_what_a_tpu_has_cost_counts_when_it_is_gone() -> None:
    old = replace(TPU, usd_per_hour=4.0, seen=NOW + timedelta(hours=2))
    before = replace(SEEN, tpu=old, removing=PendingDeletion("7", "why", is_bad_host=True))
    told = next_state(before, ForgetTpu(), Observation(NONE), NOW)
    assert (told.spent_usd, told.tpu, told.removing, told.replaced) == (8.0, None, None, 1)
    vanished = next_state(replace(before, removing=None), CreateTpu(), Observation(NONE), NOW)
    assert (vanished.spent_usd, vanished.creating) == (8.0, True)
    other = replace(USABLE, id="8", known=replace(old, id="8", seen=old.created))
    found = next_state(replace(before, removing=None), AskWorkers(), Observation(other), NOW)
    assert (found.spent_usd, found.usd_so_far) == (8.0, 8.0)


def test_a_launch_is_known_to_be_everywhere_once_every_worker_has_it() -> None:
    begun = next_state(SEEN, LaunchJob(1, OPEN.job), on({}), NOW)
    assert begun.open == replace(OPEN, launched=False)
    half = next_state(begun, Wait(1, ""), on({0: RUNS}), NOW)
    assert half.open
    assert not half.open.launched
    whole = next_state(replace(begun, replaced=3), FollowJob(), on({0: RUNS, 1: RUNS}), NOW)
    assert whole.open == OPEN
    assert whole.replaced == 0


def test_a_tpu_is_proven_once_every_worker_was_reached() -> None:
    unproven = replace(USABLE, known=replace(TPU, proven=False))
    first = next_state(EMPTY, AskWorkers(), Observation(unproven), NOW)
    assert first.tpu
    assert not first.tpu.proven
    told = next_state(first, FollowJob(), Observation(unproven, GOOD), NOW)
    again = next_state(told, Wait(1, ""), Observation(unproven), NOW)
    assert again.tpu
    assert again.tpu.proven


def test_the_poll_is_shorter_than_what_it_waits_for() -> None:
    assert POLL_S < SETTLE_S < SPEC.bad_host_after_s < REPAIR_S
