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
from tpuctl.supervise.decide import MOST_REPLACED, POLL_S, REPAIR_S, SETTLE_S, decide
from tpuctl.supervise.memory import remember
from tpuctl.supervise.models import (
    Ask,
    Attempt,
    Cause,
    Close,
    Create,
    Delete,
    End,
    Follow,
    Forget,
    JobSight,
    Known,
    Launch,
    Memory,
    Order,
    Removing,
    Running,
    Sight,
    Silence,
    Step,
    StopJobs,
    TpuSight,
    Wait,
    WorkersSight,
)

NOW = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
ZONE = "us-central1-a"
WATCH = "0123456789abcdef"
RECIPE = CreateOptions("t1", "v5litepod-16", (ZONE,), spot=True)
ORDER = Order(("python", "train.py"), max_crashes=3, hang_after_s=300.0)
OPEN = Running(1, "watch-01234567-1", "7", ZONE, NOW, launched=True)
TPU = Known("7", ZONE, NOW, NOW, "c", made=True, proven=True)
EMPTY = Memory(WATCH, "t1", RECIPE)
SEEN = replace(EMPTY, tpu=TPU)
BUSY = replace(SEEN, open=OPEN, serial=1)
USABLE = TpuSight("usable", "READY", "7", ZONE, known=TPU, is_ours=True)
NONE = TpuSight("none", "gone")
DEAD = TpuSight("dead", "PREEMPTED", "7", ZONE)
GOOD = WorkersSight(2)
RUNS = JobSight("running")
FAILED = JobSight("finished", 3, CommandFailedError("The job ended with exit code 3."))
DONE = JobSight("finished", 0)
REFUSES = WorkerUnreachableError("worker 1 refuses connections.")
UNFIT = WorkerUnfitError("worker 1 is not fit for a job: it shows 3 of 4 chips.")


def attempt(cause: Cause, number: int = 1, tpu_id: str = "7", code: int | None = None) -> Attempt:
    job = f"watch-01234567-{number}"
    return Attempt(number, cause, "why", job, tpu_id, ZONE, NOW, NOW, code, 1)


def after(*attempts: Attempt, **changes: object) -> Memory:
    return replace(SEEN, attempts=attempts, serial=len(attempts), **changes)  # type: ignore[arg-type]


def on(jobs: dict[int, JobSight], **changes: object) -> Sight:
    workers = replace(GOOD, job=jobs)
    return replace(Sight(USABLE, workers), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("memory", "sight", "step"),
    [
        pytest.param(EMPTY, Sight(NONE), Create(), id="there is none"),
        pytest.param(BUSY, Sight(NONE), Close("preempted", "it vanished"), id="it vanished"),
        pytest.param(SEEN, Sight(NONE), Create(), id="none any more"),
        pytest.param(BUSY, Sight(DEAD), Close("preempted", "it was PREEMPTED"), id="preempted"),
        pytest.param(SEEN, Sight(DEAD), Delete("it was PREEMPTED"), id="dead"),
        pytest.param(SEEN, Sight(USABLE), Ask(), id="usable"),
        pytest.param(SEEN, on({}), Launch(1, "watch-01234567-1"), id="first"),
        pytest.param(
            after(attempt("preempted")), on({}), Launch(2, "watch-01234567-2"), id="second"
        ),
        pytest.param(BUSY, on({0: RUNS, 1: RUNS}), Follow(), id="it runs"),
        pytest.param(BUSY, on({0: DONE, 1: RUNS}), Follow(), id="it runs on worker 1 still"),
        pytest.param(BUSY, on({0: DONE, 1: DONE}), Close("done", "", exit_code=0), id="it is done"),
        pytest.param(after(attempt("done")), on({}), End(), id="nothing more to do"),
        pytest.param(
            BUSY,
            on({0: RUNS, 1: FAILED}, failing_s=SETTLE_S),
            Close("crash", "the job ended with exit code 3", exit_code=3, worker=1),
            id="a crash",
        ),
        pytest.param(
            BUSY,
            on({0: JobSight("lost"), 1: RUNS}),
            Close("maintenance", "worker 0 was restarted, or lost its job", worker=0),
            id="restarted",
        ),
        pytest.param(
            replace(BUSY, attempts=(attempt("maintenance"),) * 2),
            on({0: JobSight("lost"), 1: RUNS}),
            Close("bad_host", "worker 0 lost its job again and again", worker=0),
            id="restarted again and again",
        ),
        pytest.param(
            BUSY,
            on({0: JobSight("stopped"), 1: RUNS}),
            Close("stopped", "somebody has stopped the job on worker 0"),
            id="stopped by somebody",
        ),
        pytest.param(
            BUSY,
            on({0: RUNS, 1: RUNS}, hung=Silence((1,), 320.0)),
            Close("crash", "worker 1 hung: nothing was said for 5m 20s", worker=1),
            id="hung",
        ),
        pytest.param(
            BUSY,
            on({0: RUNS}),
            Close("maintenance", "the job is gone without a trace from worker 1"),
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
            Launch(1, OPEN.job),
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
            Sight(USABLE),
            Close("preempted", "another TPU bears its name by now"),
            id="another TPU",
        ),
        pytest.param(
            replace(SEEN, removing=Removing("7", "why")),
            Sight(DEAD),
            Delete("why"),
            id="still to be deleted",
        ),
        pytest.param(
            replace(SEEN, removing=Removing("7", "why")), Sight(NONE), Forget(), id="deleted"
        ),
        pytest.param(
            replace(SEEN, removing=Removing("6", "why")), Sight(USABLE), Forget(), id="a new one"
        ),
        pytest.param(
            replace(EMPTY, creating=True),
            Sight(TpuSight("coming", "CREATING", "7", ZONE, is_ours=True)),
            Create(),
            id="go on with making it",
        ),
        pytest.param(
            replace(BUSY),
            Sight(TpuSight("coming", "REPAIRING", "7", ZONE, past_s=REPAIR_S)),
            Close("maintenance", "it was REPAIRING for 1h 00m"),
            id="maintenance for ever",
        ),
        pytest.param(
            SEEN,
            Sight(TpuSight("coming", "REPAIRING", "7", ZONE, past_s=REPAIR_S)),
            Delete("it was REPAIRING for 1h 00m", is_bad_host=True),
            id="replaced after that",
        ),
    ],
)
def test_the_next_step(memory: Memory, sight: Sight, step: Step) -> None:
    assert decide(memory, ORDER, sight) == step


@pytest.mark.parametrize(
    ("memory", "sight"),
    [
        pytest.param(BUSY, Sight(TpuSight("unknown", error=UnavailableError("?"))), id="asleep"),
        pytest.param(BUSY, Sight(TpuSight("coming", "REPAIRING", "7", ZONE)), id="maintenance"),
        pytest.param(EMPTY, Sight(TpuSight("coming", "WAITING", in_line=True)), id="in line"),
        pytest.param(BUSY, Sight(TpuSight("leaving", "DELETING", "7", ZONE)), id="leaving"),
        pytest.param(BUSY, on({0: RUNS, 1: FAILED}), id="is it a crash or a preemption?"),
        pytest.param(
            BUSY, replace(on({}), workers=replace(GOOD, errors={1: REFUSES})), id="unreachable"
        ),
        pytest.param(
            SEEN, replace(on({}), workers=replace(GOOD, unfit={1: UNFIT})), id="unfit and ours"
        ),
        pytest.param(SEEN, Sight(NONE, refused=NoCapacityError("none left")), id="no capacity"),
        pytest.param(SEEN, Sight(NONE, refused=QuotaExceededError("used")), id="quota held yet"),
    ],
)
def test_what_may_pass_is_waited_for(memory: Memory, sight: Sight) -> None:
    step = decide(memory, ORDER, sight)
    assert isinstance(step, Wait)
    assert 0 < step.seconds <= 600


def end_of(memory: Memory, sight: Sight) -> TpuctlError:
    step = decide(memory, ORDER, sight)
    assert isinstance(step, End), step
    assert step.error
    return step.error


def test_after_k_crashes_it_ends_with_the_jobs_own_exit_code() -> None:
    crashes = [attempt("crash", n, code=7) for n in (1, 2, 3)]
    assert isinstance(decide(after(*crashes[:2]), ORDER, on({})), Launch)
    error = end_of(after(*crashes), on({}))
    assert (error.exit_code, error.code) == (7, "command_failed")
    assert f"3 times, and is not started again; the last time {crashes[-1].reason}." in str(error)
    assert "tpuctl logs t1 --zone us-central1-a --job watch-01234567-3" in (error.hint or "")


def test_preemptions_are_never_too_many_and_crashes_between_them_add_up() -> None:
    many = [attempt("preempted", n) for n in range(1, 200)]
    assert isinstance(decide(after(*many), ORDER, on({})), Launch)
    mixed = [attempt("crash", 1), attempt("preempted", 2), attempt("crash", 3)]
    assert isinstance(decide(after(*mixed), ORDER, on({})), Launch)
    assert "3 times" in str(end_of(after(*mixed, attempt("crash", 4)), on({})))


@pytest.mark.parametrize(
    "sight", [TpuSight("none", on_purpose=True), TpuSight("none", expired=True)]
)
def test_what_was_deleted_on_purpose_or_is_out_of_time_is_not_made_again(sight: TpuSight) -> None:
    closed = decide(BUSY, ORDER, Sight(sight))
    assert isinstance(closed, Close)
    assert closed.cause == "stopped"
    assert "not made again" in str(end_of(SEEN, Sight(sight)))


def test_a_dead_tpu_whose_time_is_over_is_not_made_again() -> None:
    end_of(SEEN, Sight(replace(DEAD, expired=True)))


def test_a_budget_counts_for_all_tpus_together() -> None:
    spent = replace(EMPTY, recipe=replace(RECIPE, max_usd=5.0), spent_usd=5.0)
    assert end_of(spent, Sight(NONE)).code == "limit_passed"
    assert decide(replace(spent, spent_usd=4.9), ORDER, Sight(NONE)) == Create()


@pytest.mark.parametrize("error", [PermissionDeniedError("no"), NotFoundError("no such type")])
def test_what_can_never_be_made_ends_it(error: TpuctlError) -> None:
    assert end_of(SEEN, Sight(NONE, refused=error, refusals=1)) is error


def test_a_quota_is_waited_for_only_for_a_while() -> None:
    full = QuotaExceededError("limit 0")
    assert end_of(SEEN, Sight(NONE, refused=full, refusals=5)) is full


def lost(memory: Memory, seconds: float) -> Step:
    workers = replace(GOOD, errors={1: REFUSES})
    return decide(memory, ORDER, Sight(USABLE, workers, trouble_s=seconds))


def test_a_worker_that_never_comes_back_makes_it_a_bad_host() -> None:
    assert isinstance(lost(BUSY, 599.0), Wait)
    closed = lost(BUSY, 600.0)
    assert isinstance(closed, Close)
    assert (closed.cause, closed.worker) == ("bad_host", 1)
    assert "worker 1 could not be used for 10m" in closed.reason
    told = remember(BUSY, closed, Sight(USABLE), NOW)
    assert decide(told, ORDER, Sight(USABLE)) == Delete(closed.reason, is_bad_host=True)


def test_when_none_can_be_reached_and_the_service_sees_nothing_wrong_it_may_be_our_network() -> (
    None
):
    nobody = replace(GOOD, errors={0: REFUSES, 1: REFUSES})
    sight = Sight(USABLE, nobody, trouble_s=3599.0)
    assert isinstance(decide(BUSY, ORDER, sight), Wait)
    assert isinstance(decide(BUSY, ORDER, replace(sight, trouble_s=3600.0)), Close)
    assert isinstance(decide(SEEN, ORDER, replace(sight, trouble_s=3600.0)), Delete)
    again = replace(SEEN, replaced=1)
    assert decide(again, ORDER, replace(sight, trouble_s=3600.0)) == End(REFUSES)
    ill = replace(sight, tpu=replace(USABLE, healthy=False), trouble_s=600.0)
    assert isinstance(decide(BUSY, ORDER, ill), Close)


def test_what_the_service_refuses_is_no_fault_of_the_hosts() -> None:
    denied = Sight(USABLE, refused=PermissionDeniedError("may not update"), trouble_s=600.0)
    assert isinstance(decide(BUSY, ORDER, denied), Wait)
    assert decide(SEEN, ORDER, denied) == End(denied.refused)
    assert decide(SEEN, ORDER, replace(denied, trouble_s=1.0)) == Ask()


def test_what_fails_at_once_is_asked_for_again_at_a_measured_pace() -> None:
    once = Sight(USABLE, refused=WorkerError("no address yet"), refusals=1)
    assert decide(SEEN, ORDER, once) == Ask()
    assert isinstance(decide(SEEN, ORDER, replace(once, refusals=2)), Wait)
    nameless = Sight(USABLE, refused=UnknownLoginError("who are we?"), refusals=1)
    assert isinstance(decide(SEEN, ORDER, nameless), End)


def test_a_job_that_cannot_be_ended_makes_it_a_bad_host() -> None:
    stuck = WorkerError("Job x still runs on worker 1.")
    workers = replace(GOOD, remains=("watch-01234567-1",))
    sight = Sight(USABLE, workers, refused=stuck, refusals=4)
    crashed = after(attempt("crash"))
    assert isinstance(decide(crashed, ORDER, sight), StopJobs)
    assert isinstance(decide(crashed, ORDER, replace(sight, refusals=5)), Delete)


def test_a_tpu_of_the_users_that_was_never_reached_is_not_deleted() -> None:
    users = replace(SEEN, tpu=replace(TPU, made=False, proven=False))
    step = lost(users, 10_000.0)
    assert step == End(REFUSES)
    unfit = replace(on({}), workers=replace(GOOD, unfit={1: UNFIT}), trouble_s=10_000.0)
    assert decide(users, ORDER, unfit) == End(UNFIT)
    proven = replace(users, tpu=replace(TPU, made=False))
    assert isinstance(lost(proven, 600.0), Delete)


def test_after_many_bad_hosts_in_a_row_it_is_not_the_hosts() -> None:
    assert isinstance(lost(replace(SEEN, replaced=MOST_REPLACED - 1), 600.0), Delete)
    assert "5 TPUs in a row" in str(end_of_step(lost(replace(SEEN, replaced=MOST_REPLACED), 600.0)))


def end_of_step(step: Step) -> TpuctlError:
    assert isinstance(step, End)
    assert step.error
    return step.error


def test_a_command_that_does_not_exist_is_not_tried_again() -> None:
    error = CommandNotFoundError("worker 0: could not start 'pyhton'")
    refused = Sight(USABLE, None, refused=error, refusals=1)
    closed = decide(BUSY, ORDER, refused)
    assert isinstance(closed, Close)
    assert end_of(SEEN, refused) is error


def test_another_watch_is_not_disturbed() -> None:
    sight = replace(on({}), workers=replace(GOOD, strangers=("watch-ffffffff-2",)))
    assert "tpuctl stop t1 --job watch-ffffffff-2" in (end_of(SEEN, sight).hint or "")


def test_without_hang_after_silence_ends_nothing() -> None:
    patient = replace(ORDER, hang_after_s=None)
    sight = on({0: RUNS, 1: RUNS}, hung=Silence((1,), 9999.0))
    assert decide(BUSY, patient, sight) == Follow()


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

    tpu: TpuSight = NONE
    jobs: list[dict[str, JobSight]] = field(default_factory=lambda: [{}, {}])
    down: set[int] = field(default_factory=set)
    made: int = 0
    finished: set[str] = field(default_factory=set)
    refuses: bool = False

    def new(self) -> None:
        assert self.tpu.kind == "none", "two TPUs at once"
        self.made += 1
        known = Known(str(self.made), ZONE, NOW, NOW, made=True)
        self.tpu = TpuSight("usable", "READY", known.id, ZONE, known=known, is_ours=True)
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
            known = Known(self.tpu.id, ZONE, NOW, NOW, made=self.tpu.is_ours)
            self.tpu = replace(self.tpu, kind="usable", state="READY", known=known)

    def ask(self, memory: Memory) -> WorkersSight:
        name = memory.open.job if memory.open else ""
        running = {n for jobs in self.jobs for n, job in jobs.items() if job == RUNS}
        return WorkersSight(
            2,
            errors=dict.fromkeys(self.down, REFUSES),
            job={w: jobs[name] for w, jobs in enumerate(self.jobs) if name in jobs},
            remains=tuple(sorted(job for job in running if job != name)),
        )


_ENDS = {
    Act.CRASH: FAILED,
    Act.RESTART: JobSight("lost"),
    Act.FINISH: DONE,
    Act.FINISH_ONE: DONE,
}


class Watcher:
    """The loop of a watch over the model, with what it must never do."""

    def __init__(self) -> None:
        self.model = Model()
        self.memory = EMPTY
        self.sight = Sight(NONE)
        self.end: End | None = None

    def turn(self, act: Act | None) -> None:
        if act:
            self.model.happen(act)
        tpu = self.model.tpu
        if (tpu.kind, tpu.id) != (self.sight.tpu.kind, self.sight.tpu.id):
            self.sight = replace(self.sight, workers=None, hung=None)
        self.sight = replace(self.sight, tpu=tpu)
        step = decide(self.memory, ORDER, self.sight)
        self.check(step)
        self.memory = remember(self.memory, step, self.sight, NOW)
        if act is Act.KILL_BEFORE_ACT:
            self.sight = Sight(NONE)
            return
        if act is Act.SILENCE and isinstance(step, Follow):
            self.sight = replace(self.sight, hung=Silence((0,), 300.0))
            return
        self.do(step)
        if act is Act.KILL_AFTER_ACT:
            self.sight = Sight(NONE)

    def check(self, step: Step) -> None:
        model, memory = self.model, self.memory
        numbers = [attempt.number for attempt in memory.attempts]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len({attempt.job for attempt in memory.attempts}) == len(numbers)
        if isinstance(step, Delete):
            assert model.tpu.kind == "dead" or step.is_bad_host
            assert memory.removing or memory.open is None
        if isinstance(step, Launch):
            assert model.tpu.kind == "usable"
            running = [job for jobs in model.jobs for job in jobs.values() if job == RUNS]
            assert not running, "two attempts at once"
        if isinstance(step, End) and step.error is None:
            assert memory.last
            assert memory.last.job in model.finished, "done, but it never was"

    def do(self, step: Step) -> None:
        model = self.model
        refused, model.refuses = model.refuses, False
        if refused and isinstance(step, Create | Delete | Launch):
            kept = replace(self.sight, refused=NoCapacityError("busy"), workers=None)
            self.sight = replace(kept, refusals=self.sight.refusals + 1)
            return
        if isinstance(step, Create | Delete | Launch | StopJobs):
            self.change(step)
        elif isinstance(step, Wait):
            model.recover()
            troubled, failing = self.sight.trouble_s + 200, self.sight.failing_s + SETTLE_S
            self.sight = replace(
                self.sight, trouble_s=troubled, failing_s=failing, workers=None, refused=None
            )
        elif isinstance(step, Ask):
            self.sight = replace(self.sight, workers=model.ask(self.memory))
        elif isinstance(step, End):
            self.end = step
        else:
            self.sight = replace(self.sight, workers=None, hung=None)

    def change(self, step: Create | Delete | Launch | StopJobs) -> None:
        model = self.model
        match step:
            case Delete():
                model.tpu, model.jobs = NONE, [{}, {}]
            case Create():
                model.recover() if model.tpu.kind == "coming" else model.new()
            case Launch():
                for jobs in model.jobs:
                    jobs[step.job] = RUNS
            case StopJobs():
                for jobs in model.jobs:
                    jobs.update((n, JobSight("stopped")) for n in step.jobs if n in jobs)
        self.sight = Sight(NONE)


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
    assert watcher.memory.crashes <= ORDER.max_crashes


@given(st.lists(st.sampled_from([Act.PREEMPT, Act.VANISH, None]), max_size=40))
def test_preempted_at_any_moment_it_still_gets_done(acts: list[Act | None]) -> None:
    watcher = Watcher()
    for act in acts:
        watcher.turn(act)
    for turn in range(100):
        if watcher.end is None:
            watcher.turn(Act.FINISH if turn % 5 == 4 else None)
    assert watcher.end == End()
    assert {a.cause for a in watcher.memory.attempts} <= {"preempted", "done"}


def test_the_model_would_notice_a_second_attempt() -> None:
    watcher = Watcher()
    watcher.model.new()
    watcher.model.jobs[0]["watch-01234567-9"] = RUNS
    with pytest.raises(AssertionError, match="two attempts"):
        watcher.check(Launch(1, "watch-01234567-1"))


# ---- What is remembered --------------------------------------------------------------------------


def test_what_a_tpu_has_cost_counts_when_it_is_gone() -> None:
    old = replace(TPU, usd_per_hour=4.0, seen=NOW + timedelta(hours=2))
    before = replace(SEEN, tpu=old, removing=Removing("7", "why", is_bad_host=True))
    told = remember(before, Forget(), Sight(NONE), NOW)
    assert (told.spent_usd, told.tpu, told.removing, told.replaced) == (8.0, None, None, 1)
    vanished = remember(replace(before, removing=None), Create(), Sight(NONE), NOW)
    assert (vanished.spent_usd, vanished.creating) == (8.0, True)


def test_a_launch_is_known_to_be_everywhere_once_every_worker_has_it() -> None:
    begun = remember(SEEN, Launch(1, OPEN.job), on({}), NOW)
    assert begun.open == replace(OPEN, launched=False)
    half = remember(begun, Wait(1, ""), on({0: RUNS}), NOW)
    assert half.open
    assert not half.open.launched
    whole = remember(replace(begun, replaced=3), Follow(), on({0: RUNS, 1: RUNS}), NOW)
    assert whole.open == OPEN
    assert whole.replaced == 0


def test_a_tpu_is_proven_once_every_worker_was_reached() -> None:
    unproven = replace(USABLE, known=replace(TPU, proven=False))
    first = remember(EMPTY, Ask(), Sight(unproven), NOW)
    assert first.tpu
    assert not first.tpu.proven
    told = remember(first, Follow(), Sight(unproven, GOOD), NOW)
    again = remember(told, Wait(1, ""), Sight(unproven), NOW)
    assert again.tpu
    assert again.tpu.proven


def test_the_poll_is_shorter_than_what_it_waits_for() -> None:
    assert POLL_S < SETTLE_S < ORDER.bad_host_after_s < REPAIR_S
